#pragma once
// What of a tape has to be done to have its global steps again, found before anything is trained: a
// learner's events matter as far as something merged rests on them. Pure.
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "replay/tape_content.h"

namespace archipelago::replay {

using DonationKey = std::pair<LearnerKey, std::string>;                // donor and relay
using SnapshotKey = std::tuple<LearnerKey, GlobalStep, std::int32_t>;  // t and attempt

struct ReplayPlan {
  GlobalStep until;     // steps 1..until can be trained again
  std::string stopped;  // why not further; empty: everything asked for
  std::optional<LearnerKey> seeder;
  std::map<LearnerKey, std::size_t> needed;      // events of each learner that are done
  std::map<SnapshotKey, std::size_t> snapshots;  // event of each; of a repeat the last
  std::map<DonationKey, std::size_t> donations;  // the same
  std::map<DonationKey, int> donation_uses;      // restores that need it
  std::map<std::pair<GlobalStep, std::int32_t>, int> version_uses;  // overwrites with (t, p)
};

// kInvalid: no learner seeded, or `until` is beyond the tape.
[[nodiscard]] Result<ReplayPlan> plan_replay(const TapeContent& tape,
                                             std::optional<GlobalStep> until);

}  // namespace archipelago::replay
