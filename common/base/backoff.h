#pragma once
// Exponential backoff with jitter, as a value: delay for attempt n (0-based), never above max.
#include "common/base/clock.h"
#include "common/base/rng.h"

namespace archipelago {

struct BackoffPolicy {
  Duration base = seconds(0.2);
  Duration max = seconds(5);
  double factor = 2.0;
  double jitter = 0.2;  // fraction, up and down
};

[[nodiscard]] Duration backoff_delay(const BackoffPolicy& policy, int attempt, Rng& rng);

}  // namespace archipelago
