#pragma once
// The scalar definition of every code: what the reference loops over and what the vector kernels
// must reproduce.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/codec/codec.h"

namespace archipelago::codec {

static_assert(std::endian::native == std::endian::little,
              "encoded tensors are little-endian and copied as they are");

inline constexpr std::uint32_t kMagnitudeMask = 0x7fffffffU;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;
inline constexpr std::size_t kScaleBytes = 4;

// Adding 1.5 * 2^23 rounds |x| < 2^22 to an integer, ties to even, and leaves it in two's
// complement in the low bits of the sum: the same on every target, where conversions differ in
// their treatment of ties and NaN.
inline constexpr float kRoundMagic = 12582912.0F;

inline constexpr std::uint32_t kLargestBf16 = 0x7f7fU;
inline constexpr std::uint32_t kInfinityBf16 = 0x7f80U;

template <int Levels>
struct IntLevels;
template <>
struct IntLevels<127> {
  static constexpr float kMinScale = 0x1.020408p-123F;  // kTinyBlock / 127
  static constexpr float kMaxScale =
      0x1.020406p+121F;  // the largest whose product with 127 is finite
};
template <>
struct IntLevels<7> {
  static constexpr float kMinScale = 0x1.24924ap-119F;  // kTinyBlock / 7
  static constexpr float kMaxScale = 0x1.249248p+125F;
};

// Scale of a block with this (finite) absmax; 0 for a tiny block.
template <int Levels>
inline float scale_of(float absmax) {
  if (absmax < kTinyBlock) return 0.0F;
  const float scale = absmax / static_cast<float>(Levels);
  return scale < IntLevels<Levels>::kMaxScale ? scale : IntLevels<Levels>::kMaxScale;
}

// What an encoder can have written: exactly +0, or a normal number in range. False for NaN.
template <int Levels>
inline bool scale_is_valid(float scale) {
  if (std::bit_cast<std::uint32_t>(scale) == 0) return true;
  return scale >= IntLevels<Levels>::kMinScale && scale <= IntLevels<Levels>::kMaxScale;
}

inline float load_float(const std::byte* from) {
  float value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & kMagnitudeMask;
}

// Nearest level of a finite x; |x * inverse_scale| <= Levels + 1/2 by construction, so nothing is
// clamped.
inline std::int8_t quantize(float x, float inverse_scale) {
  const float shifted = x * inverse_scale + kRoundMagic;
  return static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(shifted) & 0xffU);
}

// Finite x to bf16, nearest-even; what would round to infinity becomes the largest bf16.
inline std::uint16_t bf16_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & kMagnitudeMask;
  std::uint32_t rounded = (magnitude + 0x7fffU + ((magnitude >> 16) & 1U)) >> 16;
  if (rounded > kLargestBf16) rounded = kLargestBf16;
  return static_cast<std::uint16_t>(rounded | ((bits >> 16) & 0x8000U));
}

inline float float_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace archipelago::codec
