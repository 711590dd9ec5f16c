#pragma once
// Keys to reconcile: one slot a key however often it is added, never handed to two workers at once,
// delayed and rate-limited re-adds. Events of children go before what the poller and the timers
// bring, and both before new runs: a failure waits for nobody's report, and what has begun is
// finished first.
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "operator/cluster/object.h"

namespace archipelago::op {

enum class Urgency {
  kUrgent,   // a child of the run changed
  kStarted,  // a run that was looked at before: a report, a timer
  kNew,      // a run that has nothing yet
};

class WorkQueue {
 public:
  WorkQueue(const Clock& clock, std::uint64_t seed,
            BackoffPolicy backoff = {seconds(0.2), seconds(60), 2.0, 0.2});

  void add(const ObjectKey& key, Urgency urgency);
  // Of several times for one key the earliest counts.
  void add_after(const ObjectKey& key, Duration delay);
  // After the key's own backoff, which grows until forget(). A failure while one still runs (an
  // event woke the key meanwhile) is the same failure again: it waits for the same time.
  void add_rate_limited(const ObjectKey& key);
  void forget(const ObjectKey& key);
  // Blocks; nullopt on stop. The caller says done(key) afterwards.
  [[nodiscard]] std::optional<ObjectKey> take(std::stop_token stop);
  void done(const ObjectKey& key);
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t waiting(Urgency urgency) const;

 private:
  struct Slot {
    TimePoint at{};
    Urgency urgency = Urgency::kNew;
  };
  using Line = std::set<std::pair<TimePoint, ObjectKey>>;
  // With the lock.
  void schedule(const ObjectKey& key, Slot wanted);
  [[nodiscard]] std::optional<ObjectKey> take_due(TimePoint now, TimePoint* next);
  Line& line(Urgency urgency) { return lines_[static_cast<std::size_t>(urgency)]; }

  const Clock& clock_;
  const BackoffPolicy backoff_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable_any changed_;
  Rng rng_;
  std::map<ObjectKey, Slot> slots_;
  std::array<Line, 3> lines_;  // by urgency: slots whose key is not being worked on
  std::set<ObjectKey> running_;
  struct Failures {
    int count = 0;
    TimePoint until{};  // of the backoff that runs
  };
  std::map<ObjectKey, Failures> failures_;
  std::uint64_t changes_ = 0;
};

}  // namespace archipelago::op
