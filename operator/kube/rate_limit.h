#pragma once
// Which call may go now. The rule is pure; RateLimiter is the waiting around it.
#include <array>
#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "operator/kube/kube_client.h"

namespace archipelago::op::kube {

// Tokens come at `per_second` up to `capacity`; they start full.
class TokenBucket {
 public:
  TokenBucket(double per_second, double capacity);
  void refill(TimePoint now);
  [[nodiscard]] bool has(double tokens) const { return tokens_ >= tokens; }
  void take() { tokens_ -= 1; }
  [[nodiscard]] Duration until(double tokens) const;  // from the last refill

 private:
  double per_second_;
  double capacity_;
  double tokens_;
  TimePoint at_{};
  bool begun_ = false;
};

// Decisions use the whole limit. Progress has a bucket of a quarter besides and waits while a
// decision does; events have one of a tenth and wait while anything does, or while less than half
// of the limit is left. The lease never waits.
class RateRule {
 public:
  RateRule(double qps, double burst);

  // Zero: go, it has been counted. Else how long to wait before asking again (never longer than it
  // could matter, for a call that yields).
  [[nodiscard]] Duration ask(CallClass call_class, TimePoint now);
  // A call of that class begins or ends to wait.
  void waiting(CallClass call_class, int change);

 private:
  TokenBucket all_;
  TokenBucket progress_;
  TokenBucket events_;
  double half_;
  std::array<int, 4> waiting_{};
};

class RateLimiter {
 public:
  RateLimiter(double qps, double burst);
  // The time that was waited. kUnavailable when no turn came before the deadline, kCancelled on
  // stop.
  [[nodiscard]] Result<Duration> acquire(CallClass call_class, TimePoint deadline,
                                         std::stop_token stop);

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  RateRule rule_;
};

}  // namespace archipelago::op::kube
