#pragma once
// Closed formulas behind the paper's tables. Units: seconds, bits, bits a second, shares of 1.
#include <array>
#include <cstdint>

namespace archipelago::simulator {

// --- goodput under failures (paper §3.3)
struct AvailabilityConstants {
  double step_seconds = 4;
  double down_seconds = 8;                // reconfiguration when slices left
  double up_seconds = 16;                 // when slices came back
  double restart_seconds = 80;            // of what restarts whole
  double return_seconds_per_slice = 0.6;  // mean return delay over the slices of the cluster
};
struct Availability {
  double goodput = 1, uptime = 1;
};
// Of M learners together. `failures_per_second`: of all chips of the cluster while all are up. The
// share of slices present is the fixed point of losses and returns.
[[nodiscard]] Availability expected_availability(const AvailabilityConstants& constants,
                                                 double failures_per_second, int learners,
                                                 bool elastic);

// --- scavenging (Table 4): half of the FLOPs at 1 + extra times the speed.
[[nodiscard]] double scavenging_time(double extra);

// --- lock-step of unequal learners (Table 5, K = M): mean share of the time spent stepping when
// every step waits for the slowest of `learners`, half of which take 1 / `slow_speed` times as
// long, each step multiplied by 1 + jitter x uniform(-1, 1).
[[nodiscard]] double lockstep_goodput(int learners, double slow_speed, double jitter);

// --- bandwidth (Table 13)
// Bits that a ring all-reduce moves over a datacenter's link: parameters x bits x 2 (D - 1) / D.
[[nodiscard]] double ring_bits(double parameters, double bits, int datacenters);
// Data parallel, layer by layer under the backward pass of `layers` layers: utilisation for a
// bandwidth, and the bandwidth as the paper's search finds it: bisection on [0, 1e14] that stops
// within 0.0055 of the target.
[[nodiscard]] double data_parallel_utilisation(double bits, double step_seconds, int layers,
                                               double bandwidth);
[[nodiscard]] double data_parallel_bandwidth(double bits, double step_seconds, int layers,
                                             double utilisation);
// Decoupled: a cycle of `interval` steps hides `hidden` of them; the rest of the transfer is paid.
[[nodiscard]] double decoupled_bandwidth(double bits, double step_seconds, double utilisation,
                                         double interval, double hidden);
// A link that is always busy, H = P: bandwidth = bits x utilisation / (interval x step).
[[nodiscard]] double busy_link_bandwidth(double bits, double step_seconds, double utilisation,
                                         double interval);
// What the hub of a star carries in a cycle: uploads in and publications out, each way
// learners x (D - 1) / D of the model.
struct StarBits {
  double up = 0, down = 0;
};
[[nodiscard]] StarBits star_bits(double parameters, double up_bits, double down_bits, int learners,
                                 int datacenters);
// The busiest link when fragments are owned by the datacenters in turn; one learner a datacenter:
// in and out each carry uploads and publications.
[[nodiscard]] StarBits sharded_bits(double parameters, double up_bits, double down_bits,
                                    int learners, int datacenters);

// --- recovery (Fig. 12): downtime in steps when one copy of the model takes `copy_steps`.
[[nodiscard]] double data_parallel_recovery(double copy_steps);
[[nodiscard]] double decoupled_recovery(double copy_steps, double interval);

inline constexpr int kTable13Layers = 66;        // fitted: 64 to 72 give the same table
inline constexpr double kTable13Interval = 100;  // H of the paper's bandwidth model, inferred
inline constexpr double kTable13Hidden = 36;     // fitted

}  // namespace archipelago::simulator
