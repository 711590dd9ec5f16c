#pragma once
// One learner unit: incarnations, budget, phases. One step of the state machine of resource.md
// "Failures", as a value.
#include <optional>
#include <string>
#include <vector>

#include "operator/plan/decision.h"
#include "operator/plan/observed.h"

namespace archipelago::op {

struct UnitInput {
  UnitStatus status;                     // as stored; incarnation >= 1
  std::vector<const ObservedPod*> pods;  // of this unit, every incarnation
  const OuterUnit* heard = nullptr;      // in a fresh status document, any incarnation
  bool document_fresh = false;
  std::int64_t highest = 0;   // incarnation that the outer optimizer has seen
  bool adopted = false;       // of a run from another resource: what was seen up to now is not ours
  bool outer_served = false;  // hang.h
  bool neighbour_heard = false;  // hang.h
  const ObservedProbe* probe = nullptr;
  const NodeMap* nodes = nullptr;
  bool nodes_known = false;
  const config::RestartSpec* restart = nullptr;
  WallTime now{};
  std::uint64_t seed = 0;
};

struct UnitNote {  // becomes an event
  bool warning = false;
  std::string reason;
  std::string message;
};

struct UnitDecision {
  UnitStatus next;
  bool create = false;  // the pod of next.incarnation
  bool probe = false;
  std::vector<DeleteAction> deletes;
  std::vector<UnitNote> notes;
};

[[nodiscard]] UnitDecision step_unit(const UnitInput& input, Timers& timers);

// Ends this incarnation without a verdict (suspend): the next one starts from the template of that
// time.
void retire_incarnation(UnitStatus& unit, const std::vector<const ObservedPod*>& pods,
                        std::int64_t highest);

}  // namespace archipelago::op
