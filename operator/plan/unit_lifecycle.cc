#include "operator/plan/unit_lifecycle.h"

#include <algorithm>

#include "operator/plan/charge.h"
#include "operator/plan/hang.h"
#include "operator/plan/node_loss.h"
#include "operator/plan/replace_delay.h"

namespace archipelago::op {
namespace {

std::int64_t highest_label(const std::vector<const ObservedPod*>& pods) {
  std::int64_t out = 0;
  for (const ObservedPod* p : pods) out = std::max(out, p->incarnation);
  return out;
}

const ObservedPod* current_pod(const UnitInput& in, std::int64_t incarnation) {
  for (const ObservedPod* p : in.pods)
    if (p->incarnation == incarnation) return p;
  return nullptr;
}

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string describe(const Verdict& v) {
  std::string out(to_string(v.reason));
  if (v.exit_code) out += " (exit code " + std::to_string(*v.exit_code) + ")";
  if (!v.message.empty()) out += ": " + cut_utf8(v.message, 300);
  return out;
}

void start_next_incarnation(const UnitInput& in, const Verdict& v, UnitDecision& d) {
  UnitStatus& u = d.next;
  const Duration delay = replace_delay(
      {u.attempt, u.stepping_since.has_value(), in.seed, u.name, u.incarnation}, *in.restart);
  u.incarnation = std::max({u.incarnation, highest_label(in.pods), in.highest}) + 1;
  u.pod_uids.clear();
  u.stepping_since.reset();
  ++u.attempt;
  u.reason = std::string(to_string(v.reason));
  u.phase = UnitPhase::kPending;
  u.next_start.reset();
  if (delay > Duration(0)) {
    u.next_start = in.now + std::chrono::ceil<std::chrono::milliseconds>(delay);
    u.phase = UnitPhase::kBackoff;
  }
  UnitNote note;
  note.warning = v.charged;
  note.reason = std::string(to_string(v.reason));
  note.message = describe(v) + "; incarnation " + std::to_string(u.incarnation) +
                 (u.next_start ? " starts at " + format_wall(*u.next_start) : " starts now");
  if (v.charged)
    note.message += ", charged " + std::to_string(u.charged) + " of " +
                    std::to_string(in.restart->backoff_limit);
  d.notes.push_back(std::move(note));
}

void end_for_good(UnitDecision& d, const Verdict& v) {
  d.next.phase = UnitPhase::kFailed;
  d.next.reason = std::string(to_string(v.reason));
  d.next.stepping_since.reset();
  d.next.next_start.reset();
  d.notes.push_back(
      {true, "UnitFailed",
       describe(v) + (v.final ? "; no retry can help" : "; restart.backoffLimit is spent")});
}

// At most one charge per incarnation: the verdict ends it in the same status write.
void apply_verdict(const UnitInput& in, const Verdict& v, UnitDecision& d) {
  UnitStatus& u = d.next;
  if (v.reason == FailureReason::kFinished) {
    u.phase = UnitPhase::kFinished;
    u.reason.clear();
    u.next_start.reset();
    d.notes.push_back({false, "UnitFinished", "trained to the end of the budget"});
    return;
  }
  u.last_failure = LastFailure{
      u.incarnation, v.pod_uid, v.reason, v.exit_code, cut_utf8(v.message, kMaxConditionMessage),
      in.now};
  if (v.charged) {
    ++u.charged;
    ++u.restarts;
  } else if (!v.final) {
    ++u.disruptions;
  }
  if (v.final || u.charged > in.restart->backoff_limit)
    end_for_good(d, v);
  else
    start_next_incarnation(in, v, d);
}

void set_phase(const UnitInput& in, UnitStatus& u, UnitPhase phase) {
  if (phase == UnitPhase::kStepping && (!u.stepping_since || u.phase == UnitPhase::kUnreachable))
    u.stepping_since = in.now;
  u.phase = phase;
}

std::optional<UnitPhase> phase_said(const std::string& text) {
  if (text == "Silent") return UnitPhase::kUnreachable;
  const auto phase = parse_unit_phase(text);
  if (phase && (is_live(*phase) || *phase == UnitPhase::kRecovering)) return phase;
  return std::nullopt;  // Left: the pod's end follows
}

void follow_live_pod(const UnitInput& in, const ObservedPod& pod, UnitStatus& u) {
  u.next_start.reset();
  u.reason = pod.waiting_reason;
  if (pod.phase == PodPhase::kPending) {
    u.phase = UnitPhase::kPending;
    return;
  }
  if (pod.deletion) u.reason = "Terminating";
  const bool was_up =
      is_live(u.phase) || u.phase == UnitPhase::kRecovering || u.phase == UnitPhase::kUnreachable;
  if (in.heard != nullptr && in.heard->incarnation == u.incarnation) {
    u.local_step = std::max(in.heard->local_step, std::int64_t{0});
    if (const auto said = phase_said(in.heard->phase)) set_phase(in, u, *said);
    return;
  }
  if (!was_up)
    u.phase = UnitPhase::kStarting;
  else if (in.document_fresh)
    u.phase = UnitPhase::kUnreachable;  // the outer optimizer doesn't know it (any more)
}

// Stepping for long enough clears what earlier failures left.
void forget_old_failures(const UnitInput& in, UnitStatus& u, Timers& timers) {
  if (!is_live(u.phase) || !u.stepping_since || (u.charged == 0 && u.attempt == 0)) return;
  const WallTime at = reset_time(*u.stepping_since, *in.restart);
  if (in.now < at) {
    timers.at(at);
    return;
  }
  u.charged = 0;
  u.attempt = 0;
}

std::optional<Verdict> judge_live(const UnitInput& in, const ObservedPod& pod, UnitDecision& d,
                                  Timers& timers) {
  const auto give_up =
      give_up_time(pod, *in.nodes, in.nodes_known, in.restart->node_lost_seconds, in.now);
  if (give_up && *give_up <= in.now) return judge_node_lost(pod);
  if (give_up) timers.at(*give_up);
  const HangInput hang{
      &pod,  in.heard, in.outer_served, in.neighbour_heard, in.probe, in.restart->stall_seconds,
      in.now};
  switch (judge_silence(hang)) {
    case HangAction::kNone:
      break;
    case HangAction::kProbe:
      d.probe = true;
      break;
    case HangAction::kReplace:
      return judge_hang(pod, in.heard->last_heard_seconds);
  }
  return std::nullopt;
}

// Pods below the incarnation are only deleted, never judged; the last failed one is kept with its
// log.
void delete_old_pods(const UnitInput& in, UnitDecision& d) {
  for (const ObservedPod* p : in.pods) {
    if (p->incarnation >= d.next.incarnation || p->deletion) continue;
    const bool kept =
        d.next.last_failure && d.next.last_failure->pod_uid == p->uid && p->finished();
    if (!kept) d.deletes.push_back({Kind::kPod, p->name, p->uid, std::nullopt});
  }
}

void step_current(const UnitInput& in, UnitDecision& d, Timers& timers) {
  UnitStatus& u = d.next;
  const ObservedPod* pod = current_pod(in, u.incarnation);
  if (!u.pod_uids.empty() && (pod == nullptr || !contains(u.pod_uids, pod->uid))) {
    apply_verdict(in, judge_missing(u.pod_uids.front()), d);
    return;
  }
  if (pod == nullptr) return;
  u.pod_uids = {pod->uid};
  auto verdict = judge_ended(*pod);
  if (!verdict) verdict = judge_live(in, *pod, d, timers);
  if (verdict) {
    // Its last words: a pod that stepped and died between two looks still stepped.
    if (in.heard != nullptr && in.heard->incarnation == u.incarnation)
      if (const auto said = phase_said(in.heard->phase);
          said && is_live(*said) && !u.stepping_since)
        u.stepping_since = in.now;
    apply_verdict(in, *verdict, d);
    return;
  }
  follow_live_pod(in, *pod, u);
  forget_old_failures(in, u, timers);
}

}  // namespace

UnitDecision step_unit(const UnitInput& in, Timers& timers) {
  UnitDecision d;
  d.next = in.status;
  UnitStatus& u = d.next;
  // Status was lost or restored from a backup: the pods know better.
  if (const std::int64_t label = highest_label(in.pods); label > u.incarnation) {
    u.incarnation = label;
    u.pod_uids.clear();
    u.stepping_since.reset();
  }
  if (u.phase != UnitPhase::kFailed && u.phase != UnitPhase::kFinished) step_current(in, d, timers);
  delete_old_pods(in, d);
  if (u.phase == UnitPhase::kFailed || u.phase == UnitPhase::kFinished) return d;
  if (!u.pod_uids.empty() || current_pod(in, u.incarnation) != nullptr) return d;
  if (u.next_start && *u.next_start > in.now) {
    u.phase = UnitPhase::kBackoff;
    timers.at(*u.next_start);
    return d;
  }
  // The outer optimizer knows a later one (status was lost, or belonged to another resource): ours
  // would only be fenced. The same one may be the pod of our last POST, not seen yet.
  if (in.highest > u.incarnation || (in.adopted && in.highest == u.incarnation))
    u.incarnation = in.highest + 1;
  u.phase = UnitPhase::kPending;
  d.create = true;
  return d;
}

void retire_incarnation(UnitStatus& u, const std::vector<const ObservedPod*>& pods,
                        std::int64_t highest) {
  if (u.phase == UnitPhase::kFailed || u.phase == UnitPhase::kFinished) return;
  if (!u.pod_uids.empty() || !pods.empty()) {
    const std::int64_t top = std::max({u.incarnation, highest_label(pods), highest});
    // Pods of an earlier incarnation alone don't use up the present one.
    const bool used = !u.pod_uids.empty() || highest_label(pods) >= u.incarnation;
    if (used) u.incarnation = top + 1;
  }
  u.pod_uids.clear();
  u.stepping_since.reset();
  u.next_start.reset();
  u.phase = UnitPhase::kPending;
  u.reason = "Suspended";
}

}  // namespace archipelago::op
