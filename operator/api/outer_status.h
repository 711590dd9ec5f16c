#pragma once
// What the operator takes of the outer optimizer's status document (GET /statusz on its admin
// port), which common/wire reads.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace archipelago::op {

struct OuterUnit {
  std::string name;
  std::string datacenter;
  std::int64_t incarnation = 0;
  std::string phase;  // Recovering | Stepping | Waiting | Starved | Left | Silent
  std::int64_t local_step = 0;
  double step_seconds = 0;
  std::int64_t tokens = 0;
  std::int64_t merged_rounds = 0;
  double last_heard_seconds = 0;  // since its last message, while the outer optimizer served
  double stepping_seconds = 0;    // since it began to step, 0 when it does not
  double step_seconds_total = 0;  // spent in completed inner steps, over all incarnations
  double tokens_per_second = 0;
  double uplink_mbps = 0;
  std::vector<double> recovery_seconds;
};

struct OuterCondition {
  std::string type;
  bool status = false;
  std::string reason;
  std::string message;
};

struct FencedUnit {
  std::string name;
  std::int64_t highest = 0;
};

struct OuterStatus {
  std::string phase;  // waiting | running | finishing | finished
  std::string run_id;
  std::int64_t epoch = 0;
  std::int64_t global_step = 0;
  std::int64_t budget = 0;
  std::int64_t tokens = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;
  std::optional<double> merged_fraction;
  std::int64_t bytes_up = 0;
  std::int64_t bytes_down = 0;
  std::int64_t last_checkpoint_step = 0;
  std::int64_t rounds = 0;
  double mean_participants = 0;
  std::int64_t settings_generation = 0;
  std::vector<OuterCondition> conditions;
  std::vector<OuterUnit> units;    // at most kMaxStatusUnits are read
  std::vector<FencedUnit> fenced;  // likewise
  [[nodiscard]] const OuterUnit* unit(const std::string& name) const;
  [[nodiscard]] std::int64_t highest(const std::string& name) const;  // 0 when unknown
};

// kInvalid names the field that has another type or is out of range, or a phase that is unknown.
[[nodiscard]] Result<OuterStatus> read_outer_status(std::string_view text);

}  // namespace archipelago::op
