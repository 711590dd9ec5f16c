#include "operator/plan/observe.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/api/kinds.h"
#include "operator/api/labels.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr std::size_t kMaxText = 4096;  // of a message that a pod or node gave

std::optional<WallTime> time_at(const json& value, Path path) {
  WallTime t{};
  const std::string text = string_at(value, path);
  if (text.empty() || !parse_wall(text, &t)) return std::nullopt;
  return t;
}

std::string text_at(const json& value, Path path) {
  return cut_utf8(string_at(value, path), kMaxText);
}

PodPhase phase_of(const std::string& text) {
  if (text == "Running") return PodPhase::kRunning;
  if (text == "Succeeded") return PodPhase::kSucceeded;
  if (text == "Failed") return PodPhase::kFailed;
  return PodPhase::kPending;
}

void read_conditions(const json& conditions, ObservedPod& pod) {
  if (!conditions.is_array()) return;
  for (const json& c : conditions) {
    const std::string type = string_at(c, {"type"});
    const bool holds = string_at(c, {"status"}) == "True";
    if (type == "Ready") {
      pod.ready = holds;
      pod.ready_changed = time_at(c, {"lastTransitionTime"});
      pod.ready_reason = string_at(c, {"reason"});
    } else if (type == "DisruptionTarget" && holds) {
      pod.disruption = string_at(c, {"reason"}, "DisruptionTarget");
      pod.disruption_message = text_at(c, {"message"});
    } else if (type == "PodScheduled" && !holds) {
      pod.waiting_reason = string_at(c, {"reason"}, "Unschedulable");
      pod.waiting_message = text_at(c, {"message"});
    }
  }
}

// The first container that failed tells why; a sidecar that ended well says nothing.
void read_containers(const json& statuses, ObservedPod& pod) {
  if (!statuses.is_array()) return;
  for (const json& s : statuses) {
    const json& waiting = at(s, {"state", "waiting"});
    if (waiting.is_object() && pod.waiting_reason.empty()) {
      pod.waiting_reason = string_at(waiting, {"reason"});
      pod.waiting_message = text_at(waiting, {"message"});
    }
    const json& ended = at(s, {"state", "terminated"});
    if (!ended.is_object()) continue;
    Termination t{static_cast<int>(int_at(ended, {"exitCode"}) & 0xffff),
                  string_at(ended, {"reason"}), text_at(ended, {"message"})};
    const bool worse = !pod.terminated || (pod.terminated->exit_code == 0 && t.exit_code != 0);
    if (worse) pod.terminated = std::move(t);
  }
}

std::int64_t incarnation_of(const json& pod) {
  const std::string text = string_at(pod, {"metadata", "labels", kLabelIncarnation});
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end && value > 0 ? value : 0;
}
}  // namespace

ObservedPod observe_pod(const json& pod) {
  ObservedPod out;
  out.name = string_at(pod, {"metadata", "name"});
  out.uid = string_at(pod, {"metadata", "uid"});
  out.role = string_at(pod, {"metadata", "labels", kLabelRole});
  out.unit = string_at(pod, {"metadata", "labels", kLabelUnit});
  out.incarnation = incarnation_of(pod);
  out.node = string_at(pod, {"spec", "nodeName"});
  out.ip = string_at(pod, {"status", "podIP"});
  out.phase = phase_of(string_at(pod, {"status", "phase"}));
  out.phase_reason = string_at(pod, {"status", "reason"});
  out.phase_message = text_at(pod, {"status", "message"});
  out.started = time_at(pod, {"status", "startTime"});
  if (!out.started) out.started = time_at(pod, {"metadata", "creationTimestamp"});
  out.deletion = time_at(pod, {"metadata", "deletionTimestamp"});
  read_conditions(at(pod, {"status", "conditions"}), out);
  read_containers(at(pod, {"status", "initContainerStatuses"}), out);
  read_containers(at(pod, {"status", "containerStatuses"}), out);
  return out;
}

ObservedNode observe_node(const json& node) {
  ObservedNode out;
  out.exists = true;
  const json& conditions = at(node, {"status", "conditions"});
  if (conditions.is_array())
    for (const json& c : conditions)
      if (string_at(c, {"type"}) == "Ready") {
        out.ready = string_at(c, {"status"}) == "True";
        out.ready_changed = time_at(c, {"lastTransitionTime"});
      }
  const json& taints = at(node, {"spec", "taints"});
  if (taints.is_array())
    for (const json& t : taints)
      if (string_at(t, {"key"}) == kTaintOutOfService) out.out_of_service = true;
  return out;
}

ObservedChild observe_child(const json& object, const std::string& owner_uid) {
  ObservedChild out;
  out.uid = string_at(object, {"metadata", "uid"});
  out.spec_text = string_at(object, {"data", "spec.json"});
  if (string_at(object, {"kind"}) == to_string(Kind::kClaim)) {
    out.ours = string_at(object, {"metadata", "labels", kLabelRunUid}) == owner_uid;
    return out;
  }
  const json& owners = at(object, {"metadata", "ownerReferences"});
  if (owners.is_array())
    for (const json& o : owners)
      if (bool_at(o, {"controller"}) && string_at(o, {"uid"}) == owner_uid) out.ours = true;
  return out;
}

}  // namespace archipelago::op
