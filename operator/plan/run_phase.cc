#include "operator/plan/run_phase.h"

#include <algorithm>

namespace archipelago::op {
namespace {

std::string units_waiting(const TrainingStatus& status) {
  std::string out;
  int named = 0;
  for (const UnitStatus& u : status.units) {
    if (is_live(u.phase) || u.phase == UnitPhase::kFinished) continue;
    if (++named > 8) return out + ", ...";
    if (!out.empty()) out += ", ";
    out += u.name + " " + std::string(to_string(u.phase));
    if (!u.reason.empty()) out += " (" + u.reason + ")";
  }
  return out;
}

void set_quorum(const config::DecoupledTraining& run, const RunFacts& facts, std::int32_t live,
                TrainingStatus& status, WallTime now) {
  const std::int32_t quorum = run.spec.sync.quorum;
  Condition c{condition::kQuorumAvailable, false, "", "", {}, run.generation};
  c.message = std::to_string(live) + " of " + std::to_string(status.learners.desired) +
              " learner units exchange, quorum " + std::to_string(quorum);
  c.status = facts.outer_ready && live >= quorum;
  c.reason = c.status            ? "QuorumMet"
             : facts.outer_ready ? "TooFewLearners"
                                 : "OuterOptimizerNotReady";
  if (const std::string waiting = units_waiting(status); !waiting.empty())
    c.message += "; " + waiting;
  set_condition(status.conditions, std::move(c), now);
}

void set_progress(const config::DecoupledTraining& run, const RunFacts& facts, bool quorum,
                  TrainingStatus& status, WallTime now) {
  Condition c{condition::kProgressing, quorum && status.global_step > 0, "", "", {},
              run.generation};
  c.reason = c.status ? "RoundsCommit" : status.global_step == 0 ? "NotStarted" : "Stalled";
  c.message = "global step " + std::to_string(status.global_step) + " of " +
              std::to_string(run.spec.budget.global_steps);
  set_condition(status.conditions, std::move(c), now);
  const bool stale = facts.document_seen && !facts.document_fresh;
  set_trouble(status.conditions,
              {condition::kProgressStale,
               stale,
               stale ? "OuterOptimizerSilent" : "Fresh",
               stale ? "progress is what the outer optimizer last said" : "",
               {},
               run.generation},
              now);
}

RunPhase phase_of(const config::DecoupledTraining& run, const TrainingStatus& status, WallTime now,
                  Timers& timers) {
  if (status.global_step == 0) return RunPhase::kPending;
  const bool any_failed =
      std::any_of(status.units.begin(), status.units.end(),
                  [](const UnitStatus& u) { return u.phase == UnitPhase::kFailed; });
  if (any_failed) return RunPhase::kDegraded;
  const Condition* quorum = find_condition(status.conditions, condition::kQuorumAvailable);
  if (quorum->status) return RunPhase::kRunning;
  // Counted from the later of losing it and of becoming active: after a suspension nobody is late
  // yet.
  const WallTime since = std::max(quorum->last_transition, status.active_since.value_or(now));
  const WallTime degraded_at = since + wall_seconds(run.spec.restart.node_lost_seconds);
  if (degraded_at <= now) return RunPhase::kDegraded;
  timers.at(degraded_at);
  const bool keeps = status.phase == RunPhase::kRunning || status.phase == RunPhase::kDegraded;
  return keeps ? status.phase : RunPhase::kPending;
}
}  // namespace

void count_learners(TrainingStatus& status) {
  LearnersStatus out;
  out.desired = static_cast<std::int32_t>(status.units.size());
  for (const UnitStatus& u : status.units) {
    if (u.phase == UnitPhase::kStepping || u.phase == UnitPhase::kStarved) ++out.stepping;
    if (u.phase == UnitPhase::kRecovering) ++out.recovering;
    if (u.phase == UnitPhase::kWaiting) ++out.waiting;
  }
  out.summary = std::to_string(out.stepping) + "/" + std::to_string(out.desired);
  status.learners = std::move(out);
}

void set_run_phase(const config::DecoupledTraining& run, const RunFacts& facts,
                   TrainingStatus& status, WallTime now, Timers& timers) {
  count_learners(status);
  const auto live = static_cast<std::int32_t>(
      std::count_if(status.units.begin(), status.units.end(),
                    [](const UnitStatus& u) { return is_live(u.phase); }));
  set_condition(status.conditions,
                {condition::kOuterOptimizerReady,
                 facts.outer_ready,
                 facts.outer_ready ? "Ready" : facts.outer_reason,
                 facts.outer_message,
                 {},
                 run.generation},
                now);
  set_quorum(run, facts, live, status, now);
  set_progress(run, facts, is_true(status.conditions, condition::kQuorumAvailable), status, now);
  status.phase = phase_of(run, status, now, timers);
}

std::optional<EndOfRun> quorum_lost_for_good(const config::TrainingSpec& spec,
                                             const TrainingStatus& status) {
  const UnitStatus* first = nullptr;
  std::int32_t failed = 0;
  for (const UnitStatus& u : status.units) {
    if (u.phase != UnitPhase::kFailed) continue;
    ++failed;
    const auto time = [](const UnitStatus& x) {
      return x.last_failure ? x.last_failure->time.value_or(WallTime{}) : WallTime{};
    };
    if (first == nullptr || time(u) < time(*first)) first = &u;
  }
  const auto total = static_cast<std::int32_t>(status.units.size());
  if (first == nullptr || total - failed >= spec.sync.quorum) return std::nullopt;
  EndOfRun end;
  end.reason =
      first->last_failure ? std::string(to_string(first->last_failure->reason)) : "UnitFailed";
  end.message = "first " + first->name + ": " + end.reason;
  if (first->last_failure && first->last_failure->exit_code)
    end.message += " (exit code " + std::to_string(*first->last_failure->exit_code) + ")";
  if (first->last_failure && !first->last_failure->message.empty())
    end.message += ": " + cut_utf8(first->last_failure->message, 600);
  end.message += "; " + std::to_string(failed) + " of " + std::to_string(total) +
                 " learner units failed, quorum " + std::to_string(spec.sync.quorum);
  return end;
}

}  // namespace archipelago::op
