#include "operator/plan/plan.h"

#include <algorithm>

#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/plan/active_clock.h"
#include "operator/plan/children.h"
#include "operator/plan/end_of_run.h"
#include "operator/plan/outer_pod.h"
#include "operator/plan/progress.h"
#include "operator/plan/run_phase.h"
#include "operator/plan/scale.h"
#include "operator/plan/template_check.h"
#include "operator/plan/unit_lifecycle.h"

namespace archipelago::op {
namespace {

class Planner {
 public:
  Planner(const Observed& in, const PlanOptions& options) : in_(in), options_(options) {
    d_.status = in.status;
  }

  Decision run() {
    begin();
    if (is_terminal(in_.status.phase))
      terminal();
    else if (in_.run.spec.suspend)
      suspended();
    else
      active();
    d_.status.observed_generation = in_.run.generation;
    d_.requeue = timers_.delay(in_.now);
    return std::move(d_);
  }

 private:
  const Observed& in_;
  const PlanOptions& options_;
  Decision d_;
  Timers timers_;

  TrainingStatus& status() { return d_.status; }
  const OuterStatus* document() const { return in_.polled ? &in_.polled->document : nullptr; }
  // Said by the present outer optimizer, and lately.
  const OuterStatus* fresh_document() const {
    if (!in_.polled || in_.polled->pod_uid != in_.status.outer.pod_uid) return nullptr;
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(options_.progress_stale);
    return in_.polled->time + age >= in_.now ? &in_.polled->document : nullptr;
  }

  void note(bool warning, const std::string& reason, const std::string& message,
            const std::string& unit = "") {
    d_.events.push_back({Kind::kTraining, in_.run.name_space, in_.run.name, in_.run.uid, warning,
                         reason, message, in_.now, unit});
  }
  void condition(const char* type, bool value, const std::string& reason,
                 const std::string& message) {
    set_condition(status().conditions, {type, value, reason, message, {}, in_.run.generation},
                  in_.now);
  }
  void trouble(const char* type, bool value, const std::string& reason,
               const std::string& message) {
    // The text of a refusal often names what changes with each try (a quota's use): the first one
    // stays.
    const Condition* old = find_condition(status().conditions, type);
    const bool same = old != nullptr && old->status == value && old->reason == reason;
    set_trouble(status().conditions,
                {type, value, reason, same ? old->message : message, {}, in_.run.generation},
                in_.now);
  }

  void begin() {
    if (status().run_id.empty()) status().run_id = in_.run.uid;
    if (in_.polled && in_.run.spec.outer_optimizer.storage.adopt &&
        !in_.polled->document.run_id.empty())
      status().run_id = in_.polled->document.run_id;
    if (!status().start_time && !in_.run.spec.suspend) status().start_time = in_.now;
    condition(condition::kSpecValid, true, "Valid", "");
    report_problems();
  }

  void report_problems() {
    const struct {
      ProblemKind kind;
      const char* type;
      const char* reason;
    } rows[] = {{ProblemKind::kNameConflict, condition::kNameConflict, "NotOurs"},
                {ProblemKind::kPodRejected, condition::kPodRejected, "RefusedByServer"},
                {ProblemKind::kForbidden, condition::kForbidden, "NotAllowed"}};
    for (const auto& row : rows) {
      const auto it = std::find_if(in_.problems.begin(), in_.problems.end(),
                                   [&](const ExecutionProblem& p) { return p.kind == row.kind; });
      const bool any = it != in_.problems.end();
      const bool had = is_true(status().conditions, row.type);
      trouble(row.type, any, any ? row.reason : "Resolved",
              any ? it->object + ": " + it->message : "");
      if (any && !had) note(true, row.type, it->object + ": " + cut_utf8(it->message, 600));
    }
  }

  void terminal() {
    if (in_.run.generation > in_.status.observed_generation && in_.status.observed_generation > 0)
      note(true, "NoEffect",
           "the run has ended (" + std::string(to_string(in_.status.phase)) +
               "): the change of the spec has no effect");
    clean_up(in_, d_, timers_);
  }

  void suspended() {
    const bool was = is_true(status().conditions, condition::kSuspended);
    stop_active_clock(status(), in_.now);
    fit_units(status(), desired_units(in_.run.spec), in_.pods, document(), d_);
    for (UnitStatus& u : status().units)
      retire_incarnation(u, pods_of_unit(in_.pods, u.name),
                         document() != nullptr ? document()->highest(u.name) : 0);
    retire_outer();
    d_.deletes.clear();
    const bool left = learners_left();
    for (const ObservedPod& p : in_.pods)
      if (!p.deletion && !keeps_log(p) && (left || p.role != kRoleOuter))
        d_.deletes.push_back({Kind::kPod, p.name, p.uid, std::nullopt});
    count_learners(status());
    sum_datacenters(nullptr, in_.run.spec, status());
    for (DatacenterStatus& dc : status().datacenters) {
      dc.tokens_per_second = 0;
      dc.uplink_mbps.clear();
    }
    status().phase = RunPhase::kSuspended;
    condition(condition::kSuspended, true, "SuspendRequested", "spec.suspend is true");
    condition(condition::kOuterOptimizerReady, false, "Suspended", "");
    condition(condition::kQuorumAvailable, false, "Suspended", "");
    condition(condition::kProgressing, false, "Suspended", "");
    if (!was) note(false, "Suspended", "at global step " + std::to_string(status().global_step));
  }

  // The outer optimizer goes last: the last learner that leaves puts its inner state there. A pod
  // beyond its grace period is not waited for.
  bool learners_left() {
    bool left = true;
    for (const ObservedPod& p : in_.pods) {
      if (p.role != kRoleLearner || p.finished()) continue;
      if (p.deletion && *p.deletion <= in_.now) continue;
      if (p.deletion) timers_.at(*p.deletion);
      left = false;
    }
    return left;
  }

  bool keeps_log(const ObservedPod& pod) const {
    return pod.finished() &&
           std::any_of(d_.status.units.begin(), d_.status.units.end(), [&](const UnitStatus& u) {
             return u.last_failure && u.last_failure->pod_uid == pod.uid;
           });
  }

  void retire_outer() {
    OuterStatusFields& o = status().outer;
    std::int64_t label = 0;
    for (const ObservedPod* p : outer_pods()) label = std::max(label, p->incarnation);
    if (!o.pod_uid.empty() || label >= std::max<std::int64_t>(o.incarnation, 1))
      o.incarnation = std::max(o.incarnation, label) + 1;
    o.pod.clear();
    o.pod_uid.clear();
    o.since.reset();
    o.next_start.reset();
  }

  std::vector<const ObservedPod*> outer_pods() const {
    std::vector<const ObservedPod*> out;
    for (const ObservedPod& p : in_.pods)
      if (p.role == kRoleOuter) out.push_back(&p);
    return out;
  }

  void active() {
    if (find_condition(status().conditions, condition::kSuspended) != nullptr || is_resumed()) {
      if (is_true(status().conditions, condition::kSuspended)) note(false, "Resumed", "");
      condition(condition::kSuspended, false, "NotSuspended", "");
    }
    start_active_clock(status(), in_.pods, in_.now);
    shared_children();
    const OuterPodDecision outer = plan_outer();
    plan_units(outer);
    const OuterStatus* doc = fresh_document();
    if (doc != nullptr) {
      copy_progress(*doc, in_.run.spec, status(), in_.now);
      copy_conditions(*doc, status(), in_.run.generation, in_.now);
      d_.settings = settings_to_send(in_.run, *doc);
    }
    sum_datacenters(doc, in_.run.spec, status());
    const RunPhase before = status().phase;
    set_run_phase(in_.run, facts(outer, doc), status(), in_.now, timers_);
    if (const auto end = ended(outer, doc)) {
      finish(*end);
      return;
    }
    if (status().phase != before)
      note(status().phase == RunPhase::kDegraded, std::string(to_string(status().phase)),
           "phase " + std::string(to_string(before)) + " -> " +
               std::string(to_string(status().phase)) + ": " +
               find_condition(status().conditions, condition::kQuorumAvailable)->message);
  }

  bool is_resumed() const { return in_.status.phase == RunPhase::kSuspended; }

  RunFacts facts(const OuterPodDecision& outer, const OuterStatus* doc) const {
    RunFacts f;
    f.outer_ready = outer.ready;
    f.outer_reason = outer.not_ready_reason;
    f.outer_message = outer.ready ? "" : outer.not_ready_message;
    f.document_fresh = doc != nullptr;
    f.document_seen = in_.polled.has_value();
    return f;
  }

  void shared_children() {
    const std::string text = resolved_spec_text(in_.run);
    const auto apply = [&](nlohmann::json object, const std::optional<ObservedChild>& seen) {
      if (seen) object["metadata"]["uid"] = seen->uid;
      d_.applies.push_back(std::move(object));
    };
    // A foreign object of that name is left alone: the executor finds it and reports NameConflict.
    if (!in_.config_map)
      d_.creates.push_back(build_spec_config_map(in_.run, text));
    else if (in_.config_map->ours && in_.config_map->spec_text != text) {
      apply(build_spec_config_map(in_.run, text), in_.config_map);
      d_.checks = template_checks(in_, options_);
    }
    if (!in_.service) d_.creates.push_back(build_outer_service(in_.run));
    if (in_.run.spec.outer_optimizer.storage.existing_claim.empty() && !in_.claim)
      d_.creates.push_back(build_outer_claim(in_.run));
    status().outer.endpoint = "http://" + outer_service_name(in_.run.name) + "." +
                              in_.run.name_space + ":" + std::to_string(kExchangePort);
  }

  OuterPodDecision plan_outer() {
    OuterPodInput input;
    input.status = status().outer;
    input.pods = outer_pods();
    input.nodes = &in_.nodes;
    input.nodes_known = in_.nodes_known;
    input.restart = &in_.run.spec.restart;
    input.name = in_.run.name;
    input.now = in_.now;
    input.seed = in_.seed;
    OuterPodDecision outer = step_outer_pod(input, timers_);
    status().outer = outer.next;
    d_.deletes.insert(d_.deletes.end(), outer.deletes.begin(), outer.deletes.end());
    for (const UnitNote& n : outer.notes) note(n.warning, n.reason, n.message, "outer");
    if (outer.create)
      d_.creates.push_back(build_outer_pod(in_.run, outer.next.incarnation, options_));
    trouble(condition::kOuterOptimizerNodeLost, outer.node_lost.has_value(),
            outer.node_lost ? "NodeNotReady" : "Resolved", outer.node_lost.value_or(""));
    return outer;
  }

  bool outer_served(const OuterPodDecision& outer) const {
    const auto stall = wall_seconds(in_.run.spec.restart.stall_seconds);
    return outer.ready && outer.next.since && *outer.next.since + stall <= in_.now;
  }

  bool neighbour_heard(const OuterStatus* doc, const DesiredUnit& unit) const {
    if (doc == nullptr) return false;
    return std::any_of(doc->units.begin(), doc->units.end(), [&](const OuterUnit& u) {
      return u.name != unit.name && u.datacenter == unit.datacenter->name && u.phase != "Left" &&
             u.last_heard_seconds < in_.run.spec.restart.stall_seconds;
    });
  }

  void plan_units(const OuterPodDecision& outer) {
    const std::vector<DesiredUnit> desired = desired_units(in_.run.spec);
    const OuterStatus* doc = fresh_document();
    fit_units(status(), desired, in_.pods, document(), d_);
    for (std::size_t i = 0; i < desired.size(); ++i) {
      UnitInput input;
      input.status = status().units[i];
      input.pods = pods_of_unit(in_.pods, desired[i].name);
      input.heard = doc != nullptr ? doc->unit(desired[i].name) : nullptr;
      input.document_fresh = doc != nullptr;
      input.highest = document() != nullptr ? document()->highest(desired[i].name) : 0;
      input.adopted = in_.run.spec.outer_optimizer.storage.adopt;
      input.outer_served = outer_served(outer);
      input.neighbour_heard = neighbour_heard(doc, desired[i]);
      const auto probe = in_.probes.find(desired[i].name);
      input.probe = probe != in_.probes.end() ? &probe->second : nullptr;
      input.nodes = &in_.nodes;
      input.nodes_known = in_.nodes_known;
      input.restart = &in_.run.spec.restart;
      input.now = in_.now;
      input.seed = in_.seed;
      take(desired[i], step_unit(input, timers_));
    }
  }

  // The incarnations of an adopted run are known when its outer optimizer has read the claim: an
  // earlier start would only be fenced.
  bool awaits_adopted_run() const {
    return in_.run.spec.outer_optimizer.storage.adopt && !in_.polled;
  }

  void take(const DesiredUnit& unit, UnitDecision step) {
    if (step.create && awaits_adopted_run()) {
      step.create = false;
      step.next.reason = "WaitingForAdoptedRun";
    }
    for (UnitStatus& u : status().units)
      if (u.name == unit.name) u = step.next;
    d_.deletes.insert(d_.deletes.end(), step.deletes.begin(), step.deletes.end());
    if (step.probe) d_.probe_units.push_back(unit.name);
    if (step.create)
      d_.creates.push_back(build_learner_pod(in_.run, *unit.datacenter, unit.ordinal,
                                             step.next.incarnation, options_));
    for (const UnitNote& n : step.notes)
      note(n.warning, n.reason, unit.name + ": " + n.message, unit.name);
  }

  std::optional<EndOfRun> ended(const OuterPodDecision& outer, const OuterStatus* doc) {
    if (outer.finished || (doc != nullptr && doc->phase == "finished"))
      return EndOfRun{true, "BudgetReached", "global step " + std::to_string(status().global_step)};
    if (outer.config_refused)
      return EndOfRun{false, "ConfigRefused",
                      "the outer optimizer refused its configuration or its volume: " +
                          outer.not_ready_message};
    if (auto end = quorum_lost_for_good(in_.run.spec, status())) return end;
    if (deadline_passed(status(), in_.run.spec, in_.now, timers_))
      return EndOfRun{false, "DeadlineExceeded",
                      "active for " + std::to_string(active_seconds(status(), in_.now)) +
                          " s, activeDeadlineSeconds is " +
                          std::to_string(*in_.run.spec.active_deadline_seconds)};
    return std::nullopt;
  }

  void finish(const EndOfRun& end) {
    end_run(end, in_, status());
    sum_datacenters(nullptr, in_.run.spec, status());
    note(!end.succeeded, end.succeeded ? "Succeeded" : "Failed", end.reason + ": " + end.message);
    d_.settings.reset();
    clean_up(in_, d_, timers_);
  }
};

}  // namespace

Decision plan(const Observed& observed, const PlanOptions& options) {
  return Planner(observed, options).run();
}

Decision plan_invalid(const TrainingStatus& stored, const std::string& name_space,
                      const std::string& name, const std::string& uid, std::int64_t generation,
                      const std::string& errors, WallTime now) {
  Decision d;
  d.status = stored;
  d.status.observed_generation = generation;
  const bool known = find_condition(stored.conditions, condition::kSpecValid) != nullptr &&
                     !is_true(stored.conditions, condition::kSpecValid) &&
                     stored.observed_generation == generation;
  set_condition(d.status.conditions,
                {condition::kSpecValid, false, "Invalid", errors, {}, generation}, now);
  if (!known)
    d.events.push_back({Kind::kTraining, name_space, name, uid, true, "SpecInvalid",
                        cut_utf8(errors, 800), now, ""});
  return d;
}

}  // namespace archipelago::op
