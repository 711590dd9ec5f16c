#include "common/codec/reference.h"

#include <algorithm>
#include <array>

#include "common/codec/block.h"

namespace archipelago::codec::reference {
namespace {

std::uint16_t load_u16(const std::byte* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Codes of one block to and from bytes.
struct Int8Codes {
  static constexpr int kLevels = 127;
  static constexpr std::size_t bytes(std::size_t n) { return n; }
  static void store(const std::int8_t* codes, std::size_t n, std::byte* out) {
    std::memcpy(out, codes, n);
  }
  static void load(const std::byte* in, std::size_t n, std::int8_t* codes) {
    std::memcpy(codes, in, n);
  }
};

struct Int4Codes {
  static constexpr int kLevels = 7;
  static constexpr std::size_t bytes(std::size_t n) { return (n + 1) / 2; }
  // Byte i holds element 2i in its low half and 2i+1 in its high half; an odd count leaves a high
  // half of zeros.
  static void store(const std::int8_t* codes, std::size_t n, std::byte* out) {
    for (std::size_t i = 0; i < n; i += 2) {
      const unsigned low = static_cast<unsigned>(codes[i]) & 0xfU;
      const unsigned high = i + 1 < n ? static_cast<unsigned>(codes[i + 1]) & 0xfU : 0U;
      out[i / 2] = static_cast<std::byte>(low | (high << 4));
    }
  }
  static void load(const std::byte* in, std::size_t n, std::int8_t* codes) {
    for (std::size_t i = 0; i < n; ++i) {
      const unsigned byte = std::to_integer<unsigned>(in[i / 2]);
      const unsigned nibble = i % 2 == 0 ? byte & 0xfU : byte >> 4;
      codes[i] = static_cast<std::int8_t>(static_cast<int>(nibble ^ 8U) - 8);
    }
  }
};

template <class Codes>
bool encode_block(const float* in, std::size_t n, std::byte* out) {
  std::uint32_t absmax = 0;
  for (std::size_t i = 0; i < n; ++i) absmax = std::max(absmax, magnitude_bits(in[i]));
  if (absmax >= kInfinityBits) return false;
  const float scale = scale_of<Codes::kLevels>(std::bit_cast<float>(absmax));
  std::array<std::int8_t, kBlock> codes{};
  if (scale != 0.0F) {
    const float inverse = 1.0F / scale;
    for (std::size_t i = 0; i < n; ++i) codes[i] = quantize(in[i], inverse);
  }
  std::memcpy(out, &scale, kScaleBytes);
  Codes::store(codes.data(), n, out + kScaleBytes);
  return true;
}

template <class Codes>
bool encode_int(const float* in, std::size_t n, std::byte* out) {
  while (n > 0) {
    const std::size_t count = std::min(n, kBlock);
    if (!encode_block<Codes>(in, count, out)) return false;
    in += count;
    out += kScaleBytes + Codes::bytes(count);
    n -= count;
  }
  return true;
}

// each(index, decoded value); true when every scale and code is one that an encoder writes.
template <class Codes, class Each>
bool for_each_int(const std::byte* in, std::size_t n, Each each) {
  bool valid = true;
  for (std::size_t done = 0; done < n;) {
    const std::size_t count = std::min(n - done, kBlock);
    const float scale = load_float(in);
    std::array<std::int8_t, kBlock> codes;
    Codes::load(in + kScaleBytes, count, codes.data());
    valid = valid && scale_is_valid<Codes::kLevels>(scale);
    for (std::size_t i = 0; i < count; ++i) {
      valid = valid && codes[i] >= -Codes::kLevels;
      each(done + i, static_cast<float>(codes[i]) * scale);
    }
    done += count;
    in += kScaleBytes + Codes::bytes(count);
  }
  return valid;
}

template <class Codes>
bool decode_int(const std::byte* in, std::size_t n, float* out) {
  return for_each_int<Codes>(in, n, [out](std::size_t i, float value) { out[i] = value; });
}

template <class Codes>
void accumulate_int(const std::byte* in, std::size_t n, float weight, float* inout) {
  for_each_int<Codes>(in, n, [=](std::size_t i, float value) { inout[i] += weight * value; });
}

}  // namespace

bool encode_fp32(const float* in, std::size_t n, std::byte* out) {
  if (n > 0) std::memcpy(out, in, n * sizeof(float));
  return all_finite(in, n);
}

bool decode_fp32(const std::byte* in, std::size_t n, float* out) {
  if (n > 0) std::memcpy(out, in, n * sizeof(float));
  return all_finite(out, n);
}

void accumulate_fp32(const std::byte* in, std::size_t n, float weight, float* inout) {
  for (std::size_t i = 0; i < n; ++i) inout[i] += weight * load_float(in + 4 * i);
}

bool encode_bf16(const float* in, std::size_t n, std::byte* out) {
  for (std::size_t i = 0; i < n; ++i) {
    if (magnitude_bits(in[i]) >= kInfinityBits) return false;
    const std::uint16_t bits = bf16_of(in[i]);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
  return true;
}

bool decode_bf16(const std::byte* in, std::size_t n, float* out) {
  bool valid = true;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t bits = load_u16(in + 2 * i);
    valid = valid && (bits & 0x7fffU) < kInfinityBf16;
    out[i] = float_of_bf16(bits);
  }
  return valid;
}

void accumulate_bf16(const std::byte* in, std::size_t n, float weight, float* inout) {
  for (std::size_t i = 0; i < n; ++i) inout[i] += weight * float_of_bf16(load_u16(in + 2 * i));
}

bool encode_int8(const float* in, std::size_t n, std::byte* out) {
  return encode_int<Int8Codes>(in, n, out);
}
bool decode_int8(const std::byte* in, std::size_t n, float* out) {
  return decode_int<Int8Codes>(in, n, out);
}
void accumulate_int8(const std::byte* in, std::size_t n, float weight, float* inout) {
  accumulate_int<Int8Codes>(in, n, weight, inout);
}
bool encode_int4(const float* in, std::size_t n, std::byte* out) {
  return encode_int<Int4Codes>(in, n, out);
}
bool decode_int4(const std::byte* in, std::size_t n, float* out) {
  return decode_int<Int4Codes>(in, n, out);
}
void accumulate_int4(const std::byte* in, std::size_t n, float weight, float* inout) {
  accumulate_int<Int4Codes>(in, n, weight, inout);
}

double fold_partials(double* partials) {
  for (std::size_t half = kPartials / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) partials[i] += partials[i + half];
  }
  return partials[0];
}

double sumsq_chunk(const float* x, std::size_t n) {
  std::array<double, kPartials> partials{};
  for (std::size_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(x[i]);
    partials[i % kPartials] += value * value;  // exact product: 48 bits
  }
  return fold_partials(partials.data());
}

bool all_finite(const float* x, std::size_t n) {
  return std::all_of(x, x + n, [](float v) { return magnitude_bits(v) < kInfinityBits; });
}

void scale(float* x, std::size_t n, float factor) {
  for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

void axpy(float factor, const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

void subtract(const float* a, const float* b, float* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = a[i] - b[i];
}

void outer_step(float learning_rate, float mu, bool nesterov, const float* gradient,
                float* momentum, float* master, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    momentum[i] = mu * momentum[i] + gradient[i];
    const float update = nesterov ? gradient[i] + mu * momentum[i] : momentum[i];
    master[i] -= learning_rate * update;
  }
}

}  // namespace archipelago::codec::reference
