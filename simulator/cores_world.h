#pragma once
// The production SyncerCore and LearnerCores in virtual time over failing chips and links that
// carry so many bits a second: what the third column of the paper's tables and `archipelago
// simulate SPEC` come from. Leaner than world.h: no lost messages, no invariants; a report that
// would say nothing new is not repeated while a reply is held. Times in seconds, sizes in bits.
#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/result.h"
#include "common/diloco/syncer_core.h"
#include "simulator/availability.h"

namespace archipelago::simulator {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct CoresUnit {
  double step_seconds = 1;
  int datacenter = 0;
  bool scavenging = false;
  double join_at = 0;         // seconds
  double join_at_tokens = 0;  // joins when all have trained so many; 1 token = a full step of one
};

// A datacenter's link to the others.
struct CoresLink {
  double up = kUnlimited, down = kUnlimited;  // bits a second
};

struct CoresConfig {
  std::uint64_t seed = 1;
  diloco::SyncerConfig sync;
  std::vector<CoresUnit> units;
  std::vector<CoresLink> links{CoresLink{}};  // by datacenter
  int hub = 0;                                // the outer optimizer's datacenter
  double latency = 0;                         // one way
  double jitter = 0;                          // step x (1 + jitter x uniform(-1, 1))
  // Of a mean fragment; fragment_size scales it (default 1 each).
  double upload_bits = 0, publish_bits = 0, keyframe_bits = 0;
  std::vector<double> fragment_size;
  double state_bits = 0;  // inner optimizer state of one learner
  double merge_seconds = 0;
  // Failures: of one learner's chips while all are there; `slices` of one learner.
  double failures_per_second = 0;
  int slices = 16;
  bool elastic = true;  // shrinks and grows; else a failure restarts the learner whole
  AvailabilityConstants constants;
  double return_shape = 1, return_power = 1;
  // The paper's lock-step at K = M: who has contributed waits until its round is closed.
  bool lockstep = false;
  // The end: whichever comes first. At least one is needed.
  double seconds = 0;
  double tokens = 0;
  std::int64_t global_steps = 0;
};

struct CoresResult {
  double start_seconds = 0;  // until the first commit; all below counts from there
  double seconds = 0;
  std::int64_t learner_steps = 0, global_steps = 0, events = 0, failures = 0;
  double tokens = 0;             // full steps of a learner
  double goodput = 0;            // useful share of the time of those that have joined
  double uptime = 0;             // share of time in which somebody steps
  double mean_participants = 0;  // a round
  double merged_fraction = 0;    // of the trained tokens
  double global_per_step = 0;    // global steps over the mean local steps of those joined
  double short_rounds = 0;       // share of rounds that closed without one that was stepping
  double below_quorum = 0;       // share of time in which fewer than K learners step
  std::vector<double> up_bits, down_bits;  // by datacenter, of its link
  std::vector<double> merged_by_unit;      // share of the unit's tokens
  std::vector<std::int64_t> steps_by_unit;
  std::vector<double> recovery_seconds;  // by unit, of its last join: hello to first step
  std::vector<double> commit_times;      // kept for global steps up to 100000
};

// kInvalid: which field, what was given, what is allowed.
[[nodiscard]] Status check(const CoresConfig& config);
[[nodiscard]] CoresResult run_cores(const CoresConfig& config);

}  // namespace archipelago::simulator
