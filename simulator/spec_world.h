#pragma once
// The world of a user's spec: its settings for the production cores, its units and datacenters, and
// a cluster that a handful of numbers describe. A step of a unit at full speed is one second.
#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "simulator/world.h"

namespace archipelago::simulator {

struct SpecWorldOptions {
  std::uint64_t seed = 1;
  std::vector<double> step_seconds;  // one a unit, in the spec's order; default 1
  double jitter = 0.1;               // a step takes 1 -+ this
  // Share of the time that a unit is there, its recovery not counted; below 1 units are killed at
  // random and replaced. Allowed: above 0.05, at most 1.
  double availability = 1;
  double away = 30;  // steps from a kill to the replacement, the mean of an exponential
  std::uint64_t dataset_sequences = 100'000;
};

// kInvalid: an option out of range, by name.
[[nodiscard]] Result<WorldConfig> world_of(const config::TrainingSpec& spec,
                                           const SpecWorldOptions& options);

}  // namespace archipelago::simulator
