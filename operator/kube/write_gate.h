#pragma once
// No write without a lease. A leader that was stopped and goes on (SIGSTOP, a paused machine) does
// not know that its lease ran out: so every mutating request asks here immediately before it is
// sent, and a closed gate ends the process.
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/clock.h"

namespace archipelago::op {

// CLOCK_BOOTTIME: goes on while the machine sleeps. Its now() is comparable only with itself.
class BootClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override;
  [[nodiscard]] WallTime wall() const override;
};

inline constexpr int kExitLeaseLost = 3;

class WriteGate {
 public:
  // `closed` is called with the reason when a write finds the gate closed; the default prints it
  // and ends the process at once with kExitLeaseLost.
  explicit WriteGate(const Clock& boot_clock, std::function<void(const std::string&)> closed = {});

  // Until this is called the gate is open: a single operator without leader election.
  // `send_window`: how long a request that has passed the gate may take to be sent and answered;
  // the time between our deadline and the lease's end.
  void require_lease(Duration send_window);
  // By the elector: writes are allowed before `until` (last successful renewal, counted from before
  // it was sent, plus the renew deadline).
  void open_until(TimePoint until);
  void close();

  // Immediately before the send of a mutating request (but the lease's own). False only where
  // `closed` returned.
  [[nodiscard]] bool check(const std::string& what);
  [[nodiscard]] bool open() const;             // the same question without consequence
  [[nodiscard]] Duration send_window() const;  // zero: no bound

 private:
  const Clock& clock_;
  std::function<void(const std::string&)> closed_;
  std::atomic<bool> required_{false};
  std::atomic<std::int64_t> until_{0};   // nanoseconds of the boot clock
  std::atomic<std::int64_t> window_{0};  // nanoseconds
};

}  // namespace archipelago::op
