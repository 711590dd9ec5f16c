#pragma once
// What learners and the outer optimizer tell each other, as values (protocol.md §2-§9). JSON forms:
// common/wire. Every report and reply is cumulative, so a lost, repeated or reordered one costs
// nothing but time.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/diloco/lease.h"
#include "common/diloco/settings.h"

namespace archipelago::diloco {

inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::int32_t kNoFragment = -1;
inline constexpr GlobalStep kNoVersion{-1};  // "holds nothing"; 0 is the seed

// Who speaks. session: 128 random bits as 32 hex digits, one a process (§4).
struct UnitKey {
  std::string unit;
  Incarnation incarnation;
  std::string session;
  friend bool operator==(const UnitKey&, const UnitKey&) = default;
};

enum class LearnerPhase { kRecovering, kStepping, kWaiting, kValidating };
enum class RunPhase { kWaiting, kRunning, kFinishing, kFinished };

// A contribution is new per (unit, incarnation, session, t, attempt).
struct Contribution {
  GlobalStep t;
  std::int32_t attempt = 1;
  friend bool operator==(const Contribution&, const Contribution&) = default;
};

// What a process knows of the run from an outer optimizer that it heard before (§6): all that is
// left of one whose disk is lost.
struct Standing {
  std::int64_t epoch = 0;         // highest heard
  std::int64_t lineage = 0;       // of its bases: ProgressReply::lineage; 0: none yet
  GlobalStep committed;           // highest heard
  std::uint64_t lease_mark = 0;   // highest heard, and above every block that it holds
  std::vector<GlobalStep> bases;  // versions held, one a fragment; empty unless all are held. hello
                                  // alone carries it
};

struct HelloRequest {
  UnitKey who;
  Standing standing;
  std::string datacenter;
  bool scavenging = false;
  bool can_validate = true;
  std::string layout_digest;  // hex SHA-256 of the layout's text
  std::uint64_t dataset_sequences = 0;
  std::string dataset_digest;  // of path-independent facts: format, size, context length
  std::uint32_t sequences_per_step = 1;
  std::string address;  // where a peer in the same datacenter may fetch inner state; empty: nowhere
};

struct ValidationReport {
  GlobalStep version;
  double loss = kNoValue;  // mean nats per token
  std::int64_t tokens = 0;
  bool declined = false;  // already past that version
};

struct ProgressReport {
  UnitKey who;
  std::int64_t news = 0;  // ProgressReply::news last seen; -1 asks for an answer at once
  LearnerPhase phase = LearnerPhase::kRecovering;
  LocalStep local_step;         // of this incarnation
  double step_seconds = 0;      // xi_step: mean of the last 8 inner steps; 0 = none yet
  std::int64_t tokens = 0;      // trained by this incarnation
  double seconds_in_steps = 0;  // spent in completed inner steps by this incarnation
  double exchange_seconds = 0;  // of the training thread, spent on snapshots and overwrites
  double loss = kNoValue;       // mean of the last 8 inner steps
  std::vector<Contribution> contributes;  // every one not known to be committed
  std::vector<GlobalStep> declines;       // open rounds whose base is missing: not yet
  std::vector<BlockPosition> consumed;    // of every block held
  bool holds_all = false;                 // every fragment at some published version
  bool wants_inner_state = false;         // a newcomer without moments
  std::string recovery_failed;            // id of a relay that did not work: another donor, please
  double recovery_seconds = 0;            // from hello to the first completed step; 0 while unknown
  GlobalStep applied;                     // newest version applied
  Standing standing;                      // without the bases
  std::optional<ValidationReport> validation;
};

struct RoundNews {
  GlobalStep t;
  std::int32_t fragment = kNoFragment;
  GlobalStep base = kNoVersion;
  bool open = true;
  friend bool operator==(const RoundNews&, const RoundNews&) = default;
};

struct Outcome {
  GlobalStep t;
  bool merged = false;
};

// Inner optimizer state from `donor` to `unit` through relay `id` (§6).
struct RecoveryTask {
  std::string id;
  std::string peer;
};

struct ProgressReply {
  std::int64_t epoch = 0;
  std::int64_t news = 0;
  RunPhase phase = RunPhase::kWaiting;
  GlobalStep committed;
  std::vector<RoundNews> rounds;     // every uncommitted announced round, by t
  std::vector<Outcome> outcomes;     // of every reported contribution that is committed
  std::vector<GlobalStep> versions;  // newest published of each fragment; empty before the seed
  std::vector<Lease>
      leases;  // every block part that this incarnation holds and has not reported as consumed
  bool seed = false;  // initialise and upload every fragment as a keyframe of version 0
  std::vector<std::int32_t> rebuild;  // upload the bases of these fragments: the disk is lost
  // Random number of the published history, drawn when a run is seeded, rebuilt or rolled back.
  // Versions of different lineages have nothing to do with each other. 0: nothing published.
  std::int64_t lineage = 0;
  std::uint64_t lease_mark = 0;         // no block from here on was leased to anybody
  std::optional<GlobalStep> validate;   // evaluate the bases at this version
  std::optional<RecoveryTask> donate;   // copy the inner state at a boundary and PUT it there
  std::optional<RecoveryTask> recover;  // GET the inner state there
  bool fresh_start = false;             // nobody has inner state: start with fresh moments
  GlobalStep budget;                    // T as it is now; 0: not said
  double heartbeat_seconds = 1;
};

struct HelloReply {
  std::string run_id;
  bool layout_needed = false;  // PUT /v1/layout/{digest} first, then hello again
  ProgressReply progress;
};

// Counters of a fragment at its snapshot, carried inside the upload (§2.7).
struct Counters {
  std::int64_t steps = 0;  // since the fragment was last overwritten
  std::int64_t tokens = 0;
};

struct UploadKey {
  UnitKey who;
  GlobalStep t;
  std::int32_t attempt = 1;
  friend bool operator==(const UploadKey&, const UploadKey&) = default;
};

// What became of the contributions to a committed step.
struct CommitRecord {
  GlobalStep t;
  std::int32_t fragment = kNoFragment;
  std::vector<UploadKey> members, excluded;
};

// A complete, validated upload, stored encoded by the daemon under its key.
struct UploadInfo {
  UploadKey key;
  std::int32_t fragment = 0;
  GlobalStep base;
  Counters counters;
  LocalStep local_step;
  std::vector<BlockPosition> consumed;
  std::uint64_t bytes = 0;
};

struct UnitStatus {
  std::string name, datacenter, phase;
  Incarnation incarnation;
  LocalStep local_step;
  double step_seconds = 0;
  std::int64_t tokens = 0;  // over all incarnations, like the sums below
  std::int64_t steps = 0;
  double seconds_in_steps = 0;
  double exchange_seconds = 0;
  std::int64_t merged_rounds = 0;
  double last_heard_seconds = 0;
  double stepping_seconds = 0;
  double tokens_per_second = 0;
  double uplink_bytes_per_second = 0;
  std::vector<double> recovery_seconds;  // one an incarnation that recovered
};

struct StatusDocument {
  std::string phase, run_id;
  std::int64_t epoch = 0;
  GlobalStep global_step, budget;
  LiveSettings settings;  // in force
  std::int64_t tokens = 0;
  double loss = kNoValue, validation_loss = kNoValue;
  GlobalStep validation_step;
  double merged_fraction = 0;
  double merged_tokens = 0;  // tokens that entered a committed merge, a fragment's share each
  std::int64_t bytes_up = 0, bytes_down = 0;
  GlobalStep last_checkpoint_step;
  std::int64_t rounds = 0;  // committed with a fragment
  double mean_participants = 0;
  std::string last_decision;  // the reason of the newest decision, for people
  struct Condition {
    std::string type, status, reason, message;
  };
  std::vector<Condition> conditions;
  std::vector<UnitStatus> units;
  struct Fenced {
    std::string name;
    Incarnation highest;
  };
  std::vector<Fenced> fenced;
};

}  // namespace archipelago::diloco
