#pragma once
// The run's phase and standing conditions from its units and its outer optimizer (resource.md
// "Phases").
#include <optional>
#include <string>

#include "operator/plan/decision.h"
#include "operator/plan/observed.h"

namespace archipelago::op {

struct RunFacts {
  bool outer_ready = false;
  std::string outer_reason;
  std::string outer_message;
  bool document_fresh = false;
  bool document_seen = false;
  std::string document_phase;
  std::int64_t budget = 0;
};

// learners, QuorumAvailable, OuterOptimizerReady, Progressing, ProgressStale and phase of a run
// that is neither suspended nor at its end.
void set_run_phase(const config::DecoupledTraining& run, const RunFacts& facts,
                   TrainingStatus& status, WallTime now, Timers& timers);

struct EndOfRun {
  bool succeeded = false;
  std::string reason;
  std::string message;
};
// Why the run can't go on with these units: fewer than the quorum are left. The first cause is
// named.
[[nodiscard]] std::optional<EndOfRun> quorum_lost_for_good(const config::TrainingSpec& spec,
                                                           const TrainingStatus& status);
void count_learners(TrainingStatus& status);

}  // namespace archipelago::op
