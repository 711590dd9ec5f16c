#include "operator/kube/write_gate.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace archipelago::op {
namespace {
// No destructors: they would wait for threads that may still want to write.
[[noreturn]] void end_process(const std::string& why) {
  std::fprintf(stderr, "archipelago-operator: %s\n", why.c_str());
  std::fflush(stderr);
  std::quick_exit(kExitLeaseLost);
}
}  // namespace

TimePoint BootClock::now() const {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return TimePoint(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

WallTime BootClock::wall() const { return SystemClock().wall(); }

WriteGate::WriteGate(const Clock& boot_clock, std::function<void(const std::string&)> closed)
    : clock_(boot_clock), closed_(closed ? std::move(closed) : end_process) {}

void WriteGate::require_lease(Duration send_window) {
  window_ = send_window.count();
  required_ = true;
}

Duration WriteGate::send_window() const { return Duration(window_.load()); }

void WriteGate::open_until(TimePoint until) { until_ = until.time_since_epoch().count(); }

void WriteGate::close() { until_ = 0; }

bool WriteGate::open() const {
  return !required_.load() || clock_.now().time_since_epoch().count() < until_.load();
}

bool WriteGate::check(const std::string& what) {
  if (!required_.load()) return true;
  const std::int64_t until = until_.load();
  const std::int64_t now = clock_.now().time_since_epoch().count();
  if (now < until) return true;
  const std::string since = until == 0 ? "this process does not hold the lease"
                                       : "the lease was not renewed in time, by " +
                                             std::to_string((now - until) / 1'000'000) + " ms";
  closed_(since + ": not sent: " + what + "; the process ends so that another leader may act");
  return false;
}

}  // namespace archipelago::op
