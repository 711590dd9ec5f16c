#pragma once
// What a contribution counts for (Decoupled DiLoCo §3.2): tokens * (tokens / steps), "quantity x
// quality".
#include <cstdint>

namespace archipelago::diloco {

// Counters come from a peer: anything that is not a positive count of both, or beyond 2^53 tokens,
// weighs nothing.
[[nodiscard]] constexpr double contribution_weight(std::int64_t tokens, std::int64_t steps) {
  constexpr std::int64_t kMaxTokens = 1LL << 53;
  if (tokens <= 0 || steps <= 0 || tokens > kMaxTokens) return 0.0;
  const double t = static_cast<double>(tokens);
  return t * (t / static_cast<double>(steps));
}

}  // namespace archipelago::diloco
