#pragma once
// The thread that owns SyncerCore (practices: one owner and a mailbox, no locks). Handlers ask it
// and wait boundedly; the store's thread reports to it; it ticks at least every 20 ms. Nothing here
// decides anything about the protocol.
//
// No reply leaves before what it rests on is durable: while a PersistState is on its way, replies
// wait in the outbox, and when the journal has no room they become kNoSpace (507).
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mailbox.h"
#include "common/diloco/syncer_core.h"
#include "common/wire/frame.h"
#include "outer-optimizer/metrics.h"
#include "outer-optimizer/options.h"
#include "outer-optimizer/store_thread.h"
#include "outer-optimizer/tape_log.h"
#include "outer-optimizer/upload_table.h"

namespace archipelago::outer {

// What handlers need of the layout; immutable once published.
struct LayoutView {
  std::string digest;
  wire::Bytes32 digest_bytes{};
  diloco::Fragmentation fragmentation;
  std::int64_t elements = 0;
  std::uint64_t max_upload_payload = 0;  // of the uplink codec, over the fragments
  std::uint64_t max_seed_payload = 0;    // fp32
};

class CoreEngine {
 public:
  CoreEngine(const DaemonOptions& options, std::optional<diloco::SyncerState> recovered,
             StoreThread& store, UploadTable& uploads, DaemonMetrics& metrics, TapeLog& tape,
             Logger log);
  ~CoreEngine();
  CoreEngine(const CoreEngine&) = delete;
  CoreEngine& operator=(const CoreEngine&) = delete;

  // on_fatal: the medium failed or a state could not be kept; the daemon must end. Called once, on
  // the core's thread.
  void start(std::function<void(const Error&)> on_fatal);
  // Answers everything that waits, then joins. The store's thread must still run.
  void stop();
  void note_recovery(const RecoveryReport& report);  // before start(): conditions of what was found
  void checkpoint_ended_later(CheckpointResult result);  // any thread
  void release_held();  // answers held replies now and holds none from here on

  // Handlers, any thread. kUnavailable: busy or stopping; kNoSpace: the journal has no room.
  [[nodiscard]] Result<diloco::HelloReply> hello(const diloco::HelloRequest& request);
  [[nodiscard]] Result<diloco::ProgressReply> progress(const diloco::ProgressReport& report);
  // Where its inner state is wanted, "" where it isn't (SyncerCore::leave).
  [[nodiscard]] Result<std::string> leave(const diloco::UnitKey& who);
  void inner_state_kept(const std::string& name);
  [[nodiscard]] Status known(const diloco::UnitKey& who);  // kFenced and the like
  [[nodiscard]] Status put_layout(diloco::Layout layout, Assets assets);
  [[nodiscard]] Status seed_allowed(const diloco::UnitKey& who);
  [[nodiscard]] Status stage_seed(const diloco::UnitKey& who, FragmentId fragment, Buffer values);
  // A base of a learner for a lost disk (protocol.md §6).
  [[nodiscard]] Status rebuild_allowed(const diloco::UnitKey& who, FragmentId fragment);
  [[nodiscard]] Status stage_base(const diloco::UnitKey& who, FragmentId fragment,
                                  GlobalStep version, Buffer values);
  [[nodiscard]] Status check_lineage(std::int64_t lineage);
  [[nodiscard]] Result<diloco::UploadVerdict> upload_started(const diloco::UploadKey& key,
                                                             std::int32_t fragment, GlobalStep base,
                                                             std::uint64_t bytes);
  void upload_bytes(const diloco::UploadKey& key, std::uint64_t received);
  [[nodiscard]] Result<std::int32_t> upload_complete(const diloco::UploadInfo& info);
  void upload_aborted(const diloco::UploadKey& key);
  void downlink_bytes(std::uint64_t bytes);
  // Durable before it returns; kConflict, kRefused as SyncerCore::apply_settings.
  [[nodiscard]] Status put_settings(const diloco::LiveSettings& settings);

  [[nodiscard]] std::shared_ptr<const LayoutView> layout() const;  // null before one is known
  [[nodiscard]] bool frames_ready() const { return frames_ready_; }
  [[nodiscard]] std::shared_ptr<const std::string> status_text()
      const;  // JSON, at most 200 ms old while the core lives
  [[nodiscard]] GlobalStep committed() const { return GlobalStep(committed_); }
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] Duration since_last_turn() const;  // of the core's loop, for /healthz

 private:
  using Event = std::function<void(TimePoint)>;
  using Release = std::function<void(const Status& durable)>;
  struct Held {
    diloco::UnitKey who;
    std::int64_t seen = 0;
    TimePoint deadline;
    std::shared_ptr<std::promise<Result<diloco::ProgressReply>>> promise;
  };
  struct Retry {
    TimePoint at;
    Event run;
  };

  template <class T>
  Result<T> ask(std::function<Result<T>(TimePoint)> work);
  [[nodiscard]] bool post(Event event);  // from handlers: refused when the mailbox is half full
  void post_internal(Event event);       // from the store's thread: never refused
  void run(const std::stop_token& stop);
  void turn_over(TimePoint now);  // tick, held replies, retries, status
  void handle_progress(const diloco::ProgressReport& report, TimePoint now,
                       std::shared_ptr<std::promise<Result<diloco::ProgressReply>>> promise);
  void note_seeder(const diloco::UnitKey& who, const diloco::ProgressReply& reply);
  void answer_held(TimePoint now, bool all);
  void release(Release what);
  void drain(TimePoint now);
  void persist();
  void persisted(std::int64_t sequence, const Status& status, TimePoint now);
  void start_merge(diloco::StartMerge merge);
  void post_merge(const std::shared_ptr<MergeJob>& job);
  void merged(const std::shared_ptr<MergeJob>& job, const MergeReport& report, TimePoint now);
  void write_metrics_line(const MergeJob& job, const MergeReport& report,
                          std::uint64_t published_xxh3, const diloco::StatusDocument& status);
  void checkpoint_if_due(GlobalStep t);
  void checkpoint_ended(const CheckpointResult& result);
  void seed_staged(const diloco::UnitKey& who, FragmentId fragment, TimePoint now, Release done);
  void commit_seed();
  void commit_rebuilt(GlobalStep committed, std::vector<GlobalStep> versions);
  void raise_epoch(std::int64_t epoch);
  void publish_final(GlobalStep version);
  void write_model();
  void layout_known(const diloco::Layout& layout, const diloco::Fragmentation& fragmentation);
  void publish_status(TimePoint now);
  void set_no_space(bool on, const std::string& message);
  void retry_in(Duration delay, Event event);
  void fatal(const Error& error);

  const DaemonOptions& options_;
  StoreThread& store_;
  UploadTable& uploads_;
  DaemonMetrics& metrics_;
  TapeLog& tape_;
  Logger log_;
  SystemClock clock_;
  diloco::SyncerCore core_;
  std::function<void(const Error&)> on_fatal_;

  // Core thread only.
  std::vector<Held> held_;
  bool hold_replies_ = true;
  std::vector<std::pair<std::int64_t, Release>> outbox_;
  std::int64_t requested_ = 0;  // persists
  std::int64_t durable_ = 0;
  bool persist_failed_ = false;
  std::vector<Retry> retries_;
  bool checkpoint_due_ = false;
  std::optional<diloco::UnitKey> seeder_;
  std::set<std::int32_t> staged_;
  bool seed_committing_ = false;
  TimePoint next_status_{};
  bool failed_ = false;

  std::atomic<bool> frames_ready_{false};
  std::atomic<bool> no_space_{false};
  std::atomic<bool> finished_{false};
  std::atomic<std::int64_t> committed_{0};
  std::atomic<std::int64_t> last_turn_{0};
  mutable std::mutex mutex_;
  std::shared_ptr<const LayoutView> layout_;        // guarded by mutex_
  std::shared_ptr<const std::string> status_text_;  // guarded by mutex_

  Mailbox<Event> events_{16384};
  std::jthread thread_;
};

}  // namespace archipelago::outer
