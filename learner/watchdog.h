#pragma once
// Ends the process when the training thread does not complete a step for too long (protocol.md §9,
// exit code 14): a stuck step cannot be unstuck from within. Waiting, recovering and validating
// don't count. A process that was stopped and continued is given a fresh start.
#include <atomic>
#include <functional>
#include <thread>

#include "common/base/clock.h"

namespace archipelago::learner {

// The decision, pure. `idle`: since the last completed step or the last pause.
[[nodiscard]] bool watchdog_bites(bool stepping, Duration idle, Duration stall, Duration mean_step);

class Watchdog {
 public:
  // `bite` must not return to normal life: it runs on the watchdog's thread while the training
  // thread is stuck.
  Watchdog(Duration stall, std::function<void(Duration idle)> bite);
  ~Watchdog();

  void stepping(Duration mean_step);  // training thread: a step was completed or begins
  void paused();                      // training thread: waiting, recovering or validating

 private:
  Duration stall_;
  std::function<void(Duration)> bite_;
  SystemClock clock_;
  std::atomic<bool> stepping_{false};
  std::atomic<std::int64_t> beat_{0};  // ns of the clock
  std::atomic<std::int64_t> mean_step_{0};
  std::jthread thread_;
};

}  // namespace archipelago::learner
