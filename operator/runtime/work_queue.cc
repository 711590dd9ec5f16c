#include "operator/runtime/work_queue.h"

#include <algorithm>

namespace archipelago::op {

WorkQueue::WorkQueue(const Clock& clock, std::uint64_t seed, BackoffPolicy backoff)
    : clock_(clock), backoff_(backoff), rng_(seed) {}

void WorkQueue::schedule(const ObjectKey& key, TimePoint at) {
  const auto [it, fresh] = due_.emplace(key, at);
  if (!fresh) it->second = std::min(it->second, at);
  ++changes_;
  changed_.notify_all();
}

void WorkQueue::add(const ObjectKey& key) { add_after(key, Duration(0)); }

void WorkQueue::add_after(const ObjectKey& key, Duration delay) {
  std::lock_guard lock(mutex_);
  schedule(key, clock_.now() + std::max(delay, Duration(0)));
}

void WorkQueue::add_rate_limited(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  int& failures = failures_[key];
  const Duration delay = backoff_delay(backoff_, failures, rng_);
  ++failures;
  schedule(key, clock_.now() + delay);
}

void WorkQueue::forget(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  failures_.erase(key);
}

std::optional<ObjectKey> WorkQueue::take(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const TimePoint now = clock_.now();
    auto next = due_.end();
    for (auto it = due_.begin(); it != due_.end(); ++it) {
      if (running_.count(it->first) != 0) continue;
      if (next == due_.end() || it->second < next->second) next = it;
    }
    if (next != due_.end() && next->second <= now) {
      const ObjectKey key = next->first;
      due_.erase(next);
      running_.insert(key);
      return key;
    }
    const TimePoint until = next != due_.end() ? next->second : now + seconds(60);
    const std::uint64_t seen = changes_;  // any change may have brought an earlier key
    changed_.wait_until(lock, stop, until, [&] { return changes_ != seen; });
    if (stop.stop_requested()) break;
  }
  return std::nullopt;
}

void WorkQueue::done(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  running_.erase(key);
  ++changes_;
  changed_.notify_all();
}

std::size_t WorkQueue::size() const {
  std::lock_guard lock(mutex_);
  return due_.size();
}

}  // namespace archipelago::op
