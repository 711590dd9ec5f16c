#include <algorithm>

#include <nlohmann/json.hpp>

#include "cli/kube_commands.h"
#include "common/base/version.h"
#include "operator/api/labels.h"
#include "operator/kube/kube_config.h"

namespace archipelago::cli {
namespace {

std::int64_t incarnation_of(const op::Object& pod) {
  return std::strtoll(pod.label(op::kLabelIncarnation).c_str(), nullptr, 10);
}

std::string joined(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : ", ") + n;
  return out.empty() ? "none" : out;
}

}  // namespace

Result<std::unique_ptr<KubeSession>> KubeSession::open(const KubeArguments& arguments) {
  auto session = std::make_unique<KubeSession>();
  ARCH_TRY(op::KubeAccess access, op::load_kube_access(arguments.kubeconfig, arguments.context));
  session->name_space_ = arguments.name_space.empty() ? access.name_space : arguments.name_space;
  op::KubeClientOptions options;
  options.user_agent = "archipelago/" + version();
  options.call_timeout = seconds(15);
  ARCH_TRY(session->client_,
           op::KubeClient::open(std::move(access), options, session->clock_, Logger::null()));
  op::KubeClusterOptions cluster;
  cluster.slim = false;
  cluster.child_selector.clear();
  session->cluster_ = std::make_unique<op::KubeCluster>(*session->client_, cluster);
  return session;
}

Result<op::Object> KubeSession::training(const std::string& name) {
  auto found = cluster_->get(op::Kind::kTraining, {name_space_, name});
  if (found || found.error().kind != ErrorKind::kNotFound) return found;
  std::vector<std::string> names;
  if (const auto all = cluster_->list(op::Kind::kTraining, {name_space_, {}}))
    for (const op::Object& o : all->items) names.push_back(o.name());
  return fail(ErrorKind::kNotFound, "no run '" + name + "' in namespace " + name_space_ +
                                        "; there are: " + joined(std::move(names)));
}

Result<op::Object> KubeSession::pod_of(const op::Object& training, const std::string& what) {
  ARCH_TRY(const op::ObjectList pods,
           cluster_->list(op::Kind::kPod, {name_space_, op::run_selector(training.uid())}));
  const op::Object* best = nullptr;
  std::vector<std::string> names;
  for (const op::Object& pod : pods.items) {
    if (pod.controller_uid() != training.uid()) continue;
    const bool outer = pod.label(op::kLabelRole) == op::kRoleOuter;
    names.push_back(outer ? "outer" : pod.label(op::kLabelUnit));
    if (what != names.back() && what != pod.name()) continue;
    if (best == nullptr || incarnation_of(pod) > incarnation_of(*best)) best = &pod;
  }
  if (best != nullptr) return *best;
  return fail(ErrorKind::kNotFound, "no pod of '" + what + "' in run " + training.name() +
                                        "; there are: " + joined(std::move(names)));
}

}  // namespace archipelago::cli
