#pragma once
// The command line of archipelago-operator as values, checked as a whole. Pure.
#include <optional>
#include <string>

#include "common/base/log.h"
#include "common/base/result.h"
#include "common/http/endpoint.h"
#include "operator/kube/leader.h"
#include "operator/runtime/controller.h"

namespace archipelago::op {

// As given; texts are checked by read_operator_options.
struct OperatorFlags {
  std::string kubeconfig;  // empty: $KUBECONFIG, ~/.kube/config, else in the cluster
  std::string context;
  std::string name_space;  // empty: every namespace
  double api_qps = 50;
  double api_burst = 100;
  int workers = 4;
  bool leader_elect = false;
  std::string lease_name = "archipelago-operator";
  std::string lease_namespace;  // empty: the operator's own
  double lease_seconds = 15;
  double renew_deadline_seconds = 10;
  double retry_seconds = 2;
  std::string listen = "[::]:8080";
  std::string learner_image;
  std::string outer_image;
  std::string outer_address;        // empty: the pods' own
  std::string reach_pods = "auto";  // auto | direct | proxy
  double poll_seconds = 10;
  std::string log_level = "info";
};

enum class ReachPods { kAuto, kDirect, kProxy };

struct OperatorOptions {
  OperatorFlags flags;
  http::Endpoint listen;
  std::optional<http::Endpoint> outer_address;
  ReachPods reach = ReachPods::kAuto;
  LogLevel log_level = LogLevel::kInfo;
  ControllerOptions controller;
  LeaderOptions leader;  // name_space empty: the operator's own
};

// kInvalid names the flag, what was given and what is allowed.
[[nodiscard]] Result<OperatorOptions> read_operator_options(const OperatorFlags& flags);

}  // namespace archipelago::op
