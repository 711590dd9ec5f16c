#include "operator/plan/replace_delay.h"

#include <algorithm>

#include "common/base/backoff.h"
#include "operator/plan/decision.h"

namespace archipelago::op {
namespace {
// FNV-1a: std::hash differs between machines.
std::uint64_t hash_text(const std::string& text) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}
}  // namespace

Duration replace_delay(const ReplaceInput& input, const config::RestartSpec& restart) {
  if (input.attempt == 0 && input.had_stepped) return Duration(0);
  BackoffPolicy policy;
  policy.base = seconds(restart.backoff_seconds);
  policy.max = seconds(restart.max_backoff_seconds);
  Rng rng(mix64(input.seed ^ hash_text(input.name)) +
          static_cast<std::uint64_t>(input.incarnation));
  return backoff_delay(policy, std::max(input.attempt - 1, 0), rng);
}

WallTime reset_time(WallTime since, const config::RestartSpec& restart) {
  return since + wall_seconds(restart.reset_seconds);
}

}  // namespace archipelago::op
