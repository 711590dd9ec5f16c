#pragma once
// Kubernetes conditions: lastTransitionTime moves only when the status flips; messages are cut at 1
// kB.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"

namespace archipelago::op {

inline constexpr std::size_t kMaxConditionMessage = 1000;  // bytes

struct Condition {
  std::string type;
  bool status = false;
  std::string reason;
  std::string message;
  WallTime last_transition{};
  std::int64_t observed_generation = 0;
  bool operator==(const Condition&) const = default;
};

[[nodiscard]] const Condition* find_condition(const std::vector<Condition>& conditions,
                                              std::string_view type);
[[nodiscard]] bool is_true(const std::vector<Condition>& conditions, std::string_view type);
void set_condition(std::vector<Condition>& conditions, Condition next, WallTime now);
// For conditions that report trouble: absent until they were true once, so a healthy run's list
// stays short.
void set_trouble(std::vector<Condition>& conditions, Condition next, WallTime now);
// At most max bytes, never in the middle of a UTF-8 sequence.
[[nodiscard]] std::string cut_utf8(std::string_view text, std::size_t max);

}  // namespace archipelago::op
