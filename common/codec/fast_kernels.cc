// Compiled once per target by foreach_target.h; whole vectors here, the rest through the scalar
// reference.
#include "common/codec/fast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/fast_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "common/codec/block.h"
#include "common/codec/reference.h"

HWY_BEFORE_NAMESPACE();
namespace archipelago::codec::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;

HWY_INLINE size_t Covered(size_t n) { return n - n % hn::Lanes(DF()); }

// Partial sum j holds the elements with index j modulo 32, in index order. However many lanes a
// target has, a pass of four vectors keeps 4 N of the 32 partial sums in registers.
double SumsqChunk(const float* x, size_t n) {
  using reference::kPartials;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const size_t N = hn::Lanes(d);
  const size_t covered = n - n % kPartials;
  HWY_ALIGN double partials[kPartials];
  for (size_t j = 0; j < kPartials; j += 4 * N) {
    auto s0 = hn::Zero(d);
    auto s1 = hn::Zero(d);
    auto s2 = hn::Zero(d);
    auto s3 = hn::Zero(d);
    for (size_t i = j; i < covered; i += kPartials) {
      const auto v0 = hn::PromoteTo(d, hn::LoadU(df, x + i));
      const auto v1 = hn::PromoteTo(d, hn::LoadU(df, x + i + N));
      const auto v2 = hn::PromoteTo(d, hn::LoadU(df, x + i + 2 * N));
      const auto v3 = hn::PromoteTo(d, hn::LoadU(df, x + i + 3 * N));
      s0 = hn::Add(s0, hn::Mul(v0, v0));
      s1 = hn::Add(s1, hn::Mul(v1, v1));
      s2 = hn::Add(s2, hn::Mul(v2, v2));
      s3 = hn::Add(s3, hn::Mul(v3, v3));
    }
    hn::StoreU(s0, d, partials + j);
    hn::StoreU(s1, d, partials + j + N);
    hn::StoreU(s2, d, partials + j + 2 * N);
    hn::StoreU(s3, d, partials + j + 3 * N);
  }
  for (size_t i = covered; i < n; ++i) {
    const double value = static_cast<double>(x[i]);
    partials[i - covered] += value * value;
  }
  return reference::fold_partials(partials);
}

bool AllFinite(const float* x, size_t n) {
  const DI d;
  const size_t covered = Covered(n);
  auto max = hn::Zero(d);
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    max = hn::Max(max,
                  hn::And(hn::BitCast(d, hn::LoadU(DF(), x + i)), hn::Set(d, int32_t{0x7fffffff})));
  }
  return hn::AllTrue(d, hn::Lt(max, hn::Set(d, static_cast<int32_t>(kInfinityBits)))) &&
         reference::all_finite(x + covered, n - covered);
}

void Scale(float* x, size_t n, float factor) {
  const DF d;
  const size_t covered = Covered(n);
  const auto factors = hn::Set(d, factor);
  for (size_t i = 0; i < covered; i += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factors), d, x + i);
  reference::scale(x + covered, n - covered, factor);
}

void Axpy(float factor, const float* x, float* y, size_t n) {
  const DF d;
  const size_t covered = Covered(n);
  const auto factors = hn::Set(d, factor);
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    const auto addend = hn::Mul(factors, hn::LoadU(d, x + i));
    hn::StoreU(hn::Add(hn::LoadU(d, y + i), addend), d, y + i);
  }
  reference::axpy(factor, x + covered, y + covered, n - covered);
}

void Subtract(const float* a, const float* b, float* out, size_t n) {
  const DF d;
  const size_t covered = Covered(n);
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    hn::StoreU(hn::Sub(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  reference::subtract(a + covered, b + covered, out + covered, n - covered);
}

void OuterStepRun(float learning_rate, float mu, bool nesterov, const float* gradient,
                  float* momentum, float* master, size_t n) {
  const DF d;
  const size_t covered = Covered(n);
  const auto lr = hn::Set(d, learning_rate);
  const auto mus = hn::Set(d, mu);
  for (size_t i = 0; i < covered; i += hn::Lanes(d)) {
    const auto g = hn::LoadU(d, gradient + i);
    const auto b = hn::Add(hn::Mul(mus, hn::LoadU(d, momentum + i)), g);
    const auto update = nesterov ? hn::Add(g, hn::Mul(mus, b)) : b;
    hn::StoreU(b, d, momentum + i);
    hn::StoreU(hn::Sub(hn::LoadU(d, master + i), hn::Mul(lr, update)), d, master + i);
  }
  reference::outer_step(learning_rate, mu, nesterov, gradient + covered, momentum + covered,
                        master + covered, n - covered);
}

}  // namespace archipelago::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace archipelago::codec {
namespace {
HWY_EXPORT(SumsqChunk);
HWY_EXPORT(AllFinite);
HWY_EXPORT(Scale);
HWY_EXPORT(Axpy);
HWY_EXPORT(Subtract);
HWY_EXPORT(OuterStepRun);
}  // namespace

namespace fast {
double sumsq_chunk(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(SumsqChunk)(x, n); }
bool all_finite(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(AllFinite)(x, n); }
void scale(float* x, size_t n, float factor) { HWY_DYNAMIC_DISPATCH(Scale)(x, n, factor); }
void axpy(float factor, const float* x, float* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(Axpy)(factor, x, y, n);
}
void subtract(const float* a, const float* b, float* out, size_t n) {
  HWY_DYNAMIC_DISPATCH(Subtract)(a, b, out, n);
}
void outer_step(float learning_rate, float mu, bool nesterov, const float* gradient,
                float* momentum, float* master, size_t n) {
  HWY_DYNAMIC_DISPATCH(OuterStepRun)(learning_rate, mu, nesterov, gradient, momentum, master, n);
}
}  // namespace fast

}  // namespace archipelago::codec
#endif  // HWY_ONCE
