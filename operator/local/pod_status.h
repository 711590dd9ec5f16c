#pragma once
// status of a pod as a kubelet writes it. Pure.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"

namespace archipelago::op {

enum class ContainerPhase { kWaiting, kRunning, kTerminated };

struct ContainerState {
  std::string name;
  std::string image;
  ContainerPhase phase = ContainerPhase::kWaiting;
  std::string
      reason;  // waiting: ContainerCreating, ...; terminated: Completed, Error, OOMKilled, ...
  std::string message;  // terminated: the termination message
  WallTime started{};
  WallTime finished{};
  int exit_code = 0;
  int signal = 0;
  bool ready = false;
};

struct PodState {
  std::string pod_ip;
  std::optional<WallTime> bound;  // when it was scheduled
  std::string unschedulable;      // why not; only while unbound
  ContainerState container;
  std::string reason;  // of the pod: NodeLost, Evicted, ...
  std::string message;
};

// `old`: the status so far (or null): conditions that others wrote stay, transition times move only
// with the status.
[[nodiscard]] nlohmann::json pod_status(const PodState& state, const nlohmann::json& old,
                                        WallTime now);
// Sets or replaces one condition.
void set_pod_condition(nlohmann::json& status, const std::string& type, bool value,
                       const std::string& reason, const std::string& message, WallTime now);
[[nodiscard]] bool pod_finished(const nlohmann::json& pod);  // Succeeded or Failed

// Text a container left: the termination log, or with `fallback` and a failure the tail of its log,
// as Kubernetes cuts them (4096 bytes; 2048 bytes and 80 lines).
[[nodiscard]] std::string termination_message(const std::string& termination_log,
                                              const std::string& log_tail, bool fallback,
                                              int exit_code);

struct NodeView {
  std::string name;
  std::map<std::string, std::string> labels;
  bool ready = true;
  double cpu = 0;       // capacity in cores
  double cpu_used = 0;  // requested by pods bound to it and not finished
};
struct Placement {
  std::string node;    // empty: not placed
  std::string reason;  // then why, in the scheduler's words
};
[[nodiscard]] Placement place_pod(const nlohmann::json& pod, const std::vector<NodeView>& nodes);

}  // namespace archipelago::op
