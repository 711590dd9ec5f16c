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

// Decisions use the whole limit. Progress has a quarter of it in turns that are booked ahead, and
// at most `progress_calls` are under way; events have a bucket of a tenth and wait while anything
// does, or while less than half of the limit is left. The lease never waits.
class RateRule {
 public:
  RateRule(double qps, double burst, int progress_calls);

  // Zero: the progress write may go, and then asks as any call does. Else a turn is booked: how
  // long until it comes. At a booked turn (`booked`) the write goes, or books another one where a
  // decision waits, the limit is used up or enough progress is under way: so whoever waits for a
  // turn waits where it holds nobody up.
  [[nodiscard]] Duration progress_turn(bool booked, TimePoint now);
  // A call of that class is begun or over.
  void under_way(CallClass call_class, int change);

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
  int progress_calls_;
  std::array<int, 4> waiting_{};
  std::array<int, 4> under_way_{};
};

class RateLimiter {
 public:
  RateLimiter(double qps, double burst, int progress_calls);

  // Counts a call as under way while it lives.
  class Flight {
   public:
    Flight(RateLimiter& limiter, CallClass call_class);
    ~Flight();
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;

   private:
    RateLimiter& limiter_;
    const CallClass call_class_;
  };

  // RateRule::progress_turn, now.
  [[nodiscard]] Duration progress_turn(bool booked);
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
