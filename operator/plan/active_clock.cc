#include "operator/plan/active_clock.h"

#include <algorithm>

namespace archipelago::op {

std::int64_t active_seconds(const TrainingStatus& status, WallTime now) {
  std::int64_t out = status.active_seconds;
  if (status.active_since && now > *status.active_since)
    out += std::chrono::duration_cast<std::chrono::seconds>(now - *status.active_since).count();
  return out;
}

void start_active_clock(TrainingStatus& status, const std::vector<ObservedPod>& pods,
                        WallTime now) {
  const bool runs = std::any_of(pods.begin(), pods.end(),
                                [](const ObservedPod& p) { return p.phase == PodPhase::kRunning; });
  if (runs && !status.active_since) status.active_since = now;
}

void stop_active_clock(TrainingStatus& status, WallTime now) {
  status.active_seconds = active_seconds(status, now);
  status.active_since.reset();
}

bool deadline_passed(const TrainingStatus& status, const config::TrainingSpec& spec, WallTime now,
                     Timers& timers) {
  if (!spec.active_deadline_seconds) return false;
  const std::int64_t left = *spec.active_deadline_seconds - active_seconds(status, now);
  if (left <= 0) return true;
  if (status.active_since) timers.at(now + wall_seconds(static_cast<double>(left)));
  return false;
}

}  // namespace archipelago::op
