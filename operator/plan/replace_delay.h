#pragma once
// When a replacement may start (resource.md "Failures"): the first one after stepping at once,
// later ones within resetSeconds after an exponential backoff with jitter, charged or not.
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/config/spec.h"

namespace archipelago::op {

struct ReplaceInput {
  int attempt = 0;           // replacements since the last reset, this one not counted
  bool had_stepped = false;  // the ended incarnation stepped (the outer optimizer: was ready)
  std::uint64_t seed = 0;    // with `name` and `incarnation`, the jitter
  std::string name;
  std::int64_t incarnation = 0;  // that ended
};
[[nodiscard]] Duration replace_delay(const ReplaceInput& input, const config::RestartSpec& restart);

// The time from which charge and attempt are forgotten, when the unit steps since `since`.
[[nodiscard]] WallTime reset_time(WallTime since, const config::RestartSpec& restart);

}  // namespace archipelago::op
