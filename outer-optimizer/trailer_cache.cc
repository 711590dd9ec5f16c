#include "outer-optimizer/trailer_cache.h"

#include <algorithm>

namespace archipelago::outer {
namespace {

// Of the owner, not of the address: that may be another buffer's by now.
bool same(const std::weak_ptr<const Buffer>& known, const SharedBuffer& payload) {
  return !known.owner_before(payload) && !payload.owner_before(known);
}

}  // namespace

std::shared_ptr<TrailerCache::Entry> TrailerCache::entry(FragmentId fragment,
                                                         const SharedBuffer& payload) {
  const std::lock_guard lock(mutex_);
  auto& of_fragment = entries_[fragment];
  for (const auto& known : of_fragment)
    if (same(known->payload, payload)) return known;
  std::erase_if(of_fragment, [](const auto& known) { return known->payload.expired(); });
  if (of_fragment.size() >= kMaxPerFragment) of_fragment.pop_front();
  of_fragment.push_back(std::make_shared<Entry>());
  of_fragment.back()->payload = payload;
  return of_fragment.back();
}

TrailerCache::Trailer TrailerCache::of(FragmentId fragment, const SharedBuffer& payload) {
  const auto known = entry(fragment, payload);
  std::call_once(known->once, [&] {
    wire::PayloadHash hash;
    hash.update(payload->bytes());
    known->trailer = hash.trailer();
    ++hashed_;
  });
  return known->trailer;
}

}  // namespace archipelago::outer
