#include "operator/plan/node_loss.h"

#include <algorithm>

#include "operator/plan/decision.h"

namespace archipelago::op {

std::optional<WallTime> give_up_time(const ObservedPod& pod, const NodeMap& nodes, bool nodes_known,
                                     double node_lost_seconds, WallTime now) {
  const auto wait = wall_seconds(node_lost_seconds);
  std::optional<WallTime> at;
  const auto consider = [&](WallTime t) { at = at ? std::min(*at, t) : t; };
  // The end of the grace period has passed and the object still stands: its kubelet does not
  // answer.
  if (pod.deletion) consider(*pod.deletion + wait);
  if (pod.node.empty()) return at;
  // The node controller's own word for it.
  if (!pod.ready && pod.ready_reason == "NodeLost")
    consider(pod.ready_changed.value_or(now) + wait);
  if (!nodes_known) return at;
  const auto node = nodes.find(pod.node);
  if (node == nodes.end() || !node->second.exists || node->second.out_of_service)
    consider(now);
  else if (!node->second.ready)
    consider(node->second.ready_changed.value_or(pod.started.value_or(now)) + wait);
  return at;
}

}  // namespace archipelago::op
