#pragma once
// A chaos file as a pure schedule: (state, now, global step) -> actions. Format: docs/chaos.md; in
// short
//   seed: 7                                  # for `target: random` and rates
//   events:
//   - {atStep: 200, action: kill, target: us-east-0}        # or atSeconds, counted from the first
//   global step
//   - {atStep: 400, action: slow, target: random, factor: 3, seconds: 10}
//   - {atStep: 600, action: kill, target: outer-optimizer}
//   - {atStep: 800, action: lose, datacenter: eu-west, seconds: 15}
//   - {rate: {everySeconds: 24, count: 5, durationSeconds: 120}, action: kill, target: random}
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"
#include "common/base/rng.h"

namespace archipelago::op {

enum class ChaosKind { kKill, kHang, kEvict, kSlow, kLose };
[[nodiscard]] const char* to_string(ChaosKind kind);

inline constexpr const char* kChaosRandom = "random";
inline constexpr const char* kChaosOuterOptimizer = "outer-optimizer";

struct ChaosAction {
  ChaosKind kind = ChaosKind::kKill;
  std::string target;      // unit name or outer-optimizer; empty for lose
  std::string datacenter;  // lose
  double factor = 1;       // slow: a step takes this many times as long
  double seconds = 0;      // slow, lose: how long; 0 = for ever
};

// One action with the moment it is due; exactly one of both is set.
struct ChaosEvent {
  std::optional<std::int64_t> at_step;
  std::optional<double> at_seconds;  // since the run's first global step
  ChaosAction action;
};

struct ChaosNames {
  std::set<std::string> units;
  std::set<std::string> datacenters;
};

struct ChaosView {
  std::int64_t global_step = 0;
  std::optional<double> seconds;  // since the first global step; nullopt before it
  std::vector<std::string>
      live_units;  // units with a running process, sorted: what `random` chooses from
};

class ChaosSchedule {
 public:
  ChaosSchedule() = default;
  // All problems at once, a line each, with the path of the field. Rates are drawn here, from the
  // seed.
  [[nodiscard]] static Result<ChaosSchedule> parse(const nlohmann::json& file,
                                                   const ChaosNames& names);

  // What is due now; each event once. A random target with no live unit stays due.
  [[nodiscard]] std::vector<ChaosAction> due(const ChaosView& view);
  // A resumed run: events whose step or time (since the first global step) has passed are not
  // repeated.
  void skip_until(std::int64_t global_step, double seconds);
  [[nodiscard]] std::size_t remaining() const { return events_.size(); }
  [[nodiscard]] const std::vector<ChaosEvent>& events() const { return events_; }

 private:
  std::vector<ChaosEvent> events_;  // not yet done
  Rng rng_{1};
};

}  // namespace archipelago::op
