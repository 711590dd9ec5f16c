#include "common/diloco/settings.h"

#include <array>
#include <cstdio>

namespace archipelago::diloco {
namespace {

constexpr std::int32_t kMaxQuorum = 256;  // the spec's bounds
constexpr std::int64_t kMaxBudget = 1'000'000'000;

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

tl::unexpected<Error> refuse(const std::string& field, const std::string& given,
                             const std::string& allowed) {
  return fail(ErrorKind::kRefused,
              "settings." + field + ": given " + given + ", allowed " + allowed);
}

}  // namespace

std::string_view to_string(GraceKind kind) {
  switch (kind) {
    case GraceKind::kSteps:
      return "steps";
    case GraceKind::kSlack:
      return "slack";
    case GraceKind::kOff:
      return "off";
  }
  return "steps";
}

Status check_settings(const LiveSettings& s) {
  if (s.generation < 1) return refuse("generation", std::to_string(s.generation), "1 or more");
  if (s.quorum < 1 || s.quorum > kMaxQuorum)
    return refuse("quorum", std::to_string(s.quorum), "1 to " + std::to_string(kMaxQuorum));
  if (!(s.grace_steps > 0 && s.grace_steps <= 1000))
    return refuse("grace.steps", number(s.grace_steps), "more than 0, at most 1000");
  if (!(s.grace_fraction > 0 && s.grace_fraction <= 1))
    return refuse("grace.fraction", number(s.grace_fraction), "more than 0, at most 1");
  if (s.budget < GlobalStep(1) || s.budget > GlobalStep(kMaxBudget))
    return refuse("budget.globalSteps", std::to_string(s.budget.value),
                  "1 to " + std::to_string(kMaxBudget));
  return {};
}

Status check_change(const LiveSettings& now, const LiveSettings& next, GlobalStep committed) {
  if (next.generation < now.generation)
    return fail(ErrorKind::kConflict, "settings.generation: given " +
                                          std::to_string(next.generation) + ", in force is " +
                                          std::to_string(now.generation));
  if (next.generation == now.generation && next != now)
    return fail(ErrorKind::kConflict, "settings.generation: " + std::to_string(now.generation) +
                                          " is in force with other values");
  ARCH_TRY_VOID(check_settings(next));
  if (next.budget < now.budget)
    return refuse("budget.globalSteps", std::to_string(next.budget.value),
                  std::to_string(now.budget.value) + " or more: it may only rise");
  if (next.budget > now.budget && committed >= now.budget)
    return refuse("budget.globalSteps", std::to_string(next.budget.value),
                  std::to_string(now.budget.value) + ": the run has reached its budget");
  return {};
}

}  // namespace archipelago::diloco
