#include "common/codec/kernels.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/codec/codec.h"
#include "common/codec/fast.h"
#include "common/codec/reference.h"
#include "common/codec/traits.h"

namespace archipelago::codec {
namespace {
constexpr KernelFunctions kFast{fast::sumsq_chunk, fast::all_finite, fast::scale,
                                fast::axpy,        fast::subtract,   fast::outer_step};
constexpr KernelFunctions kReference{reference::sumsq_chunk, reference::all_finite,
                                     reference::scale,       reference::axpy,
                                     reference::subtract,    reference::outer_step};
}  // namespace

const KernelFunctions& fast_kernels() { return kFast; }
const KernelFunctions& reference_kernels() { return kReference; }

double sumsq(std::span<const float> x) {
  double sum = 0.0;
  for (std::size_t first = 0; first < x.size(); first += kChunk) {
    sum += kFast.sumsq_chunk(x.data() + first, std::min(kChunk, x.size() - first));
  }
  return sum;
}

bool all_finite(std::span<const float> x) { return kFast.all_finite(x.data(), x.size()); }

void scale_inplace(std::span<float> x, float factor) { kFast.scale(x.data(), x.size(), factor); }

void axpy(float factor, std::span<const float> x, std::span<float> y) {
  ARCH_CHECK(x.size() == y.size(), "sizes " << x.size() << " and " << y.size());
  kFast.axpy(factor, x.data(), y.data(), y.size());
}

void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  ARCH_CHECK(a.size() == out.size() && b.size() == out.size(),
             "sizes " << a.size() << ", " << b.size() << " and " << out.size());
  kFast.subtract(a.data(), b.data(), out.data(), out.size());
}

void outer_step(const OuterStep& step, std::span<const float> gradient, std::span<float> momentum,
                std::span<float> master) {
  ARCH_CHECK(gradient.size() == master.size() && momentum.size() == master.size(),
             "sizes " << gradient.size() << ", " << momentum.size() << " and " << master.size());
  kFast.outer_step(step.learning_rate, step.momentum, step.nesterov, gradient.data(),
                   momentum.data(), master.data(), master.size());
}

}  // namespace archipelago::codec
