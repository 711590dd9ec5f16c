#pragma once
// The third column: what the production cores do in the settings of the paper's tables.
#include <array>
#include <cstdint>
#include <vector>

#include "simulator/cores_world.h"
#include "simulator/formulas.h"

namespace archipelago::simulator {

// Table 1: M learners on that many chips of a year's interval, 128 slices in all, K = 1 with grace.
[[nodiscard]] CoresResult cores_availability(std::uint64_t seed, int learners, double chips,
                                             bool elastic, const AvailabilityConstants& constants);

// Table 4: time to train the same tokens, relative to four learners alone, when 4 x extra
// scavengers join at half.
[[nodiscard]] double cores_scavenging_time(std::uint64_t seed, double extra);

// Table 5: eight learners, four at 0.82 of the speed, 10 % jitter; a fragment takes 0.05 step on
// each link.
struct QuorumSetting {
  int quorum = 1;
  diloco::GraceKind grace = diloco::GraceKind::kSteps;
  bool lockstep = false;  // the paper's: who has contributed waits for its round to close
};
[[nodiscard]] CoresResult cores_quorum(std::uint64_t seed, const QuorumSetting& setting);

// Table 13: of the contributions of a step the share that is merged when the hub's link takes
// `round_steps` steps to carry all of a round's uploads, or its publications; 8 learners, K = 1.
[[nodiscard]] CoresResult cores_hub(std::uint64_t seed, int datacenters, double round_steps,
                                    int quorum);
// The largest round_steps at which the share of `utilisation` is reached, by bisection.
[[nodiscard]] double cores_hub_steps(std::uint64_t seed, int datacenters, double utilisation);

// Fig. 12: a learner joins eight others when one bf16 copy of the model takes copy_steps on each
// learner's link.
struct Joining {
  double others_downtime = 0;  // steps by which the others' 200 next global steps are late
  double own_steps = 0;        // hello to first step of the newcomer
};
[[nodiscard]] Joining cores_joining(std::uint64_t seed, double copy_steps);

}  // namespace archipelago::simulator
