#include "operator/plan/charge.h"

#include <algorithm>
#include <array>

namespace archipelago::op {
namespace {
// status.reason of pods that the node or the control plane ended, also where no DisruptionTarget
// was set.
bool ended_by_cluster(const std::string& reason) {
  constexpr std::array<std::string_view, 6> kReasons{"Evicted",    "Preempting", "NodeShutdown",
                                                     "Terminated", "NodeLost",   "Shutdown"};
  return std::find(kReasons.begin(), kReasons.end(), reason) != kReasons.end();
}

Verdict by_exit_code(const Termination& t) {
  Verdict v;
  switch (t.exit_code) {
    case kExitFinished:
      v.reason = FailureReason::kFinished;
      return v;
    case kExitConfigRefused:
      v.reason = FailureReason::kConfigRefused;
      v.final = true;
      return v;
    case kExitDataUnreadable:
      v.reason = FailureReason::kDataUnreadable;
      v.final = true;
      return v;
    case kExitLeft:
      v.reason = FailureReason::kLeft;
      return v;
    case kExitFenced:
      v.reason = FailureReason::kFenced;
      return v;
    case kExitWatchdog:
      v.reason = FailureReason::kWatchdog;
      break;
    default:
      v.reason = t.reason == "OOMKilled" ? FailureReason::kOomKilled : FailureReason::kCrash;
  }
  v.charged = true;
  return v;
}

// What the process says of itself stands above what happened to it: a refused configuration stays
// refused, and a finished unit finished, even when the pod was being evicted in that moment.
bool outranks_disruption(FailureReason r) {
  return r == FailureReason::kFinished || r == FailureReason::kConfigRefused ||
         r == FailureReason::kDataUnreadable;
}
}  // namespace

std::optional<Verdict> judge_ended(const ObservedPod& pod) {
  if (!pod.finished()) return std::nullopt;
  Verdict v;
  if (pod.terminated) {
    v = by_exit_code(*pod.terminated);
    v.exit_code = pod.terminated->exit_code;
    v.message = pod.terminated->message;
  } else if (pod.phase == PodPhase::kSucceeded) {
    v.reason = FailureReason::kFinished;
  } else {
    // No container ever ran: the node refused it. Nothing of the user's crashed.
    v.reason = FailureReason::kNotStarted;
    v.message = pod.phase_reason + (pod.phase_message.empty() ? "" : ": " + pod.phase_message);
  }
  v.pod_uid = pod.uid;
  if (outranks_disruption(v.reason)) return v;
  if (!pod.disruption.empty() || ended_by_cluster(pod.phase_reason)) {
    v.reason = FailureReason::kDisrupted;
    v.charged = false;
    v.message = pod.disruption.empty() ? pod.phase_reason : pod.disruption;
    const std::string& more = pod.disruption.empty() ? pod.phase_message : pod.disruption_message;
    if (!more.empty()) v.message += ": " + more;
  } else if (pod.deletion) {
    v.reason = FailureReason::kPodDeleted;
    v.charged = false;
  }
  return v;
}

Verdict judge_missing(const std::string& pod_uid) {
  Verdict v;
  v.reason = FailureReason::kPodDeleted;
  v.pod_uid = pod_uid;
  v.message = "the pod is gone";
  return v;
}

Verdict judge_node_lost(const ObservedPod& pod) {
  Verdict v;
  v.reason = FailureReason::kNodeLost;
  v.pod_uid = pod.uid;
  v.message = "node " + pod.node + " does not answer";
  return v;
}

Verdict judge_hang(const ObservedPod& pod, double silent_seconds) {
  Verdict v;
  v.reason = FailureReason::kHang;
  v.charged = true;
  v.pod_uid = pod.uid;
  v.message = "silent for " + std::to_string(static_cast<std::int64_t>(silent_seconds)) +
              " s at the outer optimizer, and its admin port does not say Waiting";
  return v;
}

}  // namespace archipelago::op
