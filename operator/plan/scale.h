#pragma once
// Which learner units should exist, and what becomes of those that no longer should: scaling down
// removes the highest ordinals and keeps their last incarnation in retiredUnits, so that the fence
// holds when they come back.
#include <cstdint>
#include <string>
#include <vector>

#include "operator/plan/decision.h"
#include "operator/plan/observed.h"

namespace archipelago::op {

struct DesiredUnit {
  const config::DatacenterSpec* datacenter = nullptr;
  std::int32_t ordinal = 0;
  std::string name;
};
// In the order of the spec.
[[nodiscard]] std::vector<DesiredUnit> desired_units(const config::TrainingSpec& spec);

[[nodiscard]] std::vector<const ObservedPod*> pods_of_unit(const std::vector<ObservedPod>& pods,
                                                           const std::string& unit);

// Makes status.units exactly the desired ones, in their order; moves the others to status.retired.
void fit_units(TrainingStatus& status, const std::vector<DesiredUnit>& desired,
               const std::vector<ObservedPod>& pods, const OuterStatus* document, Decision& d);

}  // namespace archipelago::op
