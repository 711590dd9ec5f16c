#pragma once
// The outer optimizer's parts, put together, started and stopped in order.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "common/http/server.h"
#include "outer-optimizer/core_engine.h"
#include "outer-optimizer/routes.h"

namespace archipelago::outer {

class Daemon {
 public:
  // Takes the data folder, recovers, binds both ports, serves. Errors: kRefused (configuration, or
  // a foreign or unusable data folder: exit 12), else what is in the way (port, space, another
  // process).
  [[nodiscard]] static Result<std::unique_ptr<Daemon>> start(const DaemonOptions& options,
                                                             Logger log);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  enum class End { kFinished, kStopped, kFailed };
  // Until the run is finished and has lingered, stop was requested, or the medium failed.
  [[nodiscard]] End wait();
  void request_stop();                    // any thread
  [[nodiscard]] std::string why() const;  // of kFailed
  void stop();                            // readiness off, ports, core, store; idempotent

  [[nodiscard]] int port() const { return learners_->port(); }
  [[nodiscard]] int admin_port() const { return admin_->port(); }
  [[nodiscard]] CoreEngine& engine() { return *engine_; }
  [[nodiscard]] UploadTable& uploads() { return uploads_; }
  [[nodiscard]] http::ServerStats learner_port_stats() const { return learners_->stats(); }

 private:
  Daemon(const DaemonOptions& options, Logger log);
  [[nodiscard]] Status open();
  [[nodiscard]] Result<std::optional<diloco::SyncerState>> open_store();
  [[nodiscard]] Status serve();
  void note_recovery(const RecoveryReport& report);

  const DaemonOptions options_;
  Logger log_;
  UploadTable uploads_;
  DaemonMetrics metrics_;
  std::unique_ptr<RelaySpool> relays_;
  std::unique_ptr<StoreThread> store_;
  std::unique_ptr<TapeLog> tape_;
  std::unique_ptr<CoreEngine> engine_;
  std::unique_ptr<ModelFiles> models_;
  TrailerCache trailers_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<http::Server> learners_;
  std::unique_ptr<http::Server> admin_;
  std::atomic<bool> ready_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_requested_ = false;   // guarded by mutex_
  std::optional<Error> failure_;  // guarded by mutex_
  bool stopped_ = false;
};

}  // namespace archipelago::outer
