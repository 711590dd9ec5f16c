#pragma once
// The `template` part of a spec merged into a pod: resources, nodeSelector, tolerations, affinity,
// priorityClassName, env, volumes, volumeMounts, labels, annotations. What the operator needs to
// find and run the pod is not overridden.
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace archipelago::op {

// `template_json`: text of an object; anything else counts as {}. The first container gets env,
// mounts, resources.
void merge_template(nlohmann::json& pod, const std::string& template_json);

}  // namespace archipelago::op
