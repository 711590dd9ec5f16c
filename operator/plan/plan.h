#pragma once
// The decision of one reconcile: observed state in, status to write and actions to take out. Each
// question is a policy in its own file; this one only puts them in order.
#include "operator/plan/decision.h"
#include "operator/plan/observed.h"
#include "operator/plan/options.h"

namespace archipelago::op {

[[nodiscard]] Decision plan(const Observed& observed, const PlanOptions& options);

// A stored spec that breaks a rule (the schema was older, or was bypassed): SpecValid=False,
// nothing else moves.
[[nodiscard]] Decision plan_invalid(const TrainingStatus& stored, const std::string& name_space,
                                    const std::string& name, const std::string& uid,
                                    std::int64_t generation, const std::string& errors,
                                    WallTime now);

}  // namespace archipelago::op
