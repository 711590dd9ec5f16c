// Compiled once per target by foreach_target.h. Whole blocks (or vectors) go through vectors, the
// rest through the scalar reference; no fused multiply-add anywhere (see the build flags), so all
// targets agree bit for bit.
#include "common/codec/fast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/fast_codec.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "common/codec/block.h"
#include "common/codec/reference.h"

HWY_BEFORE_NAMESPACE();
namespace archipelago::codec::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // one lane: the reference is as fast

bool EncodeFp32(const float* in, size_t n, std::byte* out) {
  return reference::encode_fp32(in, n, out);
}
bool DecodeFp32(const std::byte* in, size_t n, float* out) {
  return reference::decode_fp32(in, n, out);
}
void AccumulateFp32(const std::byte* in, size_t n, float w, float* y) {
  reference::accumulate_fp32(in, n, w, y);
}
bool EncodeBf16(const float* in, size_t n, std::byte* out) {
  return reference::encode_bf16(in, n, out);
}
bool DecodeBf16(const std::byte* in, size_t n, float* out) {
  return reference::decode_bf16(in, n, out);
}
void AccumulateBf16(const std::byte* in, size_t n, float w, float* y) {
  reference::accumulate_bf16(in, n, w, y);
}
bool EncodeInt8(const float* in, size_t n, std::byte* out) {
  return reference::encode_int8(in, n, out);
}
bool DecodeInt8(const std::byte* in, size_t n, float* out) {
  return reference::decode_int8(in, n, out);
}
void AccumulateInt8(const std::byte* in, size_t n, float w, float* y) {
  reference::accumulate_int8(in, n, w, y);
}
bool EncodeInt4(const float* in, size_t n, std::byte* out) {
  return reference::encode_int4(in, n, out);
}
bool DecodeInt4(const std::byte* in, size_t n, float* out) {
  return reference::decode_int4(in, n, out);
}
void AccumulateInt4(const std::byte* in, size_t n, float w, float* y) {
  reference::accumulate_int4(in, n, w, y);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::VFromD<DF>;
using DCode = hn::Rebind<int8_t, DF>;  // as many codes as a vector has floats
using DHalf = hn::Rebind<uint16_t, DF>;

HWY_INLINE const float* Floats(const std::byte* bytes) {
  return reinterpret_cast<const float*>(bytes);
}
HWY_INLINE const uint8_t* U8(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}
HWY_INLINE uint8_t* U8(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
HWY_INLINE const int8_t* I8(const std::byte* bytes) {
  return reinterpret_cast<const int8_t*>(bytes);
}
HWY_INLINE const uint16_t* U16(const std::byte* bytes) {
  return reinterpret_cast<const uint16_t*>(bytes);
}

// Bit patterns without the sign order like the magnitudes, with infinity and NaN above all finite
// ones.
HWY_INLINE hn::VFromD<DI> Magnitudes(const float* in) {
  return hn::And(hn::BitCast(DI(), hn::LoadU(DF(), in)), hn::Set(DI(), int32_t{0x7fffffff}));
}

HWY_INLINE uint32_t BlockAbsmaxBits(const float* in) {
  const DI d;
  const size_t N = hn::Lanes(d);
  auto max0 = hn::Zero(d);
  auto max1 = hn::Zero(d);
  for (size_t i = 0; i < kBlock; i += 2 * N) {
    max0 = hn::Max(max0, Magnitudes(in + i));
    max1 = hn::Max(max1, Magnitudes(in + i + N));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1))));
}

HWY_INLINE void QuantizeBlock(const float* in, float inverse_scale, uint8_t* codes) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const size_t N = hn::Lanes(d);
  const auto inverse = hn::Set(d, inverse_scale);
  const auto magic = hn::Set(d, kRoundMagic);
  for (size_t i = 0; i < kBlock; i += N) {
    const auto shifted = hn::Add(hn::Mul(hn::LoadU(d, in + i), inverse), magic);
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(DU(), shifted)), d8, codes + i);
  }
}

// Two codes of a 16-bit lane (little-endian: the even element first) into one byte.
HWY_INLINE void PackBlock(const uint8_t* codes, uint8_t* out) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const size_t N = hn::Lanes(d16);
  const auto low = hn::Set(d16, uint16_t{0x000f});
  const auto high = hn::Set(d16, uint16_t{0x00f0});
  for (size_t i = 0; i < kBlock / 2; i += N) {
    const auto pair =
        hn::BitCast(d16, hn::LoadU(hn::Repartition<uint8_t, decltype(d16)>(), codes + 2 * i));
    const auto packed = hn::Or(hn::And(pair, low), hn::And(hn::ShiftRight<4>(pair), high));
    hn::StoreU(hn::TruncateTo(d8, packed), d8, out + i);
  }
}

HWY_INLINE void UnpackBlock(const uint8_t* in, int8_t* codes) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const hn::Repartition<int8_t, decltype(d16)> d_codes;
  const size_t N = hn::Lanes(d16);
  const auto low = hn::Set(d16, uint16_t{0x000f});
  const auto high = hn::Set(d16, uint16_t{0x0f00});
  const auto eight = hn::Set(d_codes, int8_t{8});
  for (size_t i = 0; i < kBlock / 2; i += N) {
    const auto byte = hn::PromoteTo(d16, hn::LoadU(d8, in + i));
    const auto nibbles = hn::Or(hn::And(byte, low), hn::And(hn::ShiftLeft<4>(byte), high));
    const auto biased = hn::Xor(hn::BitCast(d_codes, nibbles), eight);
    hn::StoreU(hn::Sub(biased, eight), d_codes, codes + 2 * i);
  }
}

HWY_INLINE bool CodesInRange(const int8_t* codes, int8_t lowest) {
  const hn::ScalableTag<int8_t> d;
  const size_t N = hn::Lanes(d);
  auto min = hn::Zero(d);
  for (size_t i = 0; i < kBlock; i += N) min = hn::Min(min, hn::LoadU(d, codes + i));
  return hn::AllFalse(d, hn::Lt(min, hn::Set(d, lowest)));
}

HWY_INLINE VF Dequantize(const int8_t* codes, VF scale) {
  const auto wide = hn::PromoteTo(DI(), hn::LoadU(DCode(), codes));
  return hn::Mul(hn::ConvertTo(DF(), wide), scale);
}

// What differs between the int codecs; `scratch` holds a block of codes that are not bytes on the
// wire.
struct Int8Block {
  static constexpr int kLevels = 127;
  static constexpr size_t kBytes = kScaleBytes + kBlock;
  static HWY_INLINE uint8_t* QuantizeInto(std::byte* out, uint8_t*) { return U8(out); }
  static HWY_INLINE void Finish(const uint8_t*, std::byte*) {}
  static HWY_INLINE const int8_t* Codes(const std::byte* in, int8_t*) { return I8(in); }
};
struct Int4Block {
  static constexpr int kLevels = 7;
  static constexpr size_t kBytes = kScaleBytes + kBlock / 2;
  static HWY_INLINE uint8_t* QuantizeInto(std::byte*, uint8_t* scratch) { return scratch; }
  static HWY_INLINE void Finish(const uint8_t* codes, std::byte* out) { PackBlock(codes, U8(out)); }
  static HWY_INLINE const int8_t* Codes(const std::byte* in, int8_t* scratch) {
    UnpackBlock(U8(in), scratch);
    return scratch;
  }
};

template <class Block>
HWY_INLINE bool EncodeBlocks(const float* in, size_t blocks, std::byte* out) {
  HWY_ALIGN uint8_t scratch[kBlock];
  for (size_t b = 0; b < blocks; ++b, in += kBlock, out += Block::kBytes) {
    const uint32_t absmax = BlockAbsmaxBits(in);
    if (absmax >= kInfinityBits) return false;
    const float scale = scale_of<Block::kLevels>(std::bit_cast<float>(absmax));
    std::memcpy(out, &scale, kScaleBytes);
    if (scale == 0.0F) {
      std::memset(out + kScaleBytes, 0, Block::kBytes - kScaleBytes);
      continue;
    }
    uint8_t* codes = Block::QuantizeInto(out + kScaleBytes, scratch);
    QuantizeBlock(in, 1.0F / scale, codes);
    Block::Finish(codes, out + kScaleBytes);
  }
  return true;
}

template <class Block>
HWY_INLINE bool DecodeBlocks(const std::byte* in, size_t blocks, float* out) {
  const DF d;
  const size_t N = hn::Lanes(d);
  HWY_ALIGN int8_t scratch[kBlock];
  bool valid = true;
  for (size_t b = 0; b < blocks; ++b, in += Block::kBytes, out += kBlock) {
    const float scale = load_float(in);
    const int8_t* codes = Block::Codes(in + kScaleBytes, scratch);
    valid = valid && scale_is_valid<Block::kLevels>(scale) && CodesInRange(codes, -Block::kLevels);
    const auto scales = hn::Set(d, scale);
    for (size_t i = 0; i < kBlock; i += N) hn::StoreU(Dequantize(codes + i, scales), d, out + i);
  }
  return valid;
}

template <class Block>
HWY_INLINE void AccumulateBlocks(const std::byte* in, size_t blocks, float weight, float* inout) {
  const DF d;
  const size_t N = hn::Lanes(d);
  HWY_ALIGN int8_t scratch[kBlock];
  const auto weights = hn::Set(d, weight);
  for (size_t b = 0; b < blocks; ++b, in += Block::kBytes, inout += kBlock) {
    const auto scales = hn::Set(d, load_float(in));
    const int8_t* codes = Block::Codes(in + kScaleBytes, scratch);
    for (size_t i = 0; i < kBlock; i += N) {
      const auto addend = hn::Mul(weights, Dequantize(codes + i, scales));
      hn::StoreU(hn::Add(hn::LoadU(d, inout + i), addend), d, inout + i);
    }
  }
}

bool EncodeInt8(const float* in, size_t n, std::byte* out) {
  const size_t blocks = n / kBlock;
  return EncodeBlocks<Int8Block>(in, blocks, out) &&
         reference::encode_int8(in + blocks * kBlock, n % kBlock, out + blocks * Int8Block::kBytes);
}
bool DecodeInt8(const std::byte* in, size_t n, float* out) {
  const size_t blocks = n / kBlock;
  const bool valid = DecodeBlocks<Int8Block>(in, blocks, out);
  return reference::decode_int8(in + blocks * Int8Block::kBytes, n % kBlock,
                                out + blocks * kBlock) &&
         valid;
}
void AccumulateInt8(const std::byte* in, size_t n, float weight, float* inout) {
  const size_t blocks = n / kBlock;
  AccumulateBlocks<Int8Block>(in, blocks, weight, inout);
  reference::accumulate_int8(in + blocks * Int8Block::kBytes, n % kBlock, weight,
                             inout + blocks * kBlock);
}
bool EncodeInt4(const float* in, size_t n, std::byte* out) {
  const size_t blocks = n / kBlock;
  return EncodeBlocks<Int4Block>(in, blocks, out) &&
         reference::encode_int4(in + blocks * kBlock, n % kBlock, out + blocks * Int4Block::kBytes);
}
bool DecodeInt4(const std::byte* in, size_t n, float* out) {
  const size_t blocks = n / kBlock;
  const bool valid = DecodeBlocks<Int4Block>(in, blocks, out);
  return reference::decode_int4(in + blocks * Int4Block::kBytes, n % kBlock,
                                out + blocks * kBlock) &&
         valid;
}
void AccumulateInt4(const std::byte* in, size_t n, float weight, float* inout) {
  const size_t blocks = n / kBlock;
  AccumulateBlocks<Int4Block>(in, blocks, weight, inout);
  reference::accumulate_int4(in + blocks * Int4Block::kBytes, n % kBlock, weight,
                             inout + blocks * kBlock);
}

// Elements in [0, n) that whole vectors cover.
HWY_INLINE size_t Covered(size_t n) { return n - n % hn::Lanes(DF()); }

// Neither pointer need be aligned, so only vector loads and stores touch them. Says whether all
// were finite.
HWY_INLINE bool CopyVectors(const float* in, size_t covered, float* out) {
  const DF d;
  auto max = hn::Zero(DI());
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    max = hn::Max(max, Magnitudes(in + i));
    hn::StoreU(hn::LoadU(d, in + i), d, out + i);
  }
  return hn::AllTrue(DI(), hn::Lt(max, hn::Set(DI(), static_cast<int32_t>(kInfinityBits))));
}

bool EncodeFp32(const float* in, size_t n, std::byte* out) {
  const size_t covered = Covered(n);
  const bool finite = CopyVectors(in, covered, reinterpret_cast<float*>(out));
  return reference::encode_fp32(in + covered, n - covered, out + 4 * covered) && finite;
}
bool DecodeFp32(const std::byte* in, size_t n, float* out) {
  const size_t covered = Covered(n);
  const bool finite = CopyVectors(Floats(in), covered, out);
  return reference::decode_fp32(in + 4 * covered, n - covered, out + covered) && finite;
}
void AccumulateFp32(const std::byte* in, size_t n, float weight, float* inout) {
  const DF d;
  const size_t covered = Covered(n);
  const auto weights = hn::Set(d, weight);
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    const auto addend = hn::Mul(weights, hn::LoadU(d, Floats(in) + i));
    hn::StoreU(hn::Add(hn::LoadU(d, inout + i), addend), d, inout + i);
  }
  reference::accumulate_fp32(in + 4 * covered, n - covered, weight, inout + covered);
}

bool EncodeBf16(const float* in, size_t n, std::byte* out) {
  const DU d;
  const DHalf d16;
  const size_t covered = Covered(n);
  const auto half = hn::Set(d, 0x7fffU);
  const auto one = hn::Set(d, 1U);
  const auto largest = hn::Set(d, kLargestBf16);
  auto max = hn::Zero(DI());
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    const auto bits = hn::BitCast(d, hn::LoadU(DF(), in + i));
    const auto signed_magnitude = Magnitudes(in + i);
    max = hn::Max(max, signed_magnitude);
    const auto magnitude = hn::BitCast(d, signed_magnitude);
    const auto odd = hn::And(hn::ShiftRight<16>(magnitude), one);
    const auto rounded = hn::ShiftRight<16>(hn::Add(magnitude, hn::Add(half, odd)));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000U));
    const auto code = hn::Or(hn::Min(rounded, largest), sign);
    hn::StoreU(hn::TruncateTo(d16, code), d16, reinterpret_cast<uint16_t*>(out) + i);
  }
  const bool finite =
      hn::AllTrue(DI(), hn::Lt(max, hn::Set(DI(), static_cast<int32_t>(kInfinityBits))));
  return reference::encode_bf16(in + covered, n - covered, out + 2 * covered) && finite;
}

HWY_INLINE VF LoadBf16(const uint16_t* in) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(DHalf(), in))));
}
bool DecodeBf16(const std::byte* in, size_t n, float* out) {
  const DF d;
  const size_t covered = Covered(n);
  auto max = hn::Zero(DI());
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    const auto value = LoadBf16(U16(in) + i);
    max = hn::Max(max, hn::And(hn::BitCast(DI(), value), hn::Set(DI(), int32_t{0x7fffffff})));
    hn::StoreU(value, d, out + i);
  }
  const bool finite =
      hn::AllTrue(DI(), hn::Lt(max, hn::Set(DI(), static_cast<int32_t>(kInfinityBits))));
  return reference::decode_bf16(in + 2 * covered, n - covered, out + covered) && finite;
}
void AccumulateBf16(const std::byte* in, size_t n, float weight, float* inout) {
  const DF d;
  const size_t covered = Covered(n);
  const auto weights = hn::Set(d, weight);
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    const auto addend = hn::Mul(weights, LoadBf16(U16(in) + i));
    hn::StoreU(hn::Add(hn::LoadU(d, inout + i), addend), d, inout + i);
  }
  reference::accumulate_bf16(in + 2 * covered, n - covered, weight, inout + covered);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace archipelago::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace archipelago::codec {
namespace {
HWY_EXPORT(EncodeFp32);
HWY_EXPORT(DecodeFp32);
HWY_EXPORT(AccumulateFp32);
HWY_EXPORT(EncodeBf16);
HWY_EXPORT(DecodeBf16);
HWY_EXPORT(AccumulateBf16);
HWY_EXPORT(EncodeInt8);
HWY_EXPORT(DecodeInt8);
HWY_EXPORT(AccumulateInt8);
HWY_EXPORT(EncodeInt4);
HWY_EXPORT(DecodeInt4);
HWY_EXPORT(AccumulateInt4);
}  // namespace

namespace fast {
bool encode_fp32(const float* in, size_t n, std::byte* out) {
  return HWY_DYNAMIC_DISPATCH(EncodeFp32)(in, n, out);
}
bool decode_fp32(const std::byte* in, size_t n, float* out) {
  return HWY_DYNAMIC_DISPATCH(DecodeFp32)(in, n, out);
}
void accumulate_fp32(const std::byte* in, size_t n, float weight, float* inout) {
  HWY_DYNAMIC_DISPATCH(AccumulateFp32)(in, n, weight, inout);
}
bool encode_bf16(const float* in, size_t n, std::byte* out) {
  return HWY_DYNAMIC_DISPATCH(EncodeBf16)(in, n, out);
}
bool decode_bf16(const std::byte* in, size_t n, float* out) {
  return HWY_DYNAMIC_DISPATCH(DecodeBf16)(in, n, out);
}
void accumulate_bf16(const std::byte* in, size_t n, float weight, float* inout) {
  HWY_DYNAMIC_DISPATCH(AccumulateBf16)(in, n, weight, inout);
}
bool encode_int8(const float* in, size_t n, std::byte* out) {
  return HWY_DYNAMIC_DISPATCH(EncodeInt8)(in, n, out);
}
bool decode_int8(const std::byte* in, size_t n, float* out) {
  return HWY_DYNAMIC_DISPATCH(DecodeInt8)(in, n, out);
}
void accumulate_int8(const std::byte* in, size_t n, float weight, float* inout) {
  HWY_DYNAMIC_DISPATCH(AccumulateInt8)(in, n, weight, inout);
}
bool encode_int4(const float* in, size_t n, std::byte* out) {
  return HWY_DYNAMIC_DISPATCH(EncodeInt4)(in, n, out);
}
bool decode_int4(const std::byte* in, size_t n, float* out) {
  return HWY_DYNAMIC_DISPATCH(DecodeInt4)(in, n, out);
}
void accumulate_int4(const std::byte* in, size_t n, float weight, float* inout) {
  HWY_DYNAMIC_DISPATCH(AccumulateInt4)(in, n, weight, inout);
}
}  // namespace fast

}  // namespace archipelago::codec
#endif  // HWY_ONCE
