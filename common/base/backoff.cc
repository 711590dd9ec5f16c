#include "common/base/backoff.h"

#include <algorithm>
#include <cmath>

namespace archipelago {

Duration backoff_delay(const BackoffPolicy& policy, int attempt, Rng& rng) {
  const double grown = to_seconds(policy.base) * std::pow(policy.factor, std::min(attempt, 60));
  const double capped = std::min(grown, to_seconds(policy.max));
  const double shaken = capped * (1.0 + policy.jitter * (2.0 * rng.uniform() - 1.0));
  return seconds(std::min(shaken, to_seconds(policy.max)));
}

}  // namespace archipelago
