#include "operator/api/reasons.h"

#include <array>
#include <cstddef>
#include <utility>

namespace archipelago::op {
namespace {
constexpr std::array<std::string_view, 13> kReasons{
    "Finished", "Crash", "OOMKilled", "Watchdog",      "Hang",           "Disrupted", "PodDeleted",
    "NodeLost", "Left",  "Fenced",    "ConfigRefused", "DataUnreadable", "NotStarted"};
static_assert(static_cast<std::size_t>(FailureReason::kNotStarted) + 1 == kReasons.size());
}  // namespace

std::string_view to_string(FailureReason reason) {
  return kReasons[static_cast<std::size_t>(reason)];
}

std::optional<FailureReason> parse_failure_reason(std::string_view text) {
  for (std::size_t i = 0; i < kReasons.size(); ++i)
    if (kReasons[i] == text) return static_cast<FailureReason>(i);
  return std::nullopt;
}

}  // namespace archipelago::op
