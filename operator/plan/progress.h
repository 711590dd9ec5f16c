#pragma once
// Numbers of the outer optimizer's status document into the resource's status.
#include "operator/plan/decision.h"
#include "operator/plan/observed.h"

namespace archipelago::op {

// Floats become short strings.
void copy_progress(const OuterStatus& document, const config::TrainingSpec& spec,
                   TrainingStatus& status, WallTime now);
// Per datacenter: desired, stepping, restarts, disruptions, tokens/s and uplink; and the run's
// sums.
void sum_datacenters(const OuterStatus* document, const config::TrainingSpec& spec,
                     TrainingStatus& status);
// What the outer optimizer says of itself, of a list of known types; a condition of another name
// stays in its own status document. One that a new process does not tell any more becomes false.
void copy_conditions(const OuterStatus& document, TrainingStatus& status, std::int64_t generation,
                     WallTime now);
// Settings that may change while running, for PUT /v1/settings, when the outer optimizer acts on
// older ones.
[[nodiscard]] std::optional<nlohmann::json> settings_to_send(const config::DecoupledTraining& run,
                                                             const OuterStatus& document);

}  // namespace archipelago::op
