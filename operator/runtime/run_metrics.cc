#include "operator/runtime/run_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

namespace archipelago::op {

RunMetrics::RunMetrics(Metrics& metrics)
    : recovery_(&metrics.histogram("archipelago_operator_recovery_seconds",
                                   "From an island's failure until it steps again",
                                   {0.5, 1, 2, 5, 10, 20, 60, 120, 300, 900, 3600})) {
  for (std::size_t i = 0; i < kRunPhases; ++i)
    runs_[i] = &metrics.gauge("archipelago_operator_runs", "Runs by phase",
                              {{"phase", std::string(to_string(static_cast<RunPhase>(i)))}});
  for (std::size_t i = 0; i < kUnitPhases; ++i)
    units_[i] = &metrics.gauge("archipelago_operator_islands", "Learner units by phase",
                               {{"phase", std::string(to_string(static_cast<UnitPhase>(i)))}});
  for (int i = 0; i <= static_cast<int>(FailureReason::kNotStarted); ++i) {
    const auto reason = static_cast<FailureReason>(i);
    failures_[reason] = &metrics.counter("archipelago_operator_island_failures_total",
                                         "Incarnations that ended or were given up, by reason",
                                         {{"reason", std::string(to_string(reason))}});
  }
}

void RunMetrics::add(const Counts& counts, int sign) {
  runs_[static_cast<std::size_t>(counts.run)]->Increment(sign);
  for (std::size_t i = 0; i < kUnitPhases; ++i)
    if (counts.units[i] != 0) units_[i]->Increment(sign * counts.units[i]);
}

void RunMetrics::observe(const ObjectKey& run, const TrainingStatus& status,
                         const std::vector<Transition>& transitions) {
  Counts next;
  next.run = status.phase;
  for (const UnitStatus& u : status.units) ++next.units[static_cast<std::size_t>(u.phase)];
  for (const Transition& t : transitions) {
    if (t.failed) failures_.at(*t.failed)->Increment();
    if (t.recovery_seconds) recovery_->Observe(*t.recovery_seconds);
  }
  std::lock_guard lock(mutex_);
  const auto [it, fresh] = counts_.try_emplace(run);
  if (!fresh) add(it->second, -1);
  it->second = next;
  add(next, 1);
}

void RunMetrics::forget(const ObjectKey& run) {
  std::lock_guard lock(mutex_);
  const auto it = counts_.find(run);
  if (it == counts_.end()) return;
  add(it->second, -1);
  counts_.erase(it);
}

}  // namespace archipelago::op
