#include "operator/local/pod_status.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "operator/api/conditions.h"
#include "operator/api/json.h"
#include "operator/local/pod_launch.h"

namespace archipelago::op {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxMessage = 4096;
constexpr std::size_t kMaxLogTail = 2048;
constexpr std::size_t kMaxLogLines = 80;

json container_status(const ContainerState& c, const std::string& pod_ip) {
  json out = {{"name", c.name},
              {"image", c.image},
              {"imageID", c.image},
              {"restartCount", 0},
              {"ready", c.ready},
              {"started", c.phase == ContainerPhase::kRunning},
              {"containerID", c.phase == ContainerPhase::kWaiting ? "" : "process://" + pod_ip}};
  switch (c.phase) {
    case ContainerPhase::kWaiting: {
      json waiting = {{"reason", c.reason}};
      if (!c.message.empty()) waiting["message"] = c.message;
      out["state"] = {{"waiting", waiting}};
      break;
    }
    case ContainerPhase::kRunning:
      out["state"] = {{"running", {{"startedAt", format_wall(c.started)}}}};
      break;
    case ContainerPhase::kTerminated: {
      json ended = {{"exitCode", c.exit_code},
                    {"reason", c.reason},
                    {"startedAt", format_wall(c.started)},
                    {"finishedAt", format_wall(c.finished)}};
      if (c.signal != 0) ended["signal"] = c.signal;
      if (!c.message.empty()) ended["message"] = c.message;
      out["state"] = {{"terminated", ended}};
      break;
    }
  }
  return out;
}

}  // namespace

void set_pod_condition(json& status, const std::string& type, bool value, const std::string& reason,
                       const std::string& message, WallTime now) {
  json& conditions = status["conditions"];
  if (!conditions.is_array()) conditions = json::array();
  const std::string text = value ? "True" : "False";
  json* found = nullptr;
  for (auto& condition : conditions) {
    if (string_at(condition, {"type"}) == type) found = &condition;
  }
  if (found == nullptr) {
    conditions.push_back({{"type", type}});
    found = &conditions.back();
  }
  if (string_at(*found, {"status"}) != text) (*found)["lastTransitionTime"] = format_wall(now);
  (*found)["status"] = text;
  found->erase("reason");
  found->erase("message");
  if (!reason.empty()) (*found)["reason"] = reason;
  if (!message.empty()) (*found)["message"] = message;
}

json pod_status(const PodState& state, const json& old, WallTime now) {
  json out = json::object();
  if (old.is_object() && old.contains("conditions")) out["conditions"] = old["conditions"];
  const ContainerState& c = state.container;
  const bool ended = c.phase == ContainerPhase::kTerminated;
  out["phase"] = ended ? (c.exit_code == 0 ? "Succeeded" : "Failed")
                       : (c.phase == ContainerPhase::kRunning ? "Running" : "Pending");
  if (!state.reason.empty()) out["reason"] = state.reason;
  if (!state.message.empty()) out["message"] = state.message;
  if (!state.bound) {
    set_pod_condition(out, "PodScheduled", false, "Unschedulable", state.unschedulable, now);
    return out;
  }
  set_pod_condition(out, "PodScheduled", true, "", "", now);
  set_pod_condition(out, "Initialized", true, "", "", now);
  const std::string why = c.ready ? "" : (ended ? "PodCompleted" : "ContainersNotReady");
  set_pod_condition(out, "ContainersReady", c.ready, why, "", now);
  set_pod_condition(out, "Ready", c.ready, why, "", now);
  out["startTime"] = format_wall(*state.bound);
  if (!state.pod_ip.empty()) {
    out["podIP"] = state.pod_ip;
    out["podIPs"] = json::array({{{"ip", state.pod_ip}}});
    out["hostIP"] = "127.0.0.1";
  }
  out["containerStatuses"] = json::array({container_status(c, state.pod_ip)});
  return out;
}

bool pod_finished(const json& pod) {
  const std::string phase = string_at(pod, {"status", "phase"});
  return phase == "Succeeded" || phase == "Failed";
}

std::string termination_message(const std::string& termination_log, const std::string& log_tail,
                                bool fallback, int exit_code) {
  if (!termination_log.empty()) return cut_utf8(termination_log, kMaxMessage);
  if (!fallback || exit_code == 0) return {};
  std::size_t start = log_tail.size() > kMaxLogTail ? log_tail.size() - kMaxLogTail : 0;
  // Not in the middle of a character.
  while (start < log_tail.size() && (static_cast<unsigned char>(log_tail[start]) & 0xC0U) == 0x80U)
    ++start;
  std::string tail = log_tail.substr(start);
  std::size_t lines = 0;
  for (std::size_t at = tail.size(); at > 0; --at) {
    if (tail[at - 1] == '\n' && at != tail.size() && ++lines == kMaxLogLines)
      return tail.substr(at);
  }
  return tail;
}

Placement place_pod(const json& pod, const std::vector<NodeView>& nodes) {
  const auto selector = string_map_at(pod, {"spec", "nodeSelector"});
  const double cpu = requested_cpu(pod);
  int mismatched = 0;
  int not_ready = 0;
  int full = 0;
  const NodeView* best = nullptr;
  for (const auto& node : nodes) {
    const bool matches = std::all_of(selector.begin(), selector.end(), [&](const auto& wanted) {
      const auto it = node.labels.find(wanted.first);
      return it != node.labels.end() && it->second == wanted.second;
    });
    if (!matches)
      ++mismatched;
    else if (!node.ready)
      ++not_ready;
    else if (node.cpu_used + cpu > node.cpu + 1e-9)
      ++full;
    else if (best == nullptr || node.cpu_used < best->cpu_used)
      best = &node;
  }
  if (best != nullptr) return {best->name, ""};
  std::string text = "0/" + std::to_string(nodes.size()) + " nodes are available:";
  if (full > 0) text += " " + std::to_string(full) + " Insufficient cpu,";
  if (not_ready > 0) text += " " + std::to_string(not_ready) + " node(s) not ready,";
  if (mismatched > 0)
    text += " " + std::to_string(mismatched) + " node(s) didn't match Pod's node selector,";
  text.back() = '.';
  return {"", text};
}

}  // namespace archipelago::op
