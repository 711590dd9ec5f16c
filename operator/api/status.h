#pragma once
// status of a DecoupledTraining as typed values (resource.md). Unset fields are omitted in JSON,
// never null. Floats are strings. Whatever a rule needs after a restart of the operator stands
// here.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "operator/api/conditions.h"
#include "operator/api/reasons.h"

namespace archipelago::op {

inline constexpr std::size_t kMaxStatusUnits = 1024;  // also of retiredUnits

enum class RunPhase { kPending, kRunning, kDegraded, kSuspended, kSucceeded, kFailed };
enum class UnitPhase {
  kPending,
  kStarting,
  kRecovering,
  kStepping,
  kWaiting,
  kStarved,
  kBackoff,
  kUnreachable,
  kFailed,
  kFinished,
};
[[nodiscard]] std::string_view to_string(RunPhase phase);
[[nodiscard]] std::string_view to_string(UnitPhase phase);
[[nodiscard]] std::optional<RunPhase> parse_run_phase(std::string_view text);
[[nodiscard]] std::optional<UnitPhase> parse_unit_phase(std::string_view text);
[[nodiscard]] constexpr bool is_terminal(RunPhase phase) {
  return phase == RunPhase::kSucceeded || phase == RunPhase::kFailed;
}
// Exchanges with the outer optimizer, so it counts for the quorum.
[[nodiscard]] constexpr bool is_live(UnitPhase phase) {
  return phase == UnitPhase::kStepping || phase == UnitPhase::kWaiting ||
         phase == UnitPhase::kStarved;
}

struct LastFailure {
  std::int64_t incarnation = 0;
  std::string pod_uid;
  FailureReason reason = FailureReason::kCrash;
  std::optional<int> exit_code;
  std::string message;
  std::optional<WallTime> time;
  bool operator==(const LastFailure&) const = default;
};

struct UnitStatus {
  std::string name;
  std::int64_t incarnation = 0;
  std::vector<std::string>
      pod_uids;  // of this incarnation; empty: not created yet, as far as we know
  UnitPhase phase = UnitPhase::kPending;
  std::string reason;  // why it is not stepping: Unschedulable, ImagePullBackOff, NodeNotReady, ...
  std::optional<WallTime> stepping_since;  // of this incarnation
  std::int64_t local_step = 0;
  std::int32_t charged = 0;  // against backoffLimit; cleared by resetSeconds of stepping
  std::int32_t attempt =
      0;  // replacements since that reset, charged or not: the backoff's exponent
  std::int32_t restarts = 0;     // lifetime, charged ones
  std::int32_t disruptions = 0;  // lifetime, free ones
  std::optional<WallTime> next_start;
  std::optional<LastFailure> last_failure;
  bool operator==(const UnitStatus&) const = default;
};

struct RetiredUnit {
  std::string name;
  std::int64_t last_incarnation = 0;
  bool operator==(const RetiredUnit&) const = default;
};

struct DatacenterStatus {
  std::string name;
  std::int32_t desired = 0;
  std::int32_t stepping = 0;
  std::int32_t restarts = 0;
  std::int32_t disruptions = 0;
  std::int64_t tokens_per_second = 0;
  std::string uplink_mbps;
  bool operator==(const DatacenterStatus&) const = default;
};

struct LearnersStatus {
  std::int32_t desired = 0;
  std::int32_t stepping = 0;
  std::int32_t recovering = 0;
  std::int32_t waiting = 0;
  std::string summary;  // "3/4": a printer column can't join two fields
  bool operator==(const LearnersStatus&) const = default;
};

struct OuterStatusFields {
  std::string pod;
  std::string pod_uid;
  std::int64_t incarnation = 0;
  std::int64_t epoch = 0;
  std::int64_t last_checkpoint_step = 0;
  std::string endpoint;
  std::int64_t settings_generation = 0;
  std::optional<WallTime> since;  // ready since
  std::int32_t attempt = 0;       // replacements since it was ready for resetSeconds
  std::int32_t restarts = 0;
  std::optional<WallTime> next_start;
  std::optional<LastFailure> last_failure;
  bool operator==(const OuterStatusFields&) const = default;
};

struct TrainingStatus {
  RunPhase phase = RunPhase::kPending;
  std::string run_id;
  std::int64_t observed_generation = 0;
  std::vector<Condition> conditions;
  std::optional<WallTime> start_time;
  std::optional<WallTime> completion_time;
  std::int64_t active_seconds = 0;  // whole ones, up to active_since
  std::optional<WallTime> active_since;
  std::optional<std::int64_t>
      first_step_active_seconds;  // active seconds at the first global step: goodput's zero
  std::int64_t global_step = 0;
  std::int64_t tokens = 0;
  std::string loss;
  std::string validation_loss;
  std::string goodput;
  std::string merged_fraction;
  std::int32_t restarts = 0;
  LearnersStatus learners;
  OuterStatusFields outer;
  std::vector<DatacenterStatus> datacenters;
  std::vector<UnitStatus> units;
  std::vector<RetiredUnit> retired;
  bool operator==(const TrainingStatus&) const = default;
};

[[nodiscard]] nlohmann::json to_json(const TrainingStatus& status);
// Tolerant: what has another type or is missing keeps its default (an older operator may have
// written it).
[[nodiscard]] TrainingStatus parse_status(const nlohmann::json& status);

}  // namespace archipelago::op
