#pragma once
// Subcommands that talk to a cluster, from any kubeconfig; also `kubectl archipelago ...` (the same
// program under the name kubectl-archipelago). Each returns the exit code.
#include <filesystem>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/signals.h"
#include "operator/kube/kube_cluster.h"

namespace archipelago::cli {

struct KubeArguments {
  std::string kubeconfig;
  std::string context;
  std::string name_space;  // empty: the kubeconfig's
  bool all_namespaces = false;
};

class KubeSession {
 public:
  [[nodiscard]] static Result<std::unique_ptr<KubeSession>> open(const KubeArguments& arguments);
  [[nodiscard]] op::KubeClient& client() { return *client_; }
  [[nodiscard]] op::Cluster& cluster() { return *cluster_; }
  [[nodiscard]] const std::string& name_space() const { return name_space_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }

  // The run by name; kNotFound says which runs there are.
  [[nodiscard]] Result<op::Object> training(const std::string& name);
  // The pod of a learner unit's newest incarnation, or the outer optimizer's ("outer"), or a pod by
  // its own name. kNotFound says which units there are.
  [[nodiscard]] Result<op::Object> pod_of(const op::Object& training, const std::string& what);

 private:
  SystemClock clock_;
  std::string name_space_;
  std::unique_ptr<op::KubeClient> client_;
  std::unique_ptr<op::KubeCluster> cluster_;
};

struct KubeStatusArguments {
  KubeArguments kube;
  std::string name;  // empty: a table of all
  bool json = false;
  bool watch = false;
};
struct KubeLogArguments {
  KubeArguments kube;
  std::string name;
  std::string what;  // unit, "outer" or a pod; empty: the pods are listed
  int lines = 0;     // 0: all
  bool follow = false;
};
struct FetchArguments {
  KubeArguments kube;
  std::string name;
  std::filesystem::path folder;
  long long step = -1;   // a kept checkpoint; -1: the final model, or the newest checkpoint
  std::string claim;     // read this claim instead of the run's
  std::string image;     // of the pod that reads a claim; default: the run's outer optimizer's
  double timeout = 120;  // seconds for that pod to start
};

[[nodiscard]] int kube_status_command(const KubeStatusArguments& arguments, SignalWaiter& signals);
[[nodiscard]] int kube_logs_command(const KubeLogArguments& arguments, SignalWaiter& signals);
[[nodiscard]] int suspend_command(const KubeArguments& kube, const std::string& name, bool suspend);
// With a grace period (restart) or at once (kill): the operator puts a new incarnation in its
// place, uncharged.
[[nodiscard]] int replace_command(const KubeArguments& kube, const std::string& name,
                                  const std::string& what, bool at_once);
[[nodiscard]] int fetch_command(const FetchArguments& arguments);

}  // namespace archipelago::cli
