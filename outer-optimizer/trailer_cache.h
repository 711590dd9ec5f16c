#pragma once
// The checksums of published frames: every learner downloads the same bytes, and a pass over a
// fragment for each of them would cost more than all else that a download does.
#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "common/base/ids.h"
#include "common/wire/frame.h"
#include "outer-optimizer/store/buffer.h"

namespace archipelago::outer {

// Any thread. A payload is known by its buffer, which never changes once it is shared; entries keep
// no buffer alive.
class TrailerCache {
 public:
  using Trailer = std::array<std::byte, wire::kChecksumBytes>;
  // The deltas that the store keeps of a fragment, the keyframe, and one that was just replaced.
  static constexpr std::size_t kMaxPerFragment = 6;

  // Hashes at the first call for a payload; others that ask meanwhile wait for that one. Payload:
  // not null.
  [[nodiscard]] Trailer of(FragmentId fragment, const SharedBuffer& payload);
  [[nodiscard]] std::uint64_t hashed() const { return hashed_; }  // payloads, so far

 private:
  struct Entry {
    std::weak_ptr<const Buffer> payload;
    std::once_flag once;
    Trailer trailer{};
  };
  [[nodiscard]] std::shared_ptr<Entry> entry(FragmentId fragment, const SharedBuffer& payload);

  std::mutex mutex_;
  std::map<FragmentId, std::deque<std::shared_ptr<Entry>>> entries_;
  std::atomic<std::uint64_t> hashed_{0};
};

}  // namespace archipelago::outer
