#pragma once
// The operator's parts, put together: API client, leader election, controller, and a port with
// health, readiness and metrics.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/http/server.h"
#include "operator/app/options.h"
#include "operator/kube/kube_cluster.h"
#include "operator/kube/leader.h"
#include "operator/runtime/controller.h"

namespace archipelago::op {

// What /readyz says. Pure.
struct Readiness {
  bool ready = false;
  std::string text;
};
enum class OperatorStage {
  kDiscovering,  // is our resource served?
  kWaiting,      // another replica leads: ready, since it could take over
  kLeading,
};
[[nodiscard]] Readiness readiness(OperatorStage stage, const std::string& discovery, bool synced,
                                  const std::string& blind);

class OperatorDaemon {
 public:
  // Reads the credentials and serves its port; the rest goes on in a thread. Errors are those that
  // a restart alone doesn't cure (credentials, port in use).
  [[nodiscard]] static Result<std::unique_ptr<OperatorDaemon>> start(const OperatorOptions& options,
                                                                     Logger log);
  ~OperatorDaemon();
  OperatorDaemon(const OperatorDaemon&) = delete;
  OperatorDaemon& operator=(const OperatorDaemon&) = delete;

  void request_stop();  // any thread
  // Until a stop is requested (true) or the lease is lost (false).
  [[nodiscard]] bool wait();
  // Workers, then the lease, then the port; idempotent.
  void stop();
  [[nodiscard]] int port() const { return server_->port(); }

 private:
  OperatorDaemon(const OperatorOptions& options, Logger log);
  [[nodiscard]] Status open();
  void work(const std::stop_token& stop);
  [[nodiscard]] bool discover_resource(const std::stop_token& stop);
  [[nodiscard]] bool lead(const std::stop_token& stop);
  void lost(const std::string& why);
  [[nodiscard]] Readiness ready() const;
  void enter(OperatorStage stage, const std::string& text);

  const OperatorOptions options_;
  Logger log_;
  const SystemClock clock_;
  const BootClock boot_clock_;
  Metrics metrics_;
  WriteGate gate_{boot_clock_};
  std::unique_ptr<KubeClient> client_;
  std::unique_ptr<KubeCluster> cluster_;
  std::unique_ptr<OuterStatusSource> source_;
  std::unique_ptr<LeaderElector> elector_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<http::Server> server_;

  mutable std::mutex mutex_;  // guards everything below but the thread
  std::condition_variable_any changed_;
  OperatorStage stage_ = OperatorStage::kDiscovering;
  std::string discovery_ = "asking the API server";
  bool stop_requested_ = false;
  bool lost_ = false;
  bool stopped_ = false;
  std::jthread thread_;
};

}  // namespace archipelago::op
