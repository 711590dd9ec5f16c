#pragma once
// Scheduler, kubelets and volume provisioner in one, without containers: binds pods to nodes that
// it made up, says at once that they are Running and Ready, ends deleted ones; claims are Bound,
// and deleted ones lose the finalizer that protects them while in use.
// Everything else a test does to a pod through the API: a pod that has ended, or whose status says
// something of its own, is left alone.
//
// The annotation archipelago.training/test-kubelet on a pod: "hold" leaves it unscheduled,
// "pending" binds it only, "stay" never ends it (its node is lost), "pending-stay" both.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "operator/kube/kube_cluster.h"
#include "tests/cluster/pod_table.h"

namespace archipelago::test {

struct KubeletOptions {
  std::string name_space;  // empty: all
  int workers = 6;
  int nodes = 4;
  // On a cluster with nodes of its own: only pods that name this scheduler are ours; our nodes,
  // called SCHEDULER-K, refuse all others, are kept alive, and go with this program; claims are the
  // cluster's.
  std::string scheduler = {};
};

class TestKubelet {
 public:
  TestKubelet(op::KubeClient& client, op::KubeCluster& cluster, PodTable& table, const Clock& clock,
              Logger log, KubeletOptions options);
  ~TestKubelet();
  TestKubelet(const TestKubelet&) = delete;
  TestKubelet& operator=(const TestKubelet&) = delete;

  [[nodiscard]] Status start();  // makes the nodes
  void stop();                   // after the client's stop_reading()
  [[nodiscard]] std::int64_t started() const { return started_.load(); }
  [[nodiscard]] std::int64_t ended() const { return ended_.load(); }

 private:
  enum class Work { kStart, kEnd, kBindClaim, kEndClaim };
  struct Job {
    Work work;
    op::Object object;
    int tries = 0;
    TimePoint not_before{};
  };

  [[nodiscard]] std::string node_name(std::uint32_t number) const;
  Status make_node(const std::string& name);
  Status beat(const std::string& node);
  void keep_alive(std::stop_token stop);
  void follow(op::Kind kind, std::stop_token stop);
  Status list_and_watch(op::Kind kind, std::stop_token stop);
  void look_at(const op::Object& object, bool deleted);
  void look_at_pod(const op::Object& pod, bool deleted);
  void add(Work work, const op::Object& object);
  void work(std::stop_token stop);
  [[nodiscard]] Status perform(const Job& job);
  [[nodiscard]] Status patch_claim(const op::Object& claim, const std::string& part,
                                   const nlohmann::json& patch);
  [[nodiscard]] Status start_pod(const op::Object& pod);
  void forget(const std::string& uid);

  op::KubeClient& client_;
  op::KubeCluster& cluster_;
  PodTable& table_;
  const Clock& clock_;
  Logger log_;
  const KubeletOptions options_;
  std::atomic<std::int64_t> started_{0};
  std::atomic<std::int64_t> ended_{0};
  std::atomic<std::uint32_t> next_node_{0};
  std::mutex mutex_;
  std::condition_variable_any ready_;
  std::deque<Job> jobs_;
  std::set<std::string> taken_;  // "WORK uid": each is done once
  std::vector<std::jthread> threads_;
};

}  // namespace archipelago::test
