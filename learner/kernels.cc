#include "learner/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

// Compiled once for each level of x86-64; the loader picks. Sanitizers don't get along with ifuncs,
// so not there.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ARCH_CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define ARCH_CLONES
#endif

#define ARCH_INLINE inline __attribute__((always_inline))

namespace archipelago::learner::kernels {
namespace {

ARCH_INLINE float load(const float* p) { return *p; }
ARCH_INLINE float load(const Bf16* p) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(p->bits) << 16);
}
ARCH_INLINE void store(float* p, float v) { *p = v; }
ARCH_INLINE void store(Bf16* p, float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  p->bits = static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

// exp by 2^n · polynomial (Cephes' expf coefficients): relative error below 2e-7 for |x| <= 87,
// clamped beyond. Written out because calls to expf are not vectorised without -ffast-math.
ARCH_INLINE float exp_fast(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 87.0F ? 87.0F : x;
  const float shifted =
      x * 1.44269504F + 12582912.0F;  // 1.5·2^23: the low bits of the sum are the rounded n
  const float n = shifted - 12582912.0F;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000U;
  return p * std::bit_cast<float>(exponent);
}

// Sixteen partial sums: reductions the compiler may vectorise without being allowed to reorder.
constexpr std::int64_t kLanes = 16;

ARCH_INLINE float total(const float* lanes) {
  float sum = 0;
  for (std::int64_t l = 0; l < kLanes; ++l) sum += lanes[l];
  return sum;
}

template <class T>
ARCH_INLINE void add_rms_norm_impl(const float* h, const T* delta, const float* weight, float eps,
                                   std::int64_t rows, std::int64_t hidden, float* sum, T* out,
                                   float* rstd) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* hr = h + row * hidden;
    if (delta != nullptr) {
      const T* dr = delta + row * hidden;
      float* sr = sum + row * hidden;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < hidden; ++i) sr[i] = hr[i] + load(dr + i);
      hr = sr;
    }
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= hidden; i += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += hr[i + l] * hr[i + l];
    for (; i < hidden; ++i) lanes[0] += hr[i] * hr[i];
    const float scale = 1.0F / std::sqrt(total(lanes) / static_cast<float>(hidden) + eps);
    rstd[row] = scale;
    T* yr = out + row * hidden;
#pragma GCC ivdep
    for (i = 0; i < hidden; ++i) store(yr + i, hr[i] * scale * weight[i]);
  }
}

template <class T>
ARCH_INLINE void rms_norm_backward_impl(const float* h, const float* weight, const float* rstd,
                                        const T* grad_out, const float* grad_residual,
                                        std::int64_t rows, std::int64_t hidden, float* grad_h,
                                        float* weight_grad) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* hr = h + row * hidden;
    const T* gr = grad_out + row * hidden;
    const float scale = rstd[row];
    float lanes[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= hidden; i += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l)
        lanes[l] += load(gr + i + l) * weight[i + l] * hr[i + l];
    for (; i < hidden; ++i) lanes[0] += load(gr + i) * weight[i] * hr[i];
    const float pull = total(lanes) * scale * scale / static_cast<float>(hidden);
    float* out = grad_h + row * hidden;
    if (grad_residual != nullptr) {
      const float* rr = grad_residual + row * hidden;
#pragma GCC ivdep
      for (i = 0; i < hidden; ++i)
        out[i] = rr[i] + scale * (load(gr + i) * weight[i] - hr[i] * pull);
    } else {
#pragma GCC ivdep
      for (i = 0; i < hidden; ++i) out[i] = scale * (load(gr + i) * weight[i] - hr[i] * pull);
    }
#pragma GCC ivdep
    for (i = 0; i < hidden; ++i) weight_grad[i] += load(gr + i) * hr[i] * scale;
  }
}

template <class T>
ARCH_INLINE void rope_impl(T* x, const RopeShape& shape, const float* cos, const float* sin,
                           float sign, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t half = shape.head_size / 2;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float* c = cos + (row % shape.context) * half;
    const float* s = sin + (row % shape.context) * half;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      T* a = x + row * shape.row_stride + head * shape.head_size;
      T* b = a + half;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < half; ++i) {
        const float p = load(a + i);
        const float q = load(b + i);
        store(a + i, p * c[i] - sign * q * s[i]);
        store(b + i, q * c[i] + sign * p * s[i]);
      }
    }
  }
}

template <class T>
ARCH_INLINE void swiglu_impl(const T* gate_up, std::int64_t rows, std::int64_t inner, T* out) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* gate = gate_up + row * 2 * inner;
    const T* up = gate + inner;
    T* y = out + row * inner;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < inner; ++i) {
      const float g = load(gate + i);
      store(y + i, g / (1.0F + exp_fast(-g)) * load(up + i));
    }
  }
}

template <class T>
ARCH_INLINE void swiglu_backward_impl(const T* gate_up, const T* grad_out, std::int64_t rows,
                                      std::int64_t inner, T* grad) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* gate = gate_up + row * 2 * inner;
    const T* up = gate + inner;
    const T* gy = grad_out + row * inner;
    T* grad_gate = grad + row * 2 * inner;
    T* grad_up = grad_gate + inner;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < inner; ++i) {
      const float g = load(gate + i);
      const float y = load(gy + i);
      const float sigmoid = 1.0F / (1.0F + exp_fast(-g));
      store(grad_up + i, y * g * sigmoid);
      store(grad_gate + i, y * load(up + i) * sigmoid * (1.0F + g * (1.0F - sigmoid)));
    }
  }
}

}  // namespace

ARCH_CLONES void add_rms_norm(const float* h, const float* delta, const float* weight, float eps,
                              std::int64_t rows, std::int64_t hidden, float* sum, float* out,
                              float* rstd) {
  add_rms_norm_impl(h, delta, weight, eps, rows, hidden, sum, out, rstd);
}
ARCH_CLONES void add_rms_norm(const float* h, const Bf16* delta, const float* weight, float eps,
                              std::int64_t rows, std::int64_t hidden, float* sum, Bf16* out,
                              float* rstd) {
  add_rms_norm_impl(h, delta, weight, eps, rows, hidden, sum, out, rstd);
}
ARCH_CLONES void rms_norm_backward(const float* h, const float* weight, const float* rstd,
                                   const float* grad_out, const float* grad_residual,
                                   std::int64_t rows, std::int64_t hidden, float* grad_h,
                                   float* weight_grad) {
  rms_norm_backward_impl(h, weight, rstd, grad_out, grad_residual, rows, hidden, grad_h,
                         weight_grad);
}
ARCH_CLONES void rms_norm_backward(const float* h, const float* weight, const float* rstd,
                                   const Bf16* grad_out, const float* grad_residual,
                                   std::int64_t rows, std::int64_t hidden, float* grad_h,
                                   float* weight_grad) {
  rms_norm_backward_impl(h, weight, rstd, grad_out, grad_residual, rows, hidden, grad_h,
                         weight_grad);
}
ARCH_CLONES void rope(float* x, const RopeShape& shape, const float* cos, const float* sin,
                      float sign, std::int64_t row_begin, std::int64_t row_end) {
  rope_impl(x, shape, cos, sin, sign, row_begin, row_end);
}
ARCH_CLONES void rope(Bf16* x, const RopeShape& shape, const float* cos, const float* sin,
                      float sign, std::int64_t row_begin, std::int64_t row_end) {
  rope_impl(x, shape, cos, sin, sign, row_begin, row_end);
}
ARCH_CLONES void swiglu(const float* gate_up, std::int64_t rows, std::int64_t inner, float* out) {
  swiglu_impl(gate_up, rows, inner, out);
}
ARCH_CLONES void swiglu(const Bf16* gate_up, std::int64_t rows, std::int64_t inner, Bf16* out) {
  swiglu_impl(gate_up, rows, inner, out);
}
ARCH_CLONES void swiglu_backward(const float* gate_up, const float* grad_out, std::int64_t rows,
                                 std::int64_t inner, float* grad) {
  swiglu_backward_impl(gate_up, grad_out, rows, inner, grad);
}
ARCH_CLONES void swiglu_backward(const Bf16* gate_up, const Bf16* grad_out, std::int64_t rows,
                                 std::int64_t inner, Bf16* grad) {
  swiglu_backward_impl(gate_up, grad_out, rows, inner, grad);
}

ARCH_CLONES double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kChunk = 4096;
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t end = std::min(n, begin + kChunk);
    double lanes[kLanes] = {};
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l)
        lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
    for (; i < end; ++i) lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    for (const double lane : lanes) sum += lane;
  }
  return sum;
}

ARCH_CLONES void adamw(const AdamW& s, float* w, const float* g, float* m, float* v,
                       std::int64_t n) {
  const float keep = 1.0F - s.lr * s.decay;
  const float step = s.lr / s.correction1;
  const float root = 1.0F / std::sqrt(s.correction2);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float grad = g[i] * s.grad_scale;
    const float mean = s.beta1 * m[i] + (1.0F - s.beta1) * grad;
    const float square = s.beta2 * v[i] + (1.0F - s.beta2) * grad * grad;
    m[i] = mean;
    v[i] = square;
    w[i] = w[i] * keep - step * mean / (std::sqrt(square) * root + s.eps);
  }
}

ARCH_CLONES void muon_momentum(const float* g, float grad_scale, float mu, float* m,
                               float* direction, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float grad = g[i] * grad_scale;
    const float mean = m[i] + (1.0F - mu) * (grad - m[i]);
    m[i] = mean;
    direction[i] = grad + mu * (mean - grad);
  }
}

ARCH_CLONES void decayed_step(float keep, float step, const float* direction, float* w,
                              std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) w[i] = w[i] * keep - step * direction[i];
}

ARCH_CLONES void to_bf16(const float* in, Bf16* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store(out + i, in[i]);
}
ARCH_CLONES void to_float(const Bf16* in, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = load(in + i);
}

}  // namespace archipelago::learner::kernels
