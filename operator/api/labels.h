#pragma once
// Labels on every child (resource.md "Children").
#include <cstdint>
#include <map>
#include <string>

namespace archipelago::op {

inline constexpr char kLabelRun[] = "archipelago.training/run";
inline constexpr char kLabelRunUid[] = "archipelago.training/run-uid";
inline constexpr char kLabelDatacenter[] = "archipelago.training/datacenter";
inline constexpr char kLabelUnit[] = "archipelago.training/unit";
inline constexpr char kLabelIncarnation[] = "archipelago.training/incarnation";
inline constexpr char kLabelRank[] = "archipelago.training/rank";
inline constexpr char kLabelRole[] = "archipelago.training/role";
inline constexpr char kRoleLearner[] = "learner";
inline constexpr char kRoleOuter[] = "outer-optimizer";
// Node label that the pods' nodeSelector asks for.
inline constexpr char kNodeLabelDatacenter[] = "archipelago.training/datacenter";
inline constexpr char kTaintOutOfService[] = "node.kubernetes.io/out-of-service";

using Labels = std::map<std::string, std::string>;

// run, run-uid, role, app.kubernetes.io/{name,instance,component,managed-by,part-of}.
[[nodiscard]] Labels child_labels(const std::string& run, const std::string& run_uid,
                                  const std::string& role);
// The above plus datacenter, unit, incarnation, rank.
[[nodiscard]] Labels learner_labels(const std::string& run, const std::string& run_uid,
                                    const std::string& datacenter, const std::string& unit,
                                    std::int64_t incarnation, int rank);
// Selects every child of one run.
[[nodiscard]] Labels run_selector(const std::string& run_uid);

}  // namespace archipelago::op
