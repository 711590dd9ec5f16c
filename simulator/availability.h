#pragma once
// Goodput of learners under failing chips, without the cores (paper §3.3; the loop and the fitted
// constants: docs/simulator.md). Chips are not simulated one by one: the failures of a step are one
// Poisson draw, and steps in which nothing can happen are skipped at once.
#include <cstdint>
#include <vector>

#include "common/base/result.h"
#include "common/base/rng.h"
#include "simulator/formulas.h"

namespace archipelago::simulator {

// Exponentiated Weibull F(x) = (1 - exp(-(x / scale)^shape))^power; both exponents 1: exponential.
class ReturnDelay {
 public:
  ReturnDelay(double mean_seconds, double shape, double power);
  [[nodiscard]] double draw(Rng& rng) const { return quantile(rng.uniform()); }

 private:
  [[nodiscard]] double quantile(double u) const;
  double scale_ = 1, shape_ = 1, power_ = 1;
};

struct AvailabilityConfig {
  std::uint64_t seed = 1;
  double chips = 1.2e6;
  double mtbi_seconds = 365.0 * 24 * 3600;  // of one chip
  int learners = 8;                         // M
  int slices = 128;                         // of the whole cluster; a failing chip takes its slice
  bool elastic = true;                      // else a learner restarts whole
  double seconds = 3e6;                     // simulated
  double return_shape = 1, return_power = 1;
  AvailabilityConstants constants;
};

struct AvailabilityResult {
  double goodput = 0;  // share of the cluster's time in useful steps
  double uptime = 0;   // share of time in which some learner steps
  double learner_uptime = 0;
  std::int64_t failures = 0, pauses = 0, events = 0;
};

// Errors (kInvalid) name the field, what was given and what is allowed.
[[nodiscard]] Status check(const AvailabilityConfig& config);
[[nodiscard]] AvailabilityResult simulate_availability(const AvailabilityConfig& config);

// Zero-truncated Poisson: how many failures a step had, given that it had some.
[[nodiscard]] int draw_some_failures(Rng& rng, double mean);

// One learner's slices: who is away until when. Shared with the world that drives the cores.
class SlicePool {
 public:
  explicit SlicePool(int total) : total_(total) {}
  [[nodiscard]] int present() const { return total_ - static_cast<int>(away_.size()); }
  [[nodiscard]] int total() const { return total_; }
  [[nodiscard]] double next_return() const;  // infinity: none away
  // At a step's end: `lost` slices leave (one always stays), those due come back. Returns the pause
  // for reconfiguration: the longer where both happened.
  double step_end(int lost, double now, const ReturnDelay& delay, const AvailabilityConstants& c,
                  Rng& rng);

 private:
  int total_;
  std::vector<double> away_;  // heap, soonest first
};

}  // namespace archipelago::simulator
