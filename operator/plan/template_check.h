#pragma once
// A changed `template` takes effect on pods made later: whether the server would take such pods is
// asked when it changes, not when an island has died. Pure.
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "operator/plan/observed.h"
#include "operator/plan/options.h"

namespace archipelago::op {

// Pods for a dry run: one for each datacenter, and the outer optimizer's, whose template is another
// than in the spec that the run's ConfigMap has. Empty without a ConfigMap of ours.
[[nodiscard]] std::vector<nlohmann::json> template_checks(const Observed& observed,
                                                          const PlanOptions& options);

}  // namespace archipelago::op
