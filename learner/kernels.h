#pragma once
// The decoder's element-wise passes, each fused into one sweep over memory: plain loops that the
// compiler vectorises for each x86-64 level (chosen at run time), no libtorch. T is float or Bf16.
// Rows are contiguous unless a stride is given. Every function works on a range so that the caller
// can split it over threads; no result depends on the split but weight gradients, which the caller
// adds up per thread.
#include <cstddef>
#include <cstdint>

namespace archipelago::learner::kernels {

struct Bf16 {
  std::uint16_t bits;
};

// sum = h + delta (the residual stream; delta null: h itself is normalised and sum not written),
// then out = sum · rsqrt(mean(sum²) + eps) · weight; rstd keeps one value a row for the backward
// pass.
void add_rms_norm(const float* h, const float* delta, const float* weight, float eps,
                  std::int64_t rows, std::int64_t hidden, float* sum, float* out, float* rstd);
void add_rms_norm(const float* h, const Bf16* delta, const float* weight, float eps,
                  std::int64_t rows, std::int64_t hidden, float* sum, Bf16* out, float* rstd);
// grad_h = grad_residual (may be null) + d(out)/dh; weight_grad (hidden) is added to.
void rms_norm_backward(const float* h, const float* weight, const float* rstd,
                       const float* grad_out, const float* grad_residual, std::int64_t rows,
                       std::int64_t hidden, float* grad_h, float* weight_grad);
void rms_norm_backward(const float* h, const float* weight, const float* rstd, const Bf16* grad_out,
                       const float* grad_residual, std::int64_t rows, std::int64_t hidden,
                       float* grad_h, float* weight_grad);

// Rotary embedding in Hugging Face's rotate_half convention on `heads` consecutive heads of each
// row, in place. row r has position r mod context; row stride in elements; cos, sin: [context,
// head/2]; sign -1 is the inverse.
struct RopeShape {
  std::int64_t row_stride = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  std::int64_t context = 0;
};
void rope(float* x, const RopeShape& shape, const float* cos, const float* sin, float sign,
          std::int64_t row_begin, std::int64_t row_end);
void rope(Bf16* x, const RopeShape& shape, const float* cos, const float* sin, float sign,
          std::int64_t row_begin, std::int64_t row_end);

// gate_up rows are [gate (inner), up (inner)]; out = silu(gate) · up.
void swiglu(const float* gate_up, std::int64_t rows, std::int64_t inner, float* out);
void swiglu(const Bf16* gate_up, std::int64_t rows, std::int64_t inner, Bf16* out);
void swiglu_backward(const float* gate_up, const float* grad_out, std::int64_t rows,
                     std::int64_t inner, float* grad);
void swiglu_backward(const Bf16* gate_up, const Bf16* grad_out, std::int64_t rows,
                     std::int64_t inner, Bf16* grad);

// Sum of squares in double over fixed chunks of 4,096: the same for every split at chunk borders.
[[nodiscard]] double sum_of_squares(const float* x, std::int64_t n);

// AdamW with decoupled decay (Loshchilov and Hutter), one sweep; the gradient is scaled first
// (clipping, accumulation).
struct AdamW {
  float lr, beta1, beta2, eps, decay;
  float grad_scale;
  float correction1, correction2;  // 1 - beta^step
};
void adamw(const AdamW& s, float* w, const float* g, float* m, float* v, std::int64_t n);

// Muon's momentum (Nesterov, as an average like PyTorch's): m <- m + (1 - mu)(g - m), then
// direction = g + mu (m - g), with g the scaled gradient.
void muon_momentum(const float* g, float grad_scale, float mu, float* m, float* direction,
                   std::int64_t n);
// w <- keep w - step direction
void decayed_step(float keep, float step, const float* direction, float* w, std::int64_t n);

void to_bf16(const float* in, Bf16* out, std::int64_t n);
void to_float(const Bf16* in, float* out, std::int64_t n);

}  // namespace archipelago::learner::kernels
