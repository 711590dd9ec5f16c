#pragma once
// Writes one checkpoint from the live arrays on a thread of its own, while merges go on. Fragments
// are written in the order in which they are due; before the owner changes a fragment it calls
// wait_for(), which returns at once when that one is written and otherwise has it written next.
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "outer-optimizer/store/checkpoint.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::outer {

class CheckpointTask {
 public:
  struct Plan {
    std::filesystem::path checkpoints;
    std::filesystem::path journal;
    CheckpointInfo info;
    std::vector<FragmentId> order;  // every fragment once
    std::int64_t keep = 1;
    std::int64_t keep_every = 0;
  };

  CheckpointTask(FileOps& ops, const FragmentStore& store, Plan plan);
  // Stops between two fragments; an unfinished checkpoint leaves nothing behind.
  ~CheckpointTask();
  CheckpointTask(const CheckpointTask&) = delete;
  CheckpointTask& operator=(const CheckpointTask&) = delete;

  void wait_for(FragmentId p);
  [[nodiscard]] bool ended() const;
  // Joins; kCancelled when it was stopped.
  [[nodiscard]] Status result();
  [[nodiscard]] GlobalStep step() const { return plan_.info.step; }
  [[nodiscard]] double seconds() const { return seconds_; }  // after result()

 private:
  void run(const std::stop_token& stop);
  [[nodiscard]] Status write(const std::stop_token& stop);
  [[nodiscard]] std::optional<FragmentId> next();

  FileOps& ops_;
  const FragmentStore& store_;
  Plan plan_;
  double seconds_ = 0;
  Status status_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> written_;  // by fragment; guarded by mutex_, as the rest
  std::optional<FragmentId> urgent_;
  bool ended_ = false;
  std::jthread thread_;
};

}  // namespace archipelago::outer
