#pragma once
// What /metrics tells of all runs together: islands and runs by phase, restarts by reason, recovery
// times.
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "common/base/metrics.h"
#include "operator/api/status.h"
#include "operator/cluster/object.h"
#include "operator/reconcile/transitions.h"

namespace archipelago::op {

// Thread-safe.
class RunMetrics {
 public:
  explicit RunMetrics(Metrics& metrics);

  void observe(const ObjectKey& run, const TrainingStatus& status,
               const std::vector<Transition>& transitions);
  void forget(const ObjectKey& run);

 private:
  static constexpr std::size_t kRunPhases = static_cast<std::size_t>(RunPhase::kFailed) + 1;
  static constexpr std::size_t kUnitPhases = static_cast<std::size_t>(UnitPhase::kFinished) + 1;
  struct Counts {
    RunPhase run = RunPhase::kPending;
    std::array<int, kUnitPhases> units{};
  };
  void add(const Counts& counts, int sign);  // with the lock

  std::array<prometheus::Gauge*, kRunPhases> runs_{};
  std::array<prometheus::Gauge*, kUnitPhases> units_{};
  std::map<FailureReason, prometheus::Counter*> failures_;
  prometheus::Histogram* recovery_;
  std::mutex mutex_;  // guards counts_
  std::map<ObjectKey, Counts> counts_;
};

}  // namespace archipelago::op
