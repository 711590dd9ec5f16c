#pragma once
// What a plan looks at: plain values, read from API objects by observe.h. No cluster, no clock, no
// network.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/config/spec.h"
#include "operator/api/outer_status.h"
#include "operator/api/status.h"

namespace archipelago::op {

enum class PodPhase { kPending, kRunning, kSucceeded, kFailed };

struct Termination {
  int exit_code = 0;
  std::string reason;   // Error, OOMKilled, Completed, ...
  std::string message;  // the container's termination message
};

struct ObservedPod {
  std::string name;
  std::string uid;
  std::string role;  // label: learner | outer-optimizer
  std::string unit;  // label; empty for the outer optimizer
  std::string node;
  std::string ip;
  std::int64_t incarnation = 0;  // label
  PodPhase phase = PodPhase::kPending;
  std::string phase_reason;  // status.reason: Evicted, NodeShutdown, ...
  std::string phase_message;
  bool ready = false;
  std::optional<WallTime> ready_changed;  // lastTransitionTime of Ready
  std::string ready_reason;
  std::optional<WallTime> started;   // status.startTime, else creation
  std::optional<WallTime> deletion;  // deletionTimestamp: when the grace period ends
  std::string disruption;            // reason of DisruptionTarget=True
  std::string disruption_message;
  std::string waiting_reason;  // Unschedulable, ImagePullBackOff, CreateContainerConfigError, ...
  std::string waiting_message;
  std::optional<Termination> terminated;

  [[nodiscard]] bool finished() const {
    return phase == PodPhase::kSucceeded || phase == PodPhase::kFailed;
  }
};

struct ObservedNode {
  bool exists = false;
  bool ready = false;
  std::optional<WallTime> ready_changed;
  bool out_of_service =
      false;  // taint node.kubernetes.io/out-of-service: its pods' volumes are free
  bool operator==(const ObservedNode&) const = default;
};
using NodeMap = std::map<std::string, ObservedNode>;

struct ObservedChild {
  std::string uid;
  bool ours = false;
  std::string spec_text;  // of the ConfigMap
};

struct PolledStatus {
  OuterStatus document;
  std::string pod_uid;  // of the pod that gave it
  WallTime time{};
};

struct ObservedProbe {  // of a learner's admin port
  std::string pod_uid;
  bool answered = false;
  std::string phase;
  WallTime time{};
};

enum class ProblemKind { kNameConflict, kPodRejected, kForbidden };
// What the last execution ran into; it ends when the same action succeeds.
struct ExecutionProblem {
  ProblemKind kind = ProblemKind::kPodRejected;
  std::string object;  // name
  std::string message;
};

struct Observed {
  config::DecoupledTraining run;
  TrainingStatus status;          // as stored
  std::vector<ObservedPod> pods;  // controlled by this run's uid
  NodeMap nodes;                  // those that our pods name; empty when nodes can't be read
  bool nodes_known = false;       // then a named node that is missing in `nodes` is gone
  std::optional<ObservedChild> service;
  std::optional<ObservedChild> config_map;
  std::optional<ObservedChild> claim;
  std::optional<PolledStatus> polled;
  std::map<std::string, ObservedProbe> probes;  // by unit
  std::vector<ExecutionProblem> problems;
  WallTime now{};
  std::uint64_t seed = 0;
};

}  // namespace archipelago::op
