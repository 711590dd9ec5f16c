#include "operator/reconcile/transitions.h"

#include <algorithm>

namespace archipelago::op {

std::vector<Transition> transitions(const TrainingStatus& before, const TrainingStatus& after) {
  std::vector<Transition> out;
  for (const UnitStatus& unit : after.units) {
    const auto old = std::find_if(before.units.begin(), before.units.end(),
                                  [&](const UnitStatus& u) { return u.name == unit.name; });
    if (old == before.units.end()) continue;
    if (unit.last_failure && unit.last_failure != old->last_failure)
      out.push_back({unit.last_failure->reason, std::nullopt});
    const bool steps_again = unit.stepping_since && !old->stepping_since;
    if (steps_again && unit.last_failure && unit.last_failure->time) {
      const auto took = *unit.stepping_since - *unit.last_failure->time;
      out.push_back({std::nullopt, std::max(0.0, to_seconds(took))});
    }
  }
  return out;
}

}  // namespace archipelago::op
