#pragma once
// Scheduler, node controller and kubelet of a local run in one thread: pods of a MemoryCluster
// become processes, with the semantics that the operator relies on (docs/architecture.md "One fake
// that is a product").
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/result.h"
#include "operator/cluster/memory_cluster.h"
#include "operator/local/addresses.h"
#include "operator/local/cgroup.h"

namespace archipelago::op {

struct LocalNode {
  std::string name;
  std::string datacenter;
  double cpu = 1;  // capacity in cores: pods beyond it stay Pending, Unschedulable
};

struct KubeletOptions {
  std::filesystem::path run_dir;   // absolute; logs/, volumes/, pods/ are made in it
  std::filesystem::path bin_dir;   // the daemons
  std::filesystem::path launcher;  // archipelago-launch
  std::vector<LocalNode> nodes;
  std::map<std::string, std::string> base_env;
  int default_threads = 1;  // of a pod without a CPU limit
};

// A pod with a running process, for chaos, samplers and the dashboard.
struct RunningPod {
  std::string name;
  std::string uid;
  std::string unit;  // empty for the outer optimizer
  std::string datacenter;
  std::int64_t incarnation = 0;
  std::string ip;
  WallTime started{};
  bool stopped = false;  // SIGSTOPped by hang()
};

class Kubelet {
 public:
  Kubelet(MemoryCluster& cluster, const Clock& clock, CgroupManager& cgroups, AddressPool addresses,
          Logger log, KubeletOptions options);
  ~Kubelet();  // stops at once
  Kubelet(const Kubelet&) = delete;
  Kubelet& operator=(const Kubelet&) = delete;

  [[nodiscard]] Status start();
  // Learners get SIGTERM, then the outer optimizer, SIGKILL after `grace` each. No status is
  // written any more: the cluster is going away. Idempotent.
  void stop(Duration grace);

  [[nodiscard]] std::vector<RunningPod> running() const;

  // Chaos, from any thread; done within a tick. `target`: a unit's name or "outer-optimizer"
  // (chaos.h); kNotFound when it has no running process.
  [[nodiscard]] Status kill(const std::string& target);  // SIGKILL
  [[nodiscard]] Status hang(const std::string& target);  // SIGSTOP
  [[nodiscard]] Status evict(
      const std::string& target);  // as the eviction API: DisruptionTarget, then deletion
  [[nodiscard]] Status slow(const std::string& target, double factor, Duration how_long);
  // The node's machine goes: its processes die unheard, it is NotReady; after how_long (0: never)
  // it is back and reports them as failed.
  [[nodiscard]] Status lose_node(const std::string& datacenter, Duration how_long);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// PATH, HOME and the like, and sanitizer options, of this process.
[[nodiscard]] std::map<std::string, std::string> inherited_environment();

}  // namespace archipelago::op
