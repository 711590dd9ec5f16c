#include "learner/fragments.h"

#include <algorithm>

#include "common/base/check.h"

namespace archipelago::learner {

Result<diloco::Layout> layout_of(const std::vector<TensorShape>& tensors) {
  std::vector<diloco::Tensor> out;
  out.reserve(tensors.size());
  for (const TensorShape& tensor : tensors) {
    diloco::Tensor one;
    one.name = tensor.name;
    one.shape = tensor.shape;
    one.merge_class =
        tensor.embedding ? diloco::MergeClass::kEmbedding : diloco::MergeClass::kOther;
    out.push_back(std::move(one));
  }
  return diloco::Layout::create(std::move(out));
}

Result<FragmentMap> FragmentMap::create(const diloco::Layout& layout, std::int32_t fragments,
                                        diloco::FragmentScheme scheme) {
  diloco::Fragmentation cut;
  ARCH_TRY(cut, diloco::Fragmentation::create(layout, fragments, scheme));
  FragmentMap map;
  for (const diloco::Fragment& fragment : cut.fragments()) {
    FragmentView view;
    for (const diloco::FragmentTensor& tensor : fragment.tensors) {
      const std::int64_t offset = layout.tensors()[tensor.index].offset + tensor.begin;
      view.tensors.push_back({offset, tensor.elements});
      view.elements.push_back(tensor.elements);
      view.flat_offsets.push_back(offset);
    }
    view.total = fragment.elements;
    map.elements_ += fragment.elements;
    map.views_.push_back(std::move(view));
  }
  map.largest_ = cut.max_elements();
  return map;
}

std::size_t payload_size(const FragmentView& view, codec::Codec codec) {
  std::size_t bytes = 0;
  for (const std::int64_t elements : view.elements)
    bytes += codec::encoded_size(codec, static_cast<std::size_t>(elements));
  return bytes;
}

Status encode_fragment(const FragmentView& view, codec::Codec codec, std::span<const float> values,
                       std::vector<std::byte>* out) {
  ARCH_CHECK(values.size() == static_cast<std::size_t>(view.total),
             << values.size() << " != " << view.total);
  out->resize(payload_size(view, codec));
  std::size_t at = 0;
  std::size_t byte = 0;
  for (const std::int64_t elements : view.elements) {
    const auto n = static_cast<std::size_t>(elements);
    const std::size_t bytes = codec::encoded_size(codec, n);
    ARCH_TRY_VOID(
        codec::encode(codec, values.subspan(at, n), std::span(*out).subspan(byte, bytes)));
    at += n;
    byte += bytes;
  }
  return {};
}

Status decode_fragment(const FragmentView& view, codec::Codec codec,
                       std::span<const std::byte> payload, bool add, std::span<float> out) {
  if (payload.size() != payload_size(view, codec))
    return fail(ErrorKind::kCorrupt, "fragment payload has " + std::to_string(payload.size()) +
                                         " bytes, expected " +
                                         std::to_string(payload_size(view, codec)));
  std::size_t at = 0;
  std::size_t byte = 0;
  for (const std::int64_t elements : view.elements) {
    const auto n = static_cast<std::size_t>(elements);
    const std::size_t bytes = codec::encoded_size(codec, n);
    const auto encoded = payload.subspan(byte, bytes);
    if (add) {
      if (const auto valid = codec::validate_norm2(codec, encoded, n); !valid)
        return fail(valid.error());
      codec::decode_accumulate_range(codec, encoded, n, 0, 1.0F, out.subspan(at, n));
    } else {
      ARCH_TRY_VOID(codec::decode(codec, encoded, out.subspan(at, n)));
    }
    at += n;
    byte += bytes;
  }
  return {};
}

bool BaseBank::put(std::int32_t p, GlobalStep version, Base values) {
  const std::lock_guard lock(mutex_);
  auto& versions = held_.at(static_cast<std::size_t>(p)).versions;
  const auto at = std::find_if(versions.begin(), versions.end(),
                               [&](const auto& held) { return held.first >= version; });
  if (at != versions.end() && at->first == version) return true;  // a repeat
  if (versions.size() >= kMaxVersions) return false;
  versions.emplace(at, version, std::move(values));
  return true;
}

Base BaseBank::get(std::int32_t p, GlobalStep version) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [held, values] : held_.at(static_cast<std::size_t>(p)).versions)
    if (held == version) return values;
  return nullptr;
}

Base BaseBank::apply(std::int32_t p, GlobalStep version) {
  const std::lock_guard lock(mutex_);
  Held& held = held_.at(static_cast<std::size_t>(p));
  while (!held.versions.empty() && held.versions.front().first < version) held.versions.pop_front();
  if (held.versions.empty() || held.versions.front().first != version) return nullptr;
  held.applied = held.versions.front().second;
  return held.applied;
}

void BaseBank::forget(std::int32_t p) {
  const std::lock_guard lock(mutex_);
  held_.at(static_cast<std::size_t>(p)).versions.clear();
}

Base BaseBank::applied(std::int32_t p) const {
  const std::lock_guard lock(mutex_);
  return held_.at(static_cast<std::size_t>(p)).applied;
}

}  // namespace archipelago::learner
