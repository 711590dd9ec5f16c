#pragma once
// When a learner pod is given up because its node no longer answers: nodeLostSeconds after the node
// was seen not ready, or after the grace period of a deletion that nobody finished. Never for the
// outer optimizer (outer_pod.h).
#include <optional>

#include "operator/plan/observed.h"

namespace archipelago::op {

// nullopt while nothing points to a lost node; else the time from which the pod is given up.
[[nodiscard]] std::optional<WallTime> give_up_time(const ObservedPod& pod, const NodeMap& nodes,
                                                   bool nodes_known, double node_lost_seconds,
                                                   WallTime now);

}  // namespace archipelago::op
