#pragma once
// One operator acts, the others wait: a Lease of coordination.k8s.io/v1. The rule is lease.h; this
// is the loop around it.
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/result.h"
#include "operator/kube/kube_client.h"
#include "operator/kube/write_gate.h"

namespace archipelago::op {

struct LeaderOptions {
  std::string name = "archipelago-operator";
  std::string name_space = "default";
  std::string identity;          // empty: host name and random digits; new with each process
  Duration lease = seconds(15);  // others take over after so long without a renewal
  Duration renew_deadline = seconds(10);  // we stop after so long without one
  Duration retry = seconds(2);            // jittered up to 1.2 times
};
// kInvalid unless lease > renew_deadline > 1.2 x retry and lease is whole seconds: two leaders
// would act at once where the old one may renew longer than the new one waits. Names the operator's
// flags.
[[nodiscard]] Status check_lease_times(const LeaderOptions& options);
// The same, and that the lease is named.
[[nodiscard]] Status check_leader_options(const LeaderOptions& options);

class LeaderElector {
 public:
  // All referenced objects outlive the elector. `boot_clock` is the gate's clock. The gate requires
  // a lease from here on. `on_lost` is called once, from the elector's thread, when a lease that
  // was held is lost: the program ends with kExitLeaseLost.
  LeaderElector(KubeClient& client, const Clock& boot_clock, WriteGate& gate, Logger log,
                LeaderOptions options, std::function<void(const std::string& why)> on_lost,
                Metrics* metrics = nullptr);
  ~LeaderElector();
  LeaderElector(const LeaderElector&) = delete;
  LeaderElector& operator=(const LeaderElector&) = delete;

  void start();
  // Blocks until this process leads; false on stop.
  [[nodiscard]] bool wait_until_leading(std::stop_token stop);
  [[nodiscard]] bool leading() const;
  [[nodiscard]] std::string holder() const;  // last one seen; "" when none
  // Ends the loop and gives a held lease back. Call it after the last write. Idempotent.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace archipelago::op
