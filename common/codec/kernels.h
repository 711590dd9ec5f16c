#pragma once
// Elementwise fp32 kernels of the merge (protocol.md §2.7, §2.9). Each equals its scalar reference
// bit for bit on every machine: products and sums are rounded separately, reductions run over fixed
// chunks in index order. Spans of one call have equal sizes (else it aborts: a bug) and may not
// overlap unless said.
#include <span>

namespace archipelago::codec {

// Sum of squares in double: per kChunk elements 32 interleaved partial sums folded in halves,
// chunks added in index order.
[[nodiscard]] double sumsq(std::span<const float> x);
[[nodiscard]] bool all_finite(std::span<const float> x);

// x *= factor
void scale_inplace(std::span<float> x, float factor);
// y += factor * x
void axpy(float factor, std::span<const float> x, std::span<float> y);
// out = a - b; out may be a or b.
void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out);

struct OuterStep {
  float learning_rate = 0.0F;
  float momentum = 0.0F;
  bool nesterov = true;
};
// momentum = mu * momentum + gradient; master -= lr * (nesterov ? gradient + mu * momentum :
// momentum).
void outer_step(const OuterStep& step, std::span<const float> gradient, std::span<float> momentum,
                std::span<float> master);

}  // namespace archipelago::codec
