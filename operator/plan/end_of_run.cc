#include "operator/plan/end_of_run.h"

#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/plan/active_clock.h"

namespace archipelago::op {
namespace {

bool is_kept_failure(const TrainingStatus& status, const ObservedPod& pod) {
  if (!pod.finished()) return false;
  if (status.outer.last_failure && status.outer.last_failure->pod_uid == pod.uid) return true;
  for (const UnitStatus& u : status.units)
    if (u.last_failure && u.last_failure->pod_uid == pod.uid) return true;
  return false;
}

// After Succeeded the outer optimizer goes on serving the model for its linger time, and learners
// hear `finished` from it and exit; only what outstays that is ended.
bool may_stay(const Observed& in, const TrainingStatus& status, const ObservedPod& pod,
              Timers& timers) {
  if (pod.finished()) return status.phase == RunPhase::kSucceeded || is_kept_failure(status, pod);
  if (status.phase != RunPhase::kSucceeded) return false;
  constexpr double kSlack = 60;
  const WallTime until = status.completion_time.value_or(in.now) +
                         wall_seconds(in.run.spec.outer_optimizer.finished_linger_seconds + kSlack);
  if (until <= in.now) return false;
  timers.at(until);
  return true;
}

void delete_pod(const ObservedPod& pod, Decision& d) {
  if (!pod.deletion) d.deletes.push_back({Kind::kPod, pod.name, pod.uid, std::nullopt});
}

void delete_all_children(const Observed& in, Decision& d) {
  for (const ObservedPod& p : in.pods) delete_pod(p, d);
  if (in.service && in.service->ours)
    d.deletes.push_back(
        {Kind::kService, outer_service_name(in.run.name), in.service->uid, std::nullopt});
  if (in.config_map && in.config_map->ours)
    d.deletes.push_back(
        {Kind::kConfigMap, spec_config_map_name(in.run.name), in.config_map->uid, std::nullopt});
}
}  // namespace

void end_run(const EndOfRun& end, const Observed& in, TrainingStatus& status) {
  const std::int64_t generation = in.run.generation;
  const auto set = [&](const char* type, bool value, const std::string& reason,
                       const std::string& message) {
    set_condition(status.conditions, {type, value, reason, message, {}, generation}, in.now);
  };
  stop_active_clock(status, in.now);
  status.phase = end.succeeded ? RunPhase::kSucceeded : RunPhase::kFailed;
  status.completion_time = in.now;
  set(condition::kComplete, end.succeeded, end.reason, end.succeeded ? end.message : "");
  set(condition::kFailed, !end.succeeded, end.reason, end.succeeded ? "" : end.message);
  set(condition::kProgressing, false, end.reason, "the run has ended");
  set(condition::kQuorumAvailable, false, end.reason, "the run has ended");
  if (!end.succeeded) set(condition::kOuterOptimizerReady, false, end.reason, "the run has ended");
  for (UnitStatus& u : status.units) {
    u.next_start.reset();
    u.stepping_since.reset();
    if (u.phase == UnitPhase::kFailed) continue;
    // A finished run's units did their work, whether or not their pods were still seen.
    u.phase = end.succeeded ? UnitPhase::kFinished : UnitPhase::kPending;
    u.reason = end.succeeded ? "" : "RunFailed";
  }
  status.outer.next_start.reset();
  count_learners(status);
}

void clean_up(const Observed& in, Decision& d, Timers& timers) {
  d.applies.clear();
  d.creates.clear();
  d.deletes.clear();
  d.probe_units.clear();
  const auto& ttl = in.run.spec.ttl_seconds_after_finished;
  if (ttl && d.status.completion_time) {
    const WallTime at = *d.status.completion_time + wall_seconds(static_cast<double>(*ttl));
    if (at <= in.now) {
      delete_all_children(in, d);
      return;
    }
    timers.at(at);
  }
  for (const ObservedPod& p : in.pods)
    if (!may_stay(in, d.status, p, timers)) delete_pod(p, d);
}

}  // namespace archipelago::op
