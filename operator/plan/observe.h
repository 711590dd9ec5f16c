#pragma once
// API objects to observed values. They are others' writing: whatever doesn't fit is left at its
// default.
#include <nlohmann/json_fwd.hpp>

#include "operator/plan/observed.h"

namespace archipelago::op {

[[nodiscard]] ObservedPod observe_pod(const nlohmann::json& pod);
[[nodiscard]] ObservedNode observe_node(const nlohmann::json& node);
// `owner_uid`: the run; a claim is ours by the run-uid label, all else by its controller.
[[nodiscard]] ObservedChild observe_child(const nlohmann::json& object,
                                          const std::string& owner_uid);

}  // namespace archipelago::op
