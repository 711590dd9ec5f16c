#pragma once
// The outer optimizer's pod (resource.md "Failures"): restarted for ever with backoff, except
// exit 12. A new one is made only when no other pod object of it is left, or the node of that one
// is gone or out of service: two writers on one claim are worse than a pause.
#include <optional>
#include <string>
#include <vector>

#include "operator/plan/decision.h"
#include "operator/plan/observed.h"
#include "operator/plan/unit_lifecycle.h"

namespace archipelago::op {

struct OuterPodInput {
  OuterStatusFields status;              // as stored
  std::vector<const ObservedPod*> pods;  // of role outer-optimizer
  const NodeMap* nodes = nullptr;
  bool nodes_known = false;
  const config::RestartSpec* restart = nullptr;
  std::string name;  // of the run, for the jitter
  WallTime now{};
  std::uint64_t seed = 0;
};

struct OuterPodDecision {
  OuterStatusFields next;
  bool create = false;
  bool ready = false;
  bool finished = false;        // exit 0: it served the finished model to the end
  bool config_refused = false;  // exit 12
  std::string not_ready_reason = "Pending";
  std::string not_ready_message;
  std::optional<std::string> node_lost;  // the command that frees the volume
  std::vector<DeleteAction> deletes;
  std::vector<UnitNote> notes;
};

[[nodiscard]] OuterPodDecision step_outer_pod(const OuterPodInput& input, Timers& timers);

}  // namespace archipelago::op
