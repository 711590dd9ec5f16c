#pragma once
// A run's status for people: the same text for a run of this machine and one of a cluster.
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace archipelago::cli {

// Summary, outer optimizer, learner units, conditions: a line each.
[[nodiscard]] std::string status_text(const nlohmann::json& training);
// A line per run, under a heading; with the namespace where `with_namespace`.
[[nodiscard]] std::string runs_table(const std::vector<nlohmann::json>& trainings,
                                     bool with_namespace);

}  // namespace archipelago::cli
