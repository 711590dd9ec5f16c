#pragma once
// The scalar implementation: the definition of every result, and the vector kernels' tails.
#include <cstddef>

namespace archipelago::codec::reference {

bool encode_fp32(const float* in, std::size_t n, std::byte* out);
bool decode_fp32(const std::byte* in, std::size_t n, float* out);
void accumulate_fp32(const std::byte* in, std::size_t n, float weight, float* inout);
bool encode_bf16(const float* in, std::size_t n, std::byte* out);
bool decode_bf16(const std::byte* in, std::size_t n, float* out);
void accumulate_bf16(const std::byte* in, std::size_t n, float weight, float* inout);
bool encode_int8(const float* in, std::size_t n, std::byte* out);
bool decode_int8(const std::byte* in, std::size_t n, float* out);
void accumulate_int8(const std::byte* in, std::size_t n, float weight, float* inout);
bool encode_int4(const float* in, std::size_t n, std::byte* out);
bool decode_int4(const std::byte* in, std::size_t n, float* out);
void accumulate_int4(const std::byte* in, std::size_t n, float weight, float* inout);

double sumsq_chunk(const float* x, std::size_t n);
bool all_finite(const float* x, std::size_t n);
void scale(float* x, std::size_t n, float factor);
void axpy(float factor, const float* x, float* y, std::size_t n);
void subtract(const float* a, const float* b, float* out, std::size_t n);
void outer_step(float learning_rate, float mu, bool nesterov, const float* gradient,
                float* momentum, float* master, std::size_t n);

inline constexpr std::size_t kPartials = 32;  // interleaved partial sums of a chunk
double fold_partials(double* partials);       // halves onto each other: 16, 8, 4, 2, 1

}  // namespace archipelago::codec::reference
