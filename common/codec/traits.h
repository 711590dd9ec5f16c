#pragma once
// The table of codecs: geometry of a block and the functions over a run of elements that starts at
// a block boundary.
#include <cstddef>
#include <string_view>

#include "common/codec/codec.h"

namespace archipelago::codec {

// `n` elements, the last block possibly partial; byte pointers need no alignment. false: as
// encode/decode's kRefused.
struct RunFunctions {
  bool (*encode)(const float* in, std::size_t n, std::byte* out);
  bool (*decode)(const std::byte* in, std::size_t n,
                 float* out);  // writes every element even when it says false
  void (*accumulate)(const std::byte* in, std::size_t n, float weight, float* inout);
};

struct CodecTraits {
  Codec codec;
  std::string_view name;
  std::size_t header_bytes;  // of a block: the scale
  std::size_t bits;          // of an element
  RunFunctions fast;
  RunFunctions reference;

  [[nodiscard]] constexpr std::size_t block_bytes(std::size_t n) const {
    return header_bytes + (n * bits + 7) / 8;
  }
};

[[nodiscard]] const CodecTraits& traits(Codec codec);

// The merge kernels' implementations, `n` elements each (meaning: kernels.h).
struct KernelFunctions {
  double (*sumsq_chunk)(const float* x, std::size_t n);  // n <= kChunk
  bool (*all_finite)(const float* x, std::size_t n);
  void (*scale)(float* x, std::size_t n, float factor);
  void (*axpy)(float factor, const float* x, float* y, std::size_t n);
  void (*subtract)(const float* a, const float* b, float* out, std::size_t n);
  void (*outer_step)(float learning_rate, float mu, bool nesterov, const float* gradient,
                     float* momentum, float* master, std::size_t n);
};

[[nodiscard]] const KernelFunctions& fast_kernels();
[[nodiscard]] const KernelFunctions& reference_kernels();

}  // namespace archipelago::codec
