#include "simulator/formulas.h"

#include <algorithm>
#include <cmath>

namespace archipelago::simulator {

Availability expected_availability(const AvailabilityConstants& c, double failures_per_second,
                                   int learners, bool elastic) {
  const double rate = failures_per_second / learners;
  const double step = c.step_seconds;
  Availability out;
  if (!elastic) {
    const double hit = 1 - std::exp(-rate * step);
    out.goodput = step / (step + hit * c.restart_seconds);
    out.uptime = 1 - std::pow(1 - out.goodput, learners);
    return out;
  }
  double present = 1, up = 1;
  for (int i = 0; i < 200; ++i) {
    const double hit = 1 - std::exp(-rate * step * present);
    const double paused =
        hit * (c.down_seconds + c.up_seconds) - hit * hit * std::min(c.down_seconds, c.up_seconds);
    up = step / (step + paused);
    // Slices away = losses a second x mean delay; of the learner's 1/M of the cluster's slices.
    present = 1 / (1 + failures_per_second * up * c.return_seconds_per_slice);
  }
  out.goodput = present * up;
  out.uptime = 1 - std::pow(1 - up, learners);
  return out;
}

double scavenging_time(double extra) { return 0.5 + 0.5 / (1 + extra); }

double lockstep_goodput(int learners, double slow_speed, double jitter) {
  // E[max] = upper end - integral of P(max <= x); the fast half matters where the ranges overlap.
  const double fast = 1, slow = 1 / slow_speed;
  const int half = learners / 2;
  const auto below = [&](double mean, double x) {
    if (jitter <= 0) return x >= mean ? 1.0 : 0.0;
    return std::clamp((x / mean - 1 + jitter) / (2 * jitter), 0.0, 1.0);
  };
  const double top = slow * (1 + jitter);
  constexpr int kSlices = 20'000;
  double integral = 0;
  for (int i = 0; i < kSlices; ++i) {
    const double x = top * (i + 0.5) / kSlices;
    integral +=
        std::pow(below(slow, x), learners - half) * std::pow(below(fast, x), half) * top / kSlices;
  }
  const double mean = (half * fast + (learners - half) * slow) / learners;
  return mean / (top - integral);
}

double ring_bits(double parameters, double bits, int datacenters) {
  return parameters * bits * 2 * (datacenters - 1) / datacenters;
}

double data_parallel_utilisation(double bits, double step_seconds, int layers, double bandwidth) {
  if (bandwidth <= 0) return 0;
  const double forward = step_seconds / 3, each = bits / layers / bandwidth;
  double done = forward;
  for (int i = 1; i <= layers; ++i)
    done = std::max(done, forward + 2 * step_seconds / 3 * i / layers) + each;
  return step_seconds / done;
}

double data_parallel_bandwidth(double bits, double step_seconds, int layers, double utilisation) {
  double low = 0, high = 1e14, middle = 0;
  for (int i = 0; i < 200; ++i) {
    middle = 0.5 * (low + high);
    const double got = data_parallel_utilisation(bits, step_seconds, layers, middle);
    if (std::abs(got - utilisation) <= 0.0055) break;
    (got < utilisation ? low : high) = middle;
  }
  return middle;
}

double decoupled_bandwidth(double bits, double step_seconds, double utilisation, double interval,
                           double hidden) {
  return bits / (step_seconds * (hidden + interval * (1 / utilisation - 1)));
}

double busy_link_bandwidth(double bits, double step_seconds, double utilisation, double interval) {
  return bits * utilisation / (interval * step_seconds);
}

StarBits star_bits(double parameters, double up_bits, double down_bits, int learners,
                   int datacenters) {
  const double remote = static_cast<double>(learners) * (datacenters - 1) / datacenters;
  return {parameters * up_bits * remote, parameters * down_bits * remote};
}

StarBits sharded_bits(double parameters, double up_bits, double down_bits, int learners,
                      int datacenters) {
  // In: what others upload to the fragments owned here, and what is published elsewhere for the
  // learners here; out is the mirror image.
  const double here = static_cast<double>(learners) / datacenters;
  const double share = static_cast<double>(datacenters - 1) / datacenters;
  const double in = parameters * share * (up_bits * here + down_bits * here);
  return {in, in};
}

double data_parallel_recovery(double copy_steps) { return 3 * copy_steps; }

double decoupled_recovery(double copy_steps, double interval) {
  return std::max(0.0, 4 * copy_steps - interval);
}

}  // namespace archipelago::simulator
