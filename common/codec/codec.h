#pragma once
// Encodings of one tensor's fp32 elements: what uploads, deltas and keyframes carry
// (docs/wire-format.md).
//
// A tensor is encoded by itself: blocks of 256 elements restart at each tensor and the last block
// may be partial. An int block is its fp32 scale followed by its codes, so any 256-aligned range of
// a tensor is one contiguous range of bytes. All numbers little-endian. Every function gives the
// same bits on every machine: the vector kernels are tested against the scalar reference
// (reference.h) on every target.
//
//   codec  levels      scale            error of a finite element x
//   fp32   exact       -                0
//   bf16   -           -                nearest-even; beyond the largest bf16: saturated, never
//   infinite int8   -127..127   absmax / 127     <= scale * (1/2 + 4 * 127 * 2^-24) int4   -7..7
//   absmax / 7       <= scale * (1/2 + 4 * 7 * 2^-24)
//
// A block whose absmax is below kTinyBlock (2^-116) is encoded as zeros (scale 0): above it no
// scale, inverse or code depends on denormals, so flush-to-zero changes nothing.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/result.h"

namespace archipelago::codec {

enum class Codec : std::uint8_t { kFp32 = 0, kBf16 = 1, kInt8 = 2, kInt4 = 3 };

inline constexpr std::size_t kBlock = 256;   // elements sharing one scale
inline constexpr std::size_t kChunk = 4096;  // elements of a reduction chunk; a multiple of kBlock
inline constexpr float kTinyBlock = 0x1p-116F;

[[nodiscard]] std::string_view name(Codec codec);
[[nodiscard]] Result<Codec> parse_codec(
    std::string_view text);  // "fp32" | "bf16" | "int8" | "int4", else kInvalid
[[nodiscard]] Result<Codec> codec_from_byte(std::uint8_t byte);  // else kUnsupported

// Bytes of one encoded tensor. 64-bit; elements <= 2^60 (checked by whoever reads a size from a
// peer).
[[nodiscard]] std::size_t encoded_size(Codec codec, std::size_t elements);

// kInvalid: out.size() is not encoded_size(codec, in.size()). kRefused: a NaN or infinity in `in`;
// `out` is then unspecified and must not be sent.
[[nodiscard]] Status encode(Codec codec, std::span<const float> in, std::span<std::byte> out);

// For bytes from anybody. kInvalid: sizes differ. kRefused: a non-finite value, a scale that is
// negative, below what an encoder makes or so large that scale * levels overflows, or a code
// outside the levels (-128, -8).
[[nodiscard]] Status decode(Codec codec, std::span<const std::byte> in, std::span<float> out);

// For bytes that passed decode or validate_norm2. `tensor_bytes` is the whole encoded tensor of
// `total` elements; elements [first, first + out.size()) are decoded. `first` is a multiple of
// kBlock; the range ends on a multiple of kBlock or at `total`. Anything else is a bug and aborts.
void decode_range(Codec codec, std::span<const std::byte> tensor_bytes, std::size_t total,
                  std::size_t first, std::span<float> out);
// inout[i] += weight * decoded[i]: one rounding for the product, one for the sum (no FMA).
void decode_accumulate_range(Codec codec, std::span<const std::byte> tensor_bytes,
                             std::size_t total, std::size_t first, float weight,
                             std::span<float> inout);

// One pass over bytes from anybody: the checks of decode, and the sum of squares of the decoded
// elements in double, reduced over kChunk-element chunks in index order (kernels.h sumsq of the
// decoded tensor, bit for bit).
[[nodiscard]] Result<double> validate_norm2(Codec codec, std::span<const std::byte> tensor_bytes,
                                            std::size_t total);

}  // namespace archipelago::codec
