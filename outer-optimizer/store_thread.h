#pragma once
// The thread that owns the Store: merges, journal, checkpoints, seed, export. Jobs run in the order
// in which they were posted, so a state that was posted before a merge is durable before it.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "common/base/mailbox.h"
#include "common/diloco/syncer_core.h"
#include "outer-optimizer/store/store.h"
#include "outer-optimizer/upload_table.h"

namespace archipelago::outer {

// One round, with what it needs to outlive the core's next events.
struct MergeJob {
  GlobalStep t;
  std::int32_t fragment = diloco::kNoFragment;
  struct Member {
    std::string unit;
    UploadPtr upload;
    Incarnation incarnation;
    std::int32_t attempt = 1;
  };
  std::vector<Member> members;  // in order of unit name
  std::vector<std::string> excluded;
  std::string core_state;
  std::uint64_t bytes_up = 0;
};

struct MergeReport {
  GlobalStep t;
  Status status;
  MergeOutcome outcome;
};

class StoreThread {
 public:
  using Job = std::function<void(Store&)>;

  StoreThread(std::unique_ptr<Store> store, Logger log);
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // `on_checkpoint` is called on this thread for each checkpoint that ended.
  void start(std::function<void(CheckpointResult)> on_checkpoint);
  // Jobs that are queued are done first; a running checkpoint is finished.
  void stop();

  // False: stopping or full (then the caller answers "busy").
  [[nodiscard]] bool post(Job job) { return jobs_.push(std::move(job)); }
  [[nodiscard]] std::size_t queued() const { return jobs_.size(); }

  // Any thread: only what Store says may be called from any.
  [[nodiscard]] const Store& store() const { return *store_; }

 private:
  void run(const std::stop_token& stop);

  std::unique_ptr<Store> store_;
  Logger log_;
  Mailbox<Job> jobs_{65536};
  std::function<void(CheckpointResult)> on_checkpoint_;
  std::jthread thread_;
};

// On the store's thread: merge, journal, publish one round (none for a step without a fragment).
[[nodiscard]] MergeReport run_merge(Store& store, const MergeJob& job);
// {"members": [...], "excluded": [...]}: Frame::meta, and back.
[[nodiscard]] std::string frame_meta(const MergeJob& job);
void parse_frame_meta(const std::string& meta, std::vector<std::string>* members,
                      std::vector<std::string>* excluded);

}  // namespace archipelago::outer
