#include "operator/api/kinds.h"

#include <array>

namespace archipelago::op {
namespace {
struct KindRow {
  Kind kind;
  std::string_view name;
  std::string_view version;
  std::string_view plural;
};
constexpr std::array kKinds{
    KindRow{Kind::kTraining, "DecoupledTraining", "archipelago.training/v1alpha1",
            "decoupledtrainings"},
    KindRow{Kind::kPod, "Pod", "v1", "pods"},
    KindRow{Kind::kService, "Service", "v1", "services"},
    KindRow{Kind::kConfigMap, "ConfigMap", "v1", "configmaps"},
    KindRow{Kind::kClaim, "PersistentVolumeClaim", "v1", "persistentvolumeclaims"},
    KindRow{Kind::kNode, "Node", "v1", "nodes"},
};
const KindRow& row(Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
}  // namespace

std::string_view to_string(Kind kind) { return row(kind).name; }
std::string_view api_version(Kind kind) { return row(kind).version; }
std::string_view plural(Kind kind) { return row(kind).plural; }

std::optional<Kind> parse_kind(std::string_view text) {
  for (const KindRow& k : kKinds)
    if (k.name == text) return k.kind;
  return std::nullopt;
}

}  // namespace archipelago::op
