#pragma once
// The end of a run: it is sticky. What still runs is cleaned up, the last failed pods stay with
// their logs, and ttlSecondsAfterFinished removes the children but never the resource or a retained
// claim.
#include "operator/plan/decision.h"
#include "operator/plan/observed.h"
#include "operator/plan/run_phase.h"

namespace archipelago::op {

// Marks the end in status: phase, conditions, completionTime; counts of live learners go to zero.
void end_run(const EndOfRun& end, const Observed& observed, TrainingStatus& status);
// What to do in a terminal phase, every time it is looked at.
void clean_up(const Observed& observed, Decision& d, Timers& timers);

}  // namespace archipelago::op
