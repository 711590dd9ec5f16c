#pragma once
// A run in virtual time: the production SyncerCore and LearnerCores with a scalar model in place of
// tensors, on a network that loses, repeats, delays and cuts, under parties that die at any event.
// After each event invariants are checked; the same seed gives the same run. Times are in seconds;
// a link's speed is the time that a fragment of size 1 takes.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/diloco/event_tape.h"
#include "common/diloco/syncer_core.h"

namespace archipelago::simulator {

enum class FaultKind {
  kKillLearner,  // the process dies; a new incarnation starts `away` later
  kZombie,  // the process lives on, cut off from its operator only: a new incarnation starts beside
            // it
  kCutLearner,    // its link is down for `away`
  kKillSyncer,    // back `away` later from what was durable
  kKillAtCommit,  // the syncer dies after a commit record is durable and before anybody hears of it
  kLoseDisk,      // the syncer dies and its disk with it: the next one starts empty
  kRestoreDisk,   // the syncer dies, and its disk comes back as it was some commits before
};

struct Fault {
  double at = 0;
  FaultKind kind = FaultKind::kKillLearner;
  int unit = 0;
  double away = 1;
};

// Hears what decides the bytes of a run: each learner's events in their order, and each round when
// its commit is durable. Called from within the world; must not call back.
class WorldObserver {
 public:
  virtual ~WorldObserver() = default;
  virtual void started(const diloco::UnitKey& who, const std::string& datacenter) = 0;
  virtual void did(const diloco::UnitKey& who, diloco::tape::LearnerEvent event) = 0;
  virtual void committed(const diloco::StartMerge& merge) = 0;
  virtual void published_final(GlobalStep version) = 0;
};

struct WorldConfig {
  std::uint64_t seed = 1;
  diloco::SyncerConfig sync;
  std::vector<double> step_seconds{1, 1, 1, 1};  // one a unit
  double jitter = 0.1;
  std::vector<double> up, down;       // one a unit; default 0.05
  std::vector<double> fragment_size;  // default 1 each
  double delay = 0;                   // one way
  double loss = 0, duplicate = 0;     // probability a message
  double merge_seconds = 0.01;
  double heartbeat = 0.25;  // steps
  double time_limit = 1e6;
  std::vector<Fault> faults;
  std::vector<std::uint32_t> sequences_per_step;  // one a unit; default 4
  std::int64_t tokens_per_sequence = 100;
  std::uint64_t dataset_sequences = 100'000;
  std::vector<std::string> datacenters;  // one a unit; default "a" and "b" in turn
  WorldObserver* observer = nullptr;     // not owned; may be null
};

struct WorldResult {
  std::string violation;  // empty: every invariant held and the run finished
  bool finished = false;
  double seconds = 0;  // from the first commit to the last
  std::int64_t committed = 0;
  double mean_participants = 0;
  double merged_fraction = 0;
  std::vector<double> merged_by_unit;  // share of each unit's tokens that entered a merge
  double global_steps_per_step = 0;    // global steps over the mean local steps of the units
  std::int64_t events = 0;
  double first_commit_after_return = 0;  // of the syncer, in seconds; 0 = never away
  double participants_after_return = 0;  // mean over the 10 rounds after it
  std::int64_t rebuilds = 0;             // of a lost disk, from the learners' bases
};

[[nodiscard]] WorldResult run_world(const WorldConfig& config);

// A random schedule of faults, links and sizes from a seed: what the fault tests run by the
// thousand.
[[nodiscard]] WorldConfig random_world(std::uint64_t seed);
// Leaves out faults while the world still fails: what remains is what matters.
[[nodiscard]] WorldConfig shrink(const WorldConfig& failing);
[[nodiscard]] std::string describe(const WorldConfig& config);

}  // namespace archipelago::simulator
