#pragma once
// What a plan says: the status to write first, then what to do, then what to tell.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "operator/api/event.h"
#include "operator/api/kinds.h"
#include "operator/api/status.h"

namespace archipelago::op {

struct DeleteAction {
  Kind kind = Kind::kPod;
  std::string name;
  std::string uid;  // always a precondition
  std::optional<std::int64_t> grace_seconds;
};

struct Decision {
  TrainingStatus status;
  std::vector<nlohmann::json> checks;   // dry runs: refused ones are told
  std::vector<nlohmann::json> applies;  // Service, ConfigMap: carry the uid that was read
  std::vector<nlohmann::json> creates;  // pods, claims: POST
  std::vector<DeleteAction> deletes;
  std::vector<EventRecord> events;
  std::vector<std::string> probe_units;    // ask their admin ports
  std::optional<nlohmann::json> settings;  // for the outer optimizer
  std::optional<Duration> requeue;         // when time alone may change the answer
};

// Wake-ups of the policies; the earliest counts.
class Timers {
 public:
  void at(WallTime t) {
    if (!next_ || t < *next_) next_ = t;
  }
  [[nodiscard]] std::optional<Duration> delay(WallTime now) const {
    if (!next_) return std::nullopt;
    return *next_ > now ? Duration(*next_ - now) : Duration(0);
  }

 private:
  std::optional<WallTime> next_;
};

// Seconds of a spec as wall time; bounded so that sums never overflow.
[[nodiscard]] inline std::chrono::milliseconds wall_seconds(double s) {
  constexpr double kMax = 3.0e9;  // about a century
  const double bounded = s < 0 ? 0 : (s > kMax ? kMax : s);
  return std::chrono::milliseconds(static_cast<std::int64_t>(bounded * 1000.0));
}

}  // namespace archipelago::op
