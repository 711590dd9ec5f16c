#include "operator/runtime/work_queue.h"

#include <algorithm>

namespace archipelago::op {

WorkQueue::WorkQueue(const Clock& clock, std::uint64_t seed, BackoffPolicy backoff)
    : clock_(clock), backoff_(backoff), rng_(seed) {}

void WorkQueue::schedule(const ObjectKey& key, Slot wanted) {
  const bool waits = running_.count(key) == 0;
  const auto [it, fresh] = slots_.emplace(key, wanted);
  Slot& slot = it->second;
  if (!fresh) {
    if (waits) line(slot.urgency).erase({slot.at, key});
    slot.at = std::min(slot.at, wanted.at);
    slot.urgency = std::min(slot.urgency, wanted.urgency);
  }
  if (!waits) return;  // done() puts it in line
  line(slot.urgency).insert({slot.at, key});
  ++changes_;
  changed_.notify_one();
}

void WorkQueue::add(const ObjectKey& key, Urgency urgency) {
  std::lock_guard lock(mutex_);
  schedule(key, {clock_.now(), urgency});
}

void WorkQueue::add_after(const ObjectKey& key, Duration delay) {
  std::lock_guard lock(mutex_);
  schedule(key, {clock_.now() + std::max(delay, Duration(0)), Urgency::kStarted});
}

void WorkQueue::add_rate_limited(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  Failures& failures = failures_[key];
  const TimePoint now = clock_.now();
  if (failures.count == 0 || failures.until <= now)
    failures.until = now + backoff_delay(backoff_, failures.count++, rng_);
  schedule(key, {failures.until, Urgency::kStarted});
}

void WorkQueue::forget(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  failures_.erase(key);
}

std::optional<ObjectKey> WorkQueue::take_due(TimePoint now, TimePoint* next) {
  for (Line& waiting : lines_) {
    if (waiting.empty()) continue;
    const auto [at, key] = *waiting.begin();
    if (at > now) {
      *next = std::min(*next, at);
      continue;
    }
    waiting.erase(waiting.begin());
    slots_.erase(key);
    running_.insert(key);
    return key;
  }
  return std::nullopt;
}

std::optional<ObjectKey> WorkQueue::take(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const TimePoint now = clock_.now();
    TimePoint next = now + seconds(60);
    if (auto key = take_due(now, &next)) return key;
    const std::uint64_t seen = changes_;  // any change may have brought an earlier key
    changed_.wait_until(lock, stop, next, [&] { return changes_ != seen; });
  }
  return std::nullopt;
}

void WorkQueue::done(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  running_.erase(key);
  const auto it = slots_.find(key);
  if (it == slots_.end()) return;
  line(it->second.urgency).insert({it->second.at, key});
  ++changes_;
  changed_.notify_one();
}

std::size_t WorkQueue::waiting(Urgency urgency) const {
  std::lock_guard lock(mutex_);
  return lines_[static_cast<std::size_t>(urgency)].size();
}

std::size_t WorkQueue::size() const {
  std::lock_guard lock(mutex_);
  return slots_.size();
}

}  // namespace archipelago::op
