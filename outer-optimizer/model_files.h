#pragma once
// GET /v1/model and /v1/model/{file} (protocol.md §9): the model of a finished run from model/, or
// any kept checkpoint as the same files, put together while they are sent: the tensors' bytes go
// from the mapped checkpoint to the socket, nothing is copied or written. A checkpoint that is
// pruned meanwhile stays readable for who reads it. Thread-safe.
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "common/http/server.h"
#include "outer-optimizer/store/checkpoint.h"

namespace archipelago::outer {

class ModelFiles {
 public:
  // A reply occupies a worker of its server as long as its reader likes: the next one gets 429.
  static constexpr int kMaxReaders = 4;

  // `finished`: model/ is whole.
  ModelFiles(std::filesystem::path data_dir, std::function<bool()> finished);

  // Both take ?step=S, a kept checkpoint; without it model/ is served once the run is finished,
  // before that the newest checkpoint. X-Archipelago-Step of the reply names the checkpoint, so
  // that a reader of several files can stay with it. Errors: kNotFound (names the steps that are
  // kept), kInvalid (step), kCorrupt, kUnavailable (kMaxReaders).
  [[nodiscard]] Result<http::Reply> list(const http::Request& request);
  [[nodiscard]] Result<http::Reply> get(const http::Request& request);  // args[0]: the name

 private:
  // nullopt: model/.
  [[nodiscard]] Result<std::optional<GlobalStep>> step_of(const http::Request& request) const;
  [[nodiscard]] Result<http::Reply> get_final(const std::string& name);
  [[nodiscard]] Result<http::Reply> get_tensors(const CheckpointInfo& info);
  [[nodiscard]] std::shared_ptr<void> take_reader();  // nullptr: all are taken

  std::filesystem::path checkpoints_, model_;
  std::function<bool()> finished_;
  std::shared_ptr<std::atomic<int>> readers_ = std::make_shared<std::atomic<int>>(0);
  std::mutex mutex_;
  std::set<GlobalStep> verified_;  // guarded by mutex_; checkpoints whose checksums were right
};

// The two routes.
void add_model_routes(http::Server& server, ModelFiles& models);

// A data folder that nobody writes any more (a finished run's claim): model/ holds everything that
// the newest checkpoint says the model has.
[[nodiscard]] bool holds_final_model(const std::filesystem::path& data_dir);

}  // namespace archipelago::outer
