#pragma once
// The controller: reflectors fill stores and enqueue, workers reconcile, a poller asks the outer
// optimizers. The same on Kubernetes and in `archipelago run`.
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/result.h"
#include "operator/cluster/cluster.h"
#include "operator/plan/options.h"
#include "operator/runtime/outer_status_source.h"

namespace archipelago::op {

struct ControllerOptions {
  PlanOptions plan;
  std::string name_space;  // empty: all
  int workers = 1;
  Duration poll_interval =
      seconds(10);  // jittered by a fifth; 1 s where the cluster is this process
  Duration poll_deadline = seconds(2);
  Duration progress_write_interval = seconds(10);  // status writes of mere progress, per run
  Duration settle_write_interval = seconds(2);     // of pods that come up, per run
  std::uint64_t seed = 1;
};

class Controller {
 public:
  // All referenced objects outlive the controller. `metrics` may be null.
  Controller(Cluster& cluster, OuterStatusSource& source, const Clock& clock, Logger log,
             Metrics* metrics, ControllerOptions options);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  void start();
  void stop();                        // idempotent; waits for the running reconcile
  [[nodiscard]] bool synced() const;  // every store has had its first list
  // What the server forbids to read, so that nothing can be planned; else "".
  [[nodiscard]] std::string blind() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace archipelago::op
