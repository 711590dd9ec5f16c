#pragma once
// The object kinds that the operator touches, by the names of the Kubernetes API.
#include <optional>
#include <string_view>

namespace archipelago::op {

enum class Kind { kTraining, kPod, kService, kConfigMap, kClaim, kNode };

// "DecoupledTraining", "Pod", "Service", "ConfigMap", "PersistentVolumeClaim", "Node".
[[nodiscard]] std::string_view to_string(Kind kind);
[[nodiscard]] std::optional<Kind> parse_kind(std::string_view text);
// "archipelago.training/v1alpha1", "v1".
[[nodiscard]] std::string_view api_version(Kind kind);
// "decoupledtrainings", "pods", ...
[[nodiscard]] std::string_view plural(Kind kind);
[[nodiscard]] constexpr bool is_namespaced(Kind kind) { return kind != Kind::kNode; }

}  // namespace archipelago::op
