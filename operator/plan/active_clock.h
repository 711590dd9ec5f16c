#pragma once
// The clock of activeDeadlineSeconds: it runs from the first running pod, and stands still in
// suspend and after the end. Waiting for a place in the cluster costs nothing.
#include "operator/plan/decision.h"
#include "operator/plan/observed.h"

namespace archipelago::op {

// Whole seconds of activity up to now.
[[nodiscard]] std::int64_t active_seconds(const TrainingStatus& status, WallTime now);
void start_active_clock(TrainingStatus& status, const std::vector<ObservedPod>& pods, WallTime now);
void stop_active_clock(TrainingStatus& status, WallTime now);
// True when the deadline has passed; else a timer for it.
[[nodiscard]] bool deadline_passed(const TrainingStatus& status, const config::TrainingSpec& spec,
                                   WallTime now, Timers& timers);

}  // namespace archipelago::op
