#include "operator/kube/rate_limit.h"

#include <algorithm>

namespace archipelago::op::kube {
namespace {
constexpr double kLeastQps = 0.1;
constexpr Duration kYield = std::chrono::milliseconds(50);
std::size_t index(CallClass c) { return static_cast<std::size_t>(c); }
}  // namespace

TokenBucket::TokenBucket(double per_second, double capacity)
    : per_second_(std::max(per_second, kLeastQps / 10)),
      capacity_(std::max(capacity, 1.0)),
      tokens_(capacity_) {}

void TokenBucket::refill(TimePoint now) {
  if (!begun_) {
    begun_ = true;
    at_ = now;
  }
  if (now <= at_) return;
  tokens_ = std::min(capacity_, tokens_ + to_seconds(now - at_) * per_second_);
  at_ = now;
}

Duration TokenBucket::until(double tokens) const {
  if (tokens_ >= tokens) return Duration(0);
  return seconds((tokens - tokens_) / per_second_) + std::chrono::microseconds(1);
}

RateRule::RateRule(double qps, double burst, int progress_calls)
    : all_(std::max(qps, kLeastQps), burst),
      progress_(std::max(qps, kLeastQps) / 4, burst / 4),
      events_(std::max(qps, kLeastQps) / 10, burst / 10),
      half_(std::max(burst / 2, 1.0)),
      progress_calls_(std::max(progress_calls, 1)) {}

Duration RateRule::progress_turn(bool booked, TimePoint now) {
  all_.refill(now);
  progress_.refill(now);
  const bool crowded = waiting_[index(CallClass::kDecision)] > 0 || !all_.has(1) ||
                       under_way_[index(CallClass::kProgress)] >= progress_calls_;
  if (booked && !crowded) return Duration(0);
  const Duration wait = progress_.until(1);
  progress_.take();  // into debt: the next one to book comes after this one
  return crowded ? std::max(wait, kYield) : wait;
}

void RateRule::under_way(CallClass call_class, int change) {
  under_way_[index(call_class)] += change;
}

Duration RateRule::ask(CallClass call_class, TimePoint now) {
  if (call_class == CallClass::kLease) return Duration(0);
  for (TokenBucket* b : {&all_, &progress_, &events_}) b->refill(now);
  const bool decisions = waiting_[index(CallClass::kDecision)] > 0;
  const bool progress = waiting_[index(CallClass::kProgress)] > 0;
  if (call_class == CallClass::kDecision) {
    if (!all_.has(1)) return all_.until(1);
  } else if (call_class == CallClass::kProgress) {
    if (decisions) return kYield;
    if (!all_.has(1)) return all_.until(1);  // its share was counted at its turn
  } else {
    if (decisions || progress) return kYield;
    if (!all_.has(half_) || !events_.has(1)) return std::max(all_.until(half_), events_.until(1));
    events_.take();
  }
  all_.take();
  return Duration(0);
}

void RateRule::waiting(CallClass call_class, int change) { waiting_[index(call_class)] += change; }

RateLimiter::RateLimiter(double qps, double burst, int progress_calls)
    : rule_(qps, burst, progress_calls) {}

RateLimiter::Flight::Flight(RateLimiter& limiter, CallClass call_class)
    : limiter_(limiter), call_class_(call_class) {
  std::lock_guard lock(limiter_.mutex_);
  limiter_.rule_.under_way(call_class_, 1);
}

RateLimiter::Flight::~Flight() {
  std::lock_guard lock(limiter_.mutex_);
  limiter_.rule_.under_way(call_class_, -1);
}

Duration RateLimiter::progress_turn(bool booked) {
  std::lock_guard lock(mutex_);
  return rule_.progress_turn(booked, SystemClock().now());
}

Result<Duration> RateLimiter::acquire(CallClass call_class, TimePoint deadline,
                                      std::stop_token stop) {
  const SystemClock clock;
  const TimePoint began = clock.now();
  std::unique_lock lock(mutex_);
  Duration wait = rule_.ask(call_class, began);
  if (wait == Duration(0)) return Duration(0);
  rule_.waiting(call_class, 1);
  TimePoint now = began;
  while (wait > Duration(0) && now + wait <= deadline && !stop.stop_requested()) {
    changed_.wait_until(lock, stop, now + wait, [] { return false; });
    now = clock.now();
    // It asks as the one at the head, not as one that waits behind itself.
    rule_.waiting(call_class, -1);
    wait = rule_.ask(call_class, now);
    rule_.waiting(call_class, 1);
  }
  rule_.waiting(call_class, -1);
  lock.unlock();
  changed_.notify_all();
  if (wait == Duration(0)) return now - began;
  if (stop.stop_requested()) return fail(ErrorKind::kCancelled, "stopped while waiting");
  return fail(ErrorKind::kUnavailable, "no turn within the rate limit of API calls");
}

}  // namespace archipelago::op::kube
