#pragma once
// What the answers to discovery mean. Pure; the calls are in kube_cluster.h (discover).
#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"
#include "operator/kube/kube_cluster.h"

namespace archipelago::op::kube {

// The resources of our group and version; and, asked only when that is kNotFound, the group.
[[nodiscard]] Discovery read_discovery(const Result<nlohmann::json>& resources,
                                       const Result<nlohmann::json>& group);

}  // namespace archipelago::op::kube
