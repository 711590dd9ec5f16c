#pragma once
// A learner's decisions (protocol.md §2, §3, §6, §7; paper Algorithm 1): what to snapshot and to
// overwrite at a step boundary, what to upload, fetch and report, when to pause. Pure: no clock,
// socket, thread or tensor. The training thread and the exchange thread share one instance under
// one mutex; no call does more than microseconds of work.
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/diloco/messages.h"

namespace archipelago::diloco {

struct LearnerConfig {
  UnitKey who;
  std::int32_t fragments = 24;  // P
  std::int32_t interval = 24;   // H
  std::int32_t overlap = 2;
  std::int32_t max_lead = 48;
  std::int32_t buffers = 2;      // idle host buffers for snapshots
  std::int32_t ramp_steps = 20;  // learning-rate ramp after a start with fresh moments
};

struct SequenceRef {
  std::uint64_t block = 0;
  std::uint32_t index = 0;  // within the block
};

// (b): copy fragment and counters into host buffer `buffer`, as base - theta.
struct SnapshotOrder {
  GlobalStep t;
  std::int32_t fragment = 0;
  std::int32_t attempt = 1;
  std::int32_t buffer = 0;
  GlobalStep base;
};
// (c): overwrite the fragment with its fetched bytes of `version` and keep them as base.
struct ApplyOrder {
  std::int32_t fragment = 0;
  GlobalStep version;
};

// What the training thread does at a boundary, in this order: snapshot, applies; then the rest.
struct BoundaryPlan {
  std::optional<SnapshotOrder> snapshot;
  std::vector<ApplyOrder> applies;
  // After `applies[validate_after - 1]` (0: before any) the bases are those of version *validate:
  // keep them, evaluate them.
  std::optional<GlobalStep> validate;
  std::size_t validate_after = 0;
  std::optional<RecoveryTask> donate;  // copy the inner state now and send it
  bool paused = false;                 // maxLead, no data, or not recovered: do not step
  bool finished = false;               // the run is over: leave the loop, exit 0
  std::string pause_reason;
  GlobalStep schedule_step;  // drives learning rate and schedules: the highest committed t heard of
  GlobalStep budget;         // T as last heard; 0: not yet
  double rate_scale = 1;     // ramp after fresh moments
};

struct UploadOrder {
  SnapshotOrder snapshot;
  UploadInfo info;  // key, counters, consumed; bytes are the caller's
};
// A base that a rebuilt outer optimizer asks for: PUT it as a keyframe of round 0 (§6).
struct RebuildOrder {
  std::int32_t fragment = 0;
  GlobalStep version;
};
struct FetchOrder {
  std::int32_t fragment = 0;
  GlobalStep have;      // kNoVersion asks for a keyframe
  bool forget = false;  // what is held of it is of a lineage that ended
};

enum class UploadOutcome { kReceipt, kStale, kRefused, kRetry };

class LearnerCore {
 public:
  LearnerCore(LearnerConfig config, TimePoint now);

  // --- training thread
  struct StepDone {
    std::int64_t tokens = 0;
    double seconds = 0;
    double loss = kNoValue;
  };
  // The next sequences to train on; nullopt: not enough leased yet (then call paused_boundary).
  [[nodiscard]] std::optional<std::vector<SequenceRef>> take_sequences(std::uint32_t count);
  [[nodiscard]] BoundaryPlan step_done(const StepDone& step, TimePoint now);
  [[nodiscard]] BoundaryPlan paused_boundary(TimePoint now);  // while paused: whenever news arrives
  void snapshot_taken(GlobalStep t);                          // buffer filled: it may be uploaded
  void exchange_cost(double seconds);                         // of this thread, for the 2% bound
  void validation_started();
  void validation_done(const ValidationReport& report);
  void inner_state_restored(bool fresh, TimePoint now);  // recovered, or started with fresh moments

  void snapshot_lost(GlobalStep t);  // its base is gone with an old lineage: forget it

  // --- exchange thread
  [[nodiscard]] Standing standing() const;  // with the bases: for hello
  [[nodiscard]] ProgressReport report(TimePoint now) const;
  void on_reply(const ProgressReply& reply,
                TimePoint now);  // of hello and progress; lower epochs are ignored
  [[nodiscard]] std::optional<UploadOrder>
  next_upload();  // lowest t not in flight and not answered
  void upload_result(GlobalStep t, std::int32_t attempt, UploadOutcome outcome);
  [[nodiscard]] std::optional<FetchOrder> next_fetch();  // nullopt while one is in flight
  // A fetched frame was decoded: `base` kNoVersion = keyframe. The caller keeps its bytes until the
  // apply order names them.
  void fetched(std::int32_t fragment, GlobalStep base, GlobalStep version);
  void fetch_failed(std::int32_t fragment, bool lost_base);  // lost_base: ask for a keyframe next
  [[nodiscard]] std::optional<RebuildOrder> next_rebuild() const;
  void rebuild_answered(std::int32_t fragment);  // taken, or no longer wanted
  [[nodiscard]] std::int64_t lineage() const { return lineage_; }
  [[nodiscard]] std::optional<RecoveryTask> recover_task() const;
  [[nodiscard]] bool fresh_start_allowed() const;
  void recovery_failed(const std::string& id);

  [[nodiscard]] bool asked_to_seed() const {
    return seed_;
  }                                         // upload every fragment as a keyframe of version 0
  [[nodiscard]] bool needs_report() const;  // something new since the last report()
  [[nodiscard]] LearnerPhase phase() const { return phase_; }
  [[nodiscard]] RunPhase run_phase() const { return run_phase_; }
  [[nodiscard]] double step_seconds() const;
  [[nodiscard]] GlobalStep committed() const { return committed_; }
  [[nodiscard]] LocalStep local_step() const { return local_step_; }
  [[nodiscard]] bool holds_all() const;
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  [[nodiscard]] std::int64_t snapshots_merged() const { return merged_; }
  [[nodiscard]] std::int64_t snapshots_excluded() const { return excluded_; }

 private:
  enum class State { kOrdered, kTaken, kUploading, kReceipted, kRefused };
  struct Snapshot {
    SnapshotOrder order;
    State state = State::kOrdered;
    UploadInfo info;
    bool holds_buffer = false;
    bool ended = false;  // of a lineage that ended while it was being taken or sent
  };
  struct Held {  // a leased block part
    Lease lease;
    std::uint32_t taken = 0;    // handed to the training thread below this
    std::uint32_t trained = 0;  // trained on below this
  };

  BoundaryPlan boundary(TimePoint now);
  void plan_snapshot(BoundaryPlan& plan);
  void order_snapshot(BoundaryPlan& plan, const RoundNews& round);
  void plan_applies(BoundaryPlan& plan);
  [[nodiscard]] bool apply_whole_set(BoundaryPlan& plan);
  void apply(BoundaryPlan& plan, std::int32_t fragment, GlobalStep version);
  void reached(BoundaryPlan& plan);
  void plan_validation(BoundaryPlan& plan);
  void plan_state(BoundaryPlan& plan);
  void adopt_outcomes(const ProgressReply& reply);
  void adopt_leases(const ProgressReply& reply);
  void begin_lineage(const ProgressReply& reply);
  [[nodiscard]] std::vector<BlockPosition> consumed() const;
  [[nodiscard]] std::int32_t idle_buffer() const;
  [[nodiscard]] std::int32_t fragment_of(GlobalStep t) const;
  [[nodiscard]] GlobalStep next_version(std::int32_t fragment, GlobalStep after) const;
  [[nodiscard]] bool contributable(const RoundNews& round) const;
  void release_buffer(Snapshot& snapshot);

  LearnerConfig config_;
  TimePoint started_;
  LearnerPhase phase_ = LearnerPhase::kRecovering;
  RunPhase run_phase_ = RunPhase::kWaiting;
  std::int64_t epoch_ = 0;
  std::int64_t news_ = -1;
  GlobalStep committed_;
  GlobalStep budget_;
  std::vector<RoundNews> rounds_;
  std::vector<GlobalStep> latest_;               // newest published, by fragment
  std::vector<GlobalStep> fetched_;              // newest decoded, by fragment
  std::vector<std::deque<GlobalStep>> arrived_;  // decoded, not yet applied, by fragment
  std::vector<GlobalStep> base_;                 // applied, by fragment
  std::vector<Counters> counters_;               // by fragment
  std::vector<bool> want_keyframe_;
  std::vector<bool> forget_;  // fetch order's `forget`, by fragment
  std::int64_t lineage_ = 0;  // of everything above; 0: none yet
  std::uint64_t lease_mark_ = 0;
  std::vector<std::int32_t> rebuild_;
  bool fetch_ended_ = false;  // the fetch in flight is of a lineage that ended
  GlobalStep applied_;        // all versions up to here are applied
  std::map<GlobalStep, Snapshot> snapshots_;
  std::map<GlobalStep, std::int32_t> attempts_;
  std::vector<bool> buffer_busy_;
  std::optional<std::int32_t> fetching_;
  std::map<std::uint64_t, Held>
      held_;  // by block; a fully trained one goes when the leases no longer name it
  LocalStep local_step_;
  std::int64_t lead_ = 0;  // local steps since the last applied publication
  std::int64_t tokens_ = 0;
  double seconds_in_steps_ = 0, exchange_seconds_ = 0;
  std::deque<double> recent_seconds_, recent_losses_;
  bool recovered_ = false;
  double recovery_seconds_ = 0;
  std::int64_t ramp_left_ = 0;
  std::optional<RecoveryTask> recover_, donate_;
  std::string donated_, recovery_failed_;
  bool fresh_start_ = false, seed_ = false;
  std::optional<GlobalStep> validate_;
  GlobalStep validated_{-1};  // newest version evaluated or declined
  std::optional<ValidationReport> validation_;
  mutable bool dirty_ = true;
  std::int64_t merged_ = 0, excluded_ = 0;
};

}  // namespace archipelago::diloco
