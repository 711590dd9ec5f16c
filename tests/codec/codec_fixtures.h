#pragma once
// Generators shared by the codec tests: seeded, the same on every machine.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "common/codec/codec.h"

namespace archipelago::codec::test {

inline constexpr std::array<Codec, 4> kAllCodecs{Codec::kFp32, Codec::kBf16, Codec::kInt8,
                                                 Codec::kInt4};
inline constexpr std::array<Codec, 2> kIntCodecs{Codec::kInt8, Codec::kInt4};

// Lengths around every boundary that a kernel has: lanes, blocks, chunks.
inline std::vector<std::size_t> lengths() {
  return {0,   1,   2,   3,   15,  16,  17,  31,  32,  33,   63,   64,   65,   127,
          128, 129, 255, 256, 257, 511, 512, 513, 768, 1000, 4095, 4096, 4097, 8193};
}

// Magnitudes spread over the whole exponent range in some tensors, ordinary gradients in others.
inline std::vector<float> random_tensor(Rng& rng, std::size_t n) {
  std::vector<float> values(n);
  const auto style = rng.below(4);
  for (float& x : values) {
    if (style == 0) {
      x = static_cast<float>(rng.normal());
    } else if (style == 1) {
      const double exponent = rng.uniform(-140.0, 127.0);
      x = static_cast<float>(std::exp2(exponent) * (rng.chance(0.5) ? 1.0 : -1.0));
    } else if (style == 2) {
      x = rng.chance(0.9) ? 0.0F : static_cast<float>(rng.normal() * 1e-3);
    } else {  // halves of a step, where the rule for ties decides
      x = static_cast<float>(static_cast<double>(rng.below(255)) - 127.0) * 0.5F;
    }
  }
  return values;
}

inline std::vector<std::byte> encoded(Codec codec, const std::vector<float>& in) {
  std::vector<std::byte> out(encoded_size(codec, in.size()));
  if (!encode(codec, in, out)) return {};
  return out;
}

inline std::vector<float> decoded(Codec codec, const std::vector<std::byte>& in, std::size_t n) {
  std::vector<float> out(n);
  if (!decode(codec, in, out)) return {};
  return out;
}

inline std::vector<float> round_trip(Codec codec, const std::vector<float>& in) {
  return decoded(codec, encoded(codec, in), in.size());
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline float scale_at(const std::vector<std::byte>& bytes, std::size_t offset) {
  float scale;
  std::memcpy(&scale, bytes.data() + offset, sizeof scale);
  return scale;
}

inline double levels(Codec codec) { return codec == Codec::kInt8 ? 127.0 : 7.0; }

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kMax = std::numeric_limits<float>::max();

}  // namespace archipelago::codec::test
