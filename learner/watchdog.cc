#include "learner/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace archipelago::learner {
namespace {
constexpr Duration kTick = std::chrono::milliseconds(250);
constexpr int kMeanSteps = 20;
}  // namespace

bool watchdog_bites(bool stepping, Duration idle, Duration stall, Duration mean_step) {
  return stepping && idle > std::max(stall, kMeanSteps * mean_step);
}

Watchdog::Watchdog(Duration stall, std::function<void(Duration)> bite)
    : stall_(stall), bite_(std::move(bite)) {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never;
    TimePoint last = clock_.now();
    while (!stop.stop_requested()) {
      {
        std::unique_lock lock(mutex);
        never.wait_for(lock, stop, kTick, [] { return false; });
      }
      const TimePoint now = clock_.now();
      if (now - last > 8 * kTick) beat_ = now.time_since_epoch().count();  // we did not run either
      last = now;
      const Duration idle = now.time_since_epoch() - Duration(beat_.load());
      if (!stop.stop_requested() &&
          watchdog_bites(stepping_, idle, stall_, Duration(mean_step_.load()))) {
        bite_(idle);
        return;
      }
    }
  });
}

Watchdog::~Watchdog() = default;

void Watchdog::stepping(Duration mean_step) {
  beat_ = clock_.now().time_since_epoch().count();
  mean_step_ = mean_step.count();
  stepping_ = true;
}

void Watchdog::paused() { stepping_ = false; }

}  // namespace archipelago::learner
