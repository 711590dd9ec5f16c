#include "common/codec/codec.h"

#include <algorithm>
#include <array>
#include <string>

#include "common/base/check.h"
#include "common/codec/fast.h"
#include "common/codec/reference.h"
#include "common/codec/traits.h"

namespace archipelago::codec {
namespace {

constexpr std::array<CodecTraits, 4> kTable{{
    {Codec::kFp32,
     "fp32",
     0,
     32,
     {fast::encode_fp32, fast::decode_fp32, fast::accumulate_fp32},
     {reference::encode_fp32, reference::decode_fp32, reference::accumulate_fp32}},
    {Codec::kBf16,
     "bf16",
     0,
     16,
     {fast::encode_bf16, fast::decode_bf16, fast::accumulate_bf16},
     {reference::encode_bf16, reference::decode_bf16, reference::accumulate_bf16}},
    {Codec::kInt8,
     "int8",
     4,
     8,
     {fast::encode_int8, fast::decode_int8, fast::accumulate_int8},
     {reference::encode_int8, reference::decode_int8, reference::accumulate_int8}},
    {Codec::kInt4,
     "int4",
     4,
     4,
     {fast::encode_int4, fast::decode_int4, fast::accumulate_int4},
     {reference::encode_int4, reference::decode_int4, reference::accumulate_int4}},
}};

Error size_error(Codec codec, std::size_t elements, std::size_t bytes) {
  return {ErrorKind::kInvalid, "encoded tensor: " + std::to_string(bytes) + " bytes given, " +
                                   std::string(name(codec)) + " of " + std::to_string(elements) +
                                   " elements takes " +
                                   std::to_string(encoded_size(codec, elements))};
}

Error content_error(Codec codec) {
  return {ErrorKind::kRefused,
          std::string(name(codec)) +
              " tensor holds a non-finite value, or a scale or code that no encoder writes"};
}

// First byte of element `first` after the bounds that callers promise.
const std::byte* range_start(Codec codec, std::span<const std::byte> bytes, std::size_t total,
                             std::size_t first, std::size_t count) {
  ARCH_CHECK(bytes.size() == encoded_size(codec, total),
             "bytes " << bytes.size() << " total " << total);
  ARCH_CHECK(first % kBlock == 0 && first <= total && count <= total - first,
             "first " << first << " count " << count << " total " << total);
  ARCH_CHECK(count % kBlock == 0 || first + count == total,
             "range ends inside a block: " << first + count);
  return bytes.data() + first / kBlock * traits(codec).block_bytes(kBlock);
}

}  // namespace

const CodecTraits& traits(Codec codec) {
  const auto index = static_cast<std::size_t>(codec);
  ARCH_CHECK(index < kTable.size(), "codec " << index);
  return kTable[index];
}

std::string_view name(Codec codec) { return traits(codec).name; }

Result<Codec> parse_codec(std::string_view text) {
  for (const CodecTraits& entry : kTable) {
    if (entry.name == text) return entry.codec;
  }
  return fail(ErrorKind::kInvalid, "codec '" + std::string(text.substr(0, 32)) +
                                       "' is not one of fp32, bf16, int8, int4");
}

Result<Codec> codec_from_byte(std::uint8_t byte) {
  if (byte < kTable.size()) return kTable[byte].codec;
  return fail(ErrorKind::kUnsupported,
              "codec " + std::to_string(int{byte}) +
                  " is unknown to this build (0 fp32, 1 bf16, 2 int8, 3 int4)");
}

std::size_t encoded_size(Codec codec, std::size_t elements) {
  const CodecTraits& entry = traits(codec);
  const std::size_t tail = elements % kBlock;
  return elements / kBlock * entry.block_bytes(kBlock) + (tail > 0 ? entry.block_bytes(tail) : 0);
}

Status encode(Codec codec, std::span<const float> in, std::span<std::byte> out) {
  if (out.size() != encoded_size(codec, in.size()))
    return fail(size_error(codec, in.size(), out.size()));
  if (!traits(codec).fast.encode(in.data(), in.size(), out.data())) {
    return fail(ErrorKind::kRefused, "cannot encode a tensor with non-finite values");
  }
  return {};
}

Status decode(Codec codec, std::span<const std::byte> in, std::span<float> out) {
  if (in.size() != encoded_size(codec, out.size()))
    return fail(size_error(codec, out.size(), in.size()));
  if (!traits(codec).fast.decode(in.data(), out.size(), out.data()))
    return fail(content_error(codec));
  return {};
}

void decode_range(Codec codec, std::span<const std::byte> tensor_bytes, std::size_t total,
                  std::size_t first, std::span<float> out) {
  const std::byte* start = range_start(codec, tensor_bytes, total, first, out.size());
  traits(codec).fast.decode(start, out.size(), out.data());
}

void decode_accumulate_range(Codec codec, std::span<const std::byte> tensor_bytes,
                             std::size_t total, std::size_t first, float weight,
                             std::span<float> inout) {
  const std::byte* start = range_start(codec, tensor_bytes, total, first, inout.size());
  traits(codec).fast.accumulate(start, inout.size(), weight, inout.data());
}

Result<double> validate_norm2(Codec codec, std::span<const std::byte> tensor_bytes,
                              std::size_t total) {
  if (tensor_bytes.size() != encoded_size(codec, total))
    return fail(size_error(codec, total, tensor_bytes.size()));
  const RunFunctions& run = traits(codec).fast;
  const std::size_t chunk_bytes = kChunk / kBlock * traits(codec).block_bytes(kBlock);
  std::array<float, kChunk> chunk;
  double sum = 0.0;
  const std::byte* bytes = tensor_bytes.data();
  for (std::size_t first = 0; first < total; first += kChunk, bytes += chunk_bytes) {
    const std::size_t count = std::min(kChunk, total - first);
    if (!run.decode(bytes, count, chunk.data())) {
      return fail(content_error(codec).with_context("elements from " + std::to_string(first)));
    }
    sum += fast_kernels().sumsq_chunk(chunk.data(), count);
  }
  return sum;
}

}  // namespace archipelago::codec
