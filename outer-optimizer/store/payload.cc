#include "outer-optimizer/store/payload.h"

#include <algorithm>
#include <string>

namespace archipelago::outer {

std::vector<std::uint64_t> payload_offsets(const diloco::Fragment& fragment, codec::Codec codec) {
  std::vector<std::uint64_t> offsets{0};
  for (const auto& tensor : fragment.tensors)
    offsets.push_back(offsets.back() +
                      codec::encoded_size(codec, static_cast<std::size_t>(tensor.elements)));
  return offsets;
}

std::uint64_t payload_bytes(const diloco::Fragment& fragment, codec::Codec codec) {
  return payload_offsets(fragment, codec).back();
}

PayloadValidator::PayloadValidator(const diloco::Fragment& fragment, codec::Codec codec)
    : codec_(codec) {
  for (const auto& tensor : fragment.tensors)
    sizes_.push_back(static_cast<std::size_t>(tensor.elements));
  norm2_.resize(sizes_.size(), 0.0);
}

Status PayloadValidator::advance(std::span<const std::byte> received) {
  while (tensor_ < sizes_.size()) {
    const std::size_t elements = std::min(codec::kChunk, sizes_[tensor_] - element_);
    const std::size_t bytes = codec::encoded_size(codec_, elements);
    if (received.size() - byte_ < bytes) return {};
    auto chunk = codec::validate_norm2(codec_, received.subspan(byte_, bytes), elements);
    if (!chunk)
      return fail(
          chunk.error().with_context("tensor " + std::to_string(tensor_) + " of the fragment"));
    norm2_[tensor_] += *chunk;
    byte_ += bytes;
    element_ += elements;
    if (element_ < sizes_[tensor_]) continue;
    if (!(norm2_[tensor_] <= kMaxTensorNorm * kMaxTensorNorm))
      return fail(ErrorKind::kRefused,
                  "tensor " + std::to_string(tensor_) + " of the fragment: squared norm " +
                      std::to_string(norm2_[tensor_]) + "; allowed: at most 1e30");
    ++tensor_;
    element_ = 0;
  }
  return {};
}

}  // namespace archipelago::outer
