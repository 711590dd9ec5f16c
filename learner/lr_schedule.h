#pragma once
// Inner learning rate as a function of the *global* step (protocol.md §10): linear warm-up to the
// peak over warmup_steps, then a half cosine from the peak down to a tenth of it at the last global
// step (constant: the peak stays). Learners that are ahead or late thus share one schedule. Beyond
// the budget it stays at its last value.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/base/ids.h"
#include "common/config/spec.h"

namespace archipelago::learner {

inline constexpr double kFinalRateFraction = 0.1;

[[nodiscard]] inline double learning_rate(const config::InnerSpec& inner, GlobalStep step,
                                          GlobalStep budget) {
  const auto t = static_cast<double>(std::max<std::int64_t>(step.value, 0));
  const auto warmup = static_cast<double>(std::max<std::int64_t>(inner.warmup_steps, 0));
  if (t < warmup) return inner.learning_rate * (t + 1.0) / (warmup + 1.0);
  if (inner.schedule == config::LrSchedule::kConstant) return inner.learning_rate;
  const double span = std::max(1.0, static_cast<double>(budget.value) - warmup);
  const double done = std::clamp((t - warmup) / span, 0.0, 1.0);
  const double cosine = 0.5 * (1.0 + std::cos(3.14159265358979323846 * done));
  return inner.learning_rate * (kFinalRateFraction + (1.0 - kFinalRateFraction) * cosine);
}

}  // namespace archipelago::learner
