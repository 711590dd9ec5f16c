#pragma once
// Objects as they are kept: thousands of pods as whole JSON would be hundreds of megabytes. Pure.
#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"
#include "operator/cluster/object.h"

namespace archipelago::op::kube {

// Drops managedFields (always) and, when `slim`, what operator/plan/observe.cc and the owner and
// label indexes never read: of pods, nodes, Services and claims all but a few fields, of everything
// the last-applied annotation. Trainings and ConfigMaps keep their content.
[[nodiscard]] nlohmann::json slimmed(Kind kind, nlohmann::json object, bool slim);

// An object as the server gave it, in a list (whose items don't name their kind) or an event.
// kCorrupt when it has no name or its parts are of other types than every object's.
[[nodiscard]] Result<Object> take_object(Kind kind, nlohmann::json value, bool slim);

}  // namespace archipelago::op::kube
