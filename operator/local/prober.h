#pragma once
// Startup, liveness and readiness probes of one running pod, on a thread of their own.
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "operator/local/pod_launch.h"

namespace archipelago::op {

struct ProbeVerdict {
  bool ready = false;
  bool dead = false;    // liveness or startup failed failureThreshold times in a row
  std::string message;  // why
  Duration grace{};     // before SIGKILL
};

class Prober {
 public:
  explicit Prober(const PodLaunch& launch);
  ~Prober();
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;
  [[nodiscard]] ProbeVerdict verdict() const;

 private:
  struct Check {
    Probe probe;
    TimePoint since;
    TimePoint next;
    int failures = 0;
  };
  void loop(std::stop_token stop);
  // True when the answer was 2xx or 3xx within the time-out.
  static bool ask(const Probe& probe, std::string* why);
  void run_startup(TimePoint now);
  void run_liveness(TimePoint now);
  void run_readiness(TimePoint now);
  void declare_dead(const Check& check, const char* kind, const std::string& why);

  const Duration pod_grace_;
  std::optional<Check> startup_, liveness_, readiness_;
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  ProbeVerdict verdict_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace archipelago::op
