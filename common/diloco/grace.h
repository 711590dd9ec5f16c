#pragma once
// The grace window (protocol.md §2.4; paper eq. 3): how long a round stays open after its quorum.
#include <algorithm>
#include <cstdint>
#include <map>

#include "common/base/clock.h"
#include "common/diloco/syncer_core.h"

namespace archipelago::diloco {

// Averages behind the slack rule: exponential with factor 1/2, samples clamped to overlap x step
// time.
class GraceAverages {
 public:
  void quorum_sample(double seconds, double clamp) {
    fold(quorum_, std::clamp(seconds, 0.0, clamp));
  }
  void sync_sample(std::int32_t fragment, double seconds, double clamp) {
    fold(sync_.try_emplace(fragment, -1.0).first->second, std::clamp(seconds, 0.0, clamp));
  }
  [[nodiscard]] double quorum() const { return std::max(quorum_, 0.0); }
  [[nodiscard]] double sync(std::int32_t fragment) const {
    const auto it = sync_.find(fragment);
    return it == sync_.end() ? 0.0 : std::max(it->second, 0.0);
  }

 private:
  static void fold(double& average, double sample) {
    average = average < 0 ? sample : 0.5 * average + 0.5 * sample;
  }
  double quorum_ = -1;
  std::map<std::int32_t, double> sync_;  // by fragment
};

// Seconds after the quorum; step_seconds = xi_step. kOff: 0.
[[nodiscard]] inline double grace_seconds(const SyncerConfig& config, const GraceAverages& averages,
                                          std::int32_t fragment, double step_seconds) {
  switch (config.grace) {
    case GraceKind::kSteps:
      return config.grace_steps * step_seconds;
    case GraceKind::kSlack: {
      const double slack =
          config.overlap * step_seconds - averages.quorum() - averages.sync(fragment);
      return std::clamp(config.grace_fraction * slack, 0.0, step_seconds);
    }
    case GraceKind::kOff:
      return 0;
  }
  return 0;
}

}  // namespace archipelago::diloco
