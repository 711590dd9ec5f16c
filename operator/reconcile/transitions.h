#pragma once
// What a status write says has happened to the learner units: for the metrics. Pure.
#include <optional>
#include <vector>

#include "operator/api/status.h"

namespace archipelago::op {

struct Transition {
  std::optional<FailureReason> failed;     // an incarnation ended, or was given up, for this reason
  std::optional<double> recovery_seconds;  // from the last failure to stepping again
};

[[nodiscard]] std::vector<Transition> transitions(const TrainingStatus& before,
                                                  const TrainingStatus& after);

}  // namespace archipelago::op
