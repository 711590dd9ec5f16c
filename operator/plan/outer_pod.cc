#include "operator/plan/outer_pod.h"

#include <algorithm>

#include "operator/api/labels.h"
#include "operator/plan/charge.h"
#include "operator/plan/node_loss.h"
#include "operator/plan/replace_delay.h"

namespace archipelago::op {
namespace {

// Its volume can't be written any more: the node is gone or said to be out of service.
bool node_released(const OuterPodInput& in, const ObservedPod& pod) {
  if (!in.nodes_known || pod.node.empty()) return false;
  const auto node = in.nodes->find(pod.node);
  return node == in.nodes->end() || !node->second.exists || node->second.out_of_service;
}

void start_next(const OuterPodInput& in, const Verdict& v, OuterPodDecision& d) {
  OuterStatusFields& o = d.next;
  const Duration delay = replace_delay(
      {o.attempt, o.since.has_value(), in.seed, in.name + "/outer", o.incarnation}, *in.restart);
  o.last_failure = LastFailure{
      o.incarnation, v.pod_uid, v.reason, v.exit_code, cut_utf8(v.message, kMaxConditionMessage),
      in.now};
  for (const ObservedPod* p : in.pods) o.incarnation = std::max(o.incarnation, p->incarnation);
  ++o.incarnation;
  ++o.attempt;
  ++o.restarts;
  o.pod.clear();
  o.pod_uid.clear();
  o.since.reset();
  o.next_start.reset();
  if (delay > Duration(0))
    o.next_start = in.now + std::chrono::ceil<std::chrono::milliseconds>(delay);
  std::string text(to_string(v.reason));
  if (v.exit_code) text += " (exit code " + std::to_string(*v.exit_code) + ")";
  if (!v.message.empty()) text += ": " + cut_utf8(v.message, 300);
  d.not_ready_reason = std::string(to_string(v.reason));
  d.not_ready_message = text;
  text += o.next_start ? "; starts again at " + format_wall(*o.next_start) : "; starts again now";
  d.notes.push_back({v.charged, "OuterOptimizerRestart", std::move(text)});
}

void follow_live(const OuterPodInput& in, const ObservedPod& pod, OuterPodDecision& d,
                 Timers& timers) {
  OuterStatusFields& o = d.next;
  o.next_start.reset();
  o.pod = pod.name;
  o.pod_uid = pod.uid;
  d.ready = pod.phase == PodPhase::kRunning && pod.ready && !pod.deletion;
  if (d.ready) {
    if (!o.since) o.since = pod.ready_changed.value_or(in.now);
    if (o.attempt > 0) {
      const WallTime at = reset_time(*o.since, *in.restart);
      if (at <= in.now)
        o.attempt = 0;
      else
        timers.at(at);
    }
    return;
  }
  d.not_ready_reason = !pod.waiting_reason.empty()       ? pod.waiting_reason
                       : pod.deletion                    ? "Terminating"
                       : pod.phase == PodPhase::kPending ? "Pending"
                                                         : "NotReady";
  d.not_ready_message = pod.waiting_message;
  const auto lost =
      give_up_time(pod, *in.nodes, in.nodes_known, in.restart->node_lost_seconds, in.now);
  if (lost && *lost > in.now) timers.at(*lost);
  if (lost && *lost <= in.now && !pod.node.empty())
    d.node_lost =
        "node " + pod.node +
        " does not answer, and only one outer optimizer may write its volume; if the node is "
        "really off: kubectl taint nodes " +
        pod.node + " " + kTaintOutOfService + "=nodeshutdown:NoExecute";
}

void judge_current(const OuterPodInput& in, const ObservedPod& pod, OuterPodDecision& d,
                   Timers& timers) {
  if (node_released(in, pod)) {
    start_next(in, judge_node_lost(pod), d);
    return;
  }
  const auto verdict = judge_ended(pod);
  if (!verdict) {
    follow_live(in, pod, d, timers);
    return;
  }
  d.next.pod = pod.name;
  d.next.pod_uid = pod.uid;
  d.finished = verdict->reason == FailureReason::kFinished;
  d.config_refused = verdict->reason == FailureReason::kConfigRefused;
  if (d.config_refused) {
    d.next.last_failure = LastFailure{pod.incarnation,
                                      pod.uid,
                                      verdict->reason,
                                      verdict->exit_code,
                                      cut_utf8(verdict->message, kMaxConditionMessage),
                                      in.now};
    d.not_ready_message = verdict->message;
  }
  if (d.finished || d.config_refused)
    d.not_ready_reason = std::string(to_string(verdict->reason));
  else
    start_next(in, *verdict, d);
}

}  // namespace

OuterPodDecision step_outer_pod(const OuterPodInput& in, Timers& timers) {
  OuterPodDecision d;
  d.next = in.status;
  OuterStatusFields& o = d.next;
  if (o.incarnation < 1) o.incarnation = 1;
  const ObservedPod* current = nullptr;
  for (const ObservedPod* p : in.pods)
    if (current == nullptr || p->incarnation > current->incarnation) current = p;
  if (current != nullptr && current->incarnation > o.incarnation) {  // status was lost
    o.incarnation = current->incarnation;
    o.pod_uid.clear();
  }
  if (current != nullptr && current->incarnation < o.incarnation) current = nullptr;
  if (!o.pod_uid.empty() && (current == nullptr || current->uid != o.pod_uid))
    start_next(in, judge_missing(o.pod_uid), d);
  else if (current != nullptr)
    judge_current(in, *current, d, timers);
  bool blocked = false;
  for (const ObservedPod* p : in.pods) {
    if (p->incarnation >= o.incarnation) continue;
    const bool released = node_released(in, *p);
    if (!released) blocked = true;
    if (!p->deletion || released)
      d.deletes.push_back(
          {Kind::kPod, p->name, p->uid, released ? std::optional<std::int64_t>(0) : std::nullopt});
  }
  if (!o.pod_uid.empty() || blocked) return d;
  if (o.next_start && *o.next_start > in.now) {
    d.not_ready_reason = "Backoff";
    timers.at(*o.next_start);
    return d;
  }
  d.create = true;
  return d;
}

}  // namespace archipelago::op
