#pragma once
// The payload of an upload, delta or keyframe of one fragment: its tensors' encodings one after
// another, in the order of diloco::Fragment::tensors (protocol.md §3: blocks of the codec restart
// at each tensor).
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/diloco/fragmentation.h"

namespace archipelago::outer {

// A tensor of an upload whose norm is beyond this is refused: no merge of such tensors can overflow
// master or momentum (case D-08), and no honest outer gradient comes near it.
inline constexpr double kMaxTensorNorm = 1e15;

[[nodiscard]] std::uint64_t payload_bytes(const diloco::Fragment& fragment, codec::Codec codec);
// Byte offset of each tensor's encoding, and the total as last element.
[[nodiscard]] std::vector<std::uint64_t> payload_offsets(const diloco::Fragment& fragment,
                                                         codec::Codec codec);

// Validates while the bytes arrive, 4,096 elements at a time: finite values, legal scales and
// codes, bounded norms.
class PayloadValidator {
 public:
  PayloadValidator(const diloco::Fragment& fragment, codec::Codec codec);
  // `received`: everything so far, from the payload's begin (a prefix that only grows). kRefused
  // names the tensor's place in the fragment.
  [[nodiscard]] Status advance(std::span<const std::byte> received);
  [[nodiscard]] bool complete() const { return tensor_ == sizes_.size(); }
  // Squared norm of each tensor; valid once complete.
  [[nodiscard]] const std::vector<double>& norm2() const { return norm2_; }

 private:
  codec::Codec codec_;
  std::vector<std::size_t> sizes_;  // elements of each tensor
  std::vector<double> norm2_;
  std::size_t tensor_ = 0;   // the one being validated
  std::size_t element_ = 0;  // within it; a multiple of codec::kChunk
  std::uint64_t byte_ = 0;   // where that element's chunk begins
};

}  // namespace archipelago::outer
