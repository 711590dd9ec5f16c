#pragma once
// The outer optimizer's decisions: which rounds are announced, when they close, who is merged, what
// comes next (protocol.md §2-§9; paper Algorithm 2 and §3.2). Pure: no clock, socket, thread, file
// or tensor. One owner thread calls it with an event and the time, then drains the effects. Inside,
// RoundClock (lead) and FragmentOwner exchange small messages, so that owners can later live in
// other processes (protocol.md §13).
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/diloco/data_ledger.h"
#include "common/diloco/messages.h"
#include "common/diloco/settings.h"

namespace archipelago::diloco {

struct SyncerConfig {
  std::string run_id;
  std::int32_t fragments = 24;  // P
  std::int32_t interval = 24;   // H
  std::int32_t overlap = 2;     // tau
  std::int32_t quorum = 1;      // K
  GraceKind grace = GraceKind::kSteps;
  double grace_steps = 1.5;
  double grace_fraction = 0.8;
  GlobalStep budget{2000};  // T
  std::int32_t max_lead = 48;
  std::int32_t start_units = 1;
  Duration start_timeout = std::chrono::seconds(300);
  Duration min_silence = std::chrono::seconds(10);  // heard within max(this, 4 x step time)
  Duration unmeasured_upload = std::chrono::seconds(60);
  Duration recovery_timeout{};      // 0: max(60 s, H x step time)
  std::int64_t validate_every = 0;  // global steps; 0: only at the end, where somebody can
  bool validate_at_end = true;
  std::uint64_t data_seed = 1;
  double heartbeat_seconds = 1;  // upper bound of a held reply
  std::int32_t max_units = 512;  // names ever seen
  Duration rebuild_window =
      std::chrono::seconds(3);    // in which learners find an empty disk's owner
  std::int64_t lineage_draw = 1;  // random, > 0: lineages of this process are made of it
  // quorum, grace* and budget above are of this generation of this resource; a newer set in the
  // journal goes before them.
  std::int64_t settings_generation = 1;
  std::string settings_source;
};

// Everything of the core that must survive the process; wire/state_json writes it into journal and
// checkpoint. merge_newer() is monotone: records may be replayed in any order.
struct SyncerState {
  struct Identity {
    Incarnation incarnation;
    std::string session;
    std::string datacenter;
    bool scavenging = false, can_validate = true;
    std::uint32_t sequences_per_step = 1;
    struct Totals {
      std::int64_t tokens = 0, steps = 0;
      double seconds_in_steps = 0, exchange_seconds = 0;
    };
    Totals past, current;  // of earlier incarnations; of this one, as it reports them
    std::int64_t merged_rounds = 0;
    std::vector<double> recovery_seconds;
  };
  std::int64_t epoch = 0;    // the newest that wrote
  std::int64_t lineage = 0;  // of the published versions (ProgressReply::lineage)
  GlobalStep committed;
  bool seeded = false;
  bool final_published = false, finished = false;
  std::string layout_digest;
  std::uint64_t dataset_sequences = 0;
  std::string dataset_digest;
  std::map<std::string, Identity> units;
  std::optional<LedgerSnapshot> ledger;
  std::optional<SettingsRecord> settings;
  std::map<GlobalStep, CommitRecord>
      recent;  // the newest commits, at most kRecent: senders ask what became of them
  static constexpr std::size_t kRecent = 256;
  double merged_tokens = 0;
  std::int64_t rounds = 0, participants = 0, bytes_up = 0, bytes_down = 0;
  double validation_loss = kNoValue;
  GlobalStep validation_step;
  void merge_newer(const SyncerState& other);
  // What was published stands at `step`, no longer further: what was said of later steps is
  // forgotten, identities and lease marks are not, and the lineage has ended.
  void back_to(GlobalStep step);
};

struct MergeMember {
  UploadKey key;
  Counters counters;
};

// Effects, in the order in which they must be carried out.
struct PersistState {
};  // journal state() durably before any reply leaves the process; on failure answer 507
    // to everybody until it worked: identities and lease marks count on it
struct RaiseEpoch {  // the data folder's counter, durably, before the next PersistState
  std::int64_t epoch;
};
struct StartMerge {  // merge, journal with state, publish version t; then committed() or
                     // merge_failed()
  GlobalStep t;
  std::int32_t fragment = kNoFragment;
  std::vector<MergeMember> members;  // in order of unit name
  std::vector<UploadKey> excluded;
  SyncerState state;  // as it will be once t is committed: part of t's journal record
};
struct DropUpload {  // free the stored bytes; also sent for those of a committed round
  UploadKey key;
};
struct PublishFinal {  // published := master, every fragment a keyframe; then final_published()
  GlobalStep version;  // T + 1
};
struct WriteModel {};  // write model/ and the last manifest; then model_written()
using Effect =
    std::variant<PersistState, RaiseEpoch, StartMerge, DropUpload, PublishFinal, WriteModel>;

enum class UploadVerdict {
  kAccept,
  kRepeat
};  // kRepeat: already complete, answer the same receipt without reading

class SyncerCore {
 public:
  // `recovered`: what journal and checkpoint held; its epoch is below `epoch`.
  SyncerCore(SyncerConfig config, std::int64_t epoch, std::optional<SyncerState> recovered,
             TimePoint now);
  ~SyncerCore();
  SyncerCore(const SyncerCore&) = delete;
  SyncerCore& operator=(const SyncerCore&) = delete;

  // The layout as the daemon knows it; fragment shares weigh merged tokens (elements of p / all).
  void set_layout(const std::string& digest, std::vector<double> fragment_shares);

  // Errors: kFenced (message names the highest incarnation), kRefused (layout or data set differs),
  // kTooLarge.
  [[nodiscard]] Result<HelloReply> hello(const HelloRequest& request, TimePoint now);
  [[nodiscard]] Result<ProgressReply> progress(const ProgressReport& report, TimePoint now);
  // True when a reply held since `seen` should go out now.
  [[nodiscard]] bool has_news(const UnitKey& who, std::int64_t seen) const;
  [[nodiscard]] Result<ProgressReply> reply(const UnitKey& who, TimePoint now) const;
  // Returns the name under which its inner state is wanted when nobody else has any (§6), else "".
  std::string leave(const UnitKey& who, TimePoint now);
  // Inner state that a learner left behind is on the disk under this name (one that leave() gave,
  // in this process or an earlier one): the donor while no learner is one.
  void inner_state_kept(const std::string& name);

  // Uploads. Errors: kFenced, kConflict (stale base, round not open or closed, other attempt),
  // kInvalid.
  [[nodiscard]] Result<UploadVerdict> upload_started(const UploadKey& key, std::int32_t fragment,
                                                     GlobalStep base, std::uint64_t bytes,
                                                     TimePoint now);
  // kConflict: `lineage` (that of the sender's bases) is not that of what is published.
  [[nodiscard]] Status check_lineage(std::int64_t lineage) const;
  [[nodiscard]] std::int64_t lineage() const;  // of what is published; 0: nothing is
  void upload_bytes(const UploadKey& key, std::uint64_t received, TimePoint now);
  // Returns the attempt named by the receipt (the first complete one wins).
  [[nodiscard]] Result<std::int32_t> upload_complete(const UploadInfo& info, TimePoint now);
  void upload_aborted(const UploadKey& key, TimePoint now);

  // The daemon staged every fragment of the seed.
  [[nodiscard]] Status seeded(const UnitKey& who, TimePoint now);
  // Rebuild of a lost disk (§6). kConflict: that sender is not, or no longer, asked for the
  // fragment.
  [[nodiscard]] Status rebuild_allowed(const UnitKey& who, std::int32_t fragment) const;
  // The daemon staged the sender's base of `version`. True: it was the last one missing, and the
  // run stands as versions() and state() say: to be committed as a seed is, before any other
  // effect.
  [[nodiscard]] Result<bool> rebuild_staged(const UnitKey& who, std::int32_t fragment,
                                            GlobalStep version, TimePoint now);
  void rebuild_unstaged(std::int32_t fragment);  // something else was staged over it
  // What is published is older than what was: learners take keyframes. Before any event.
  void rolled_back(const std::string& message);
  [[nodiscard]] std::vector<GlobalStep> versions() const;  // newest published, by fragment
  void committed(GlobalStep t, std::uint64_t bytes_up, TimePoint now);
  void merge_failed(GlobalStep t, TimePoint now);  // no space: tried again on later ticks
  void final_published(TimePoint now);
  void model_written(TimePoint now);
  // Quorum, grace and budget from here on: a round keeps the quorum it was announced with, unless
  // the new one is lower. kConflict: an older generation; kRefused: a value that is not allowed.
  [[nodiscard]] Status apply_settings(const LiveSettings& settings, TimePoint now);
  void downlink_bytes(std::uint64_t bytes);
  void checkpoint_written(GlobalStep t);
  void set_condition(StatusDocument::Condition condition);

  void tick(TimePoint now);  // at least every 50 ms; a gap above 1 s is time in which nobody could
                             // be heard
  [[nodiscard]] std::vector<Effect> take_effects();
  [[nodiscard]] SyncerState state() const;
  [[nodiscard]] StatusDocument status(TimePoint now) const;
  [[nodiscard]] bool finished() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace archipelago::diloco
