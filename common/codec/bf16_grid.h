#pragma once
// Rounding to the values that bf16 can hold, for `sync.published: bf16`.
#include <bit>
#include <cstdint>
#include <span>

namespace archipelago::codec {

// Each element becomes what encoding and decoding it as bf16 gives: to nearest, ties to even.
// Finite elements only.
inline void round_to_bf16(std::span<float> x) {
  for (float& value : x) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    value = std::bit_cast<float>((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
  }
}

}  // namespace archipelago::codec
