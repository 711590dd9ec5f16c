#include "operator/plan/children.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/config/parse.h"
#include "operator/api/json.h"
#include "operator/api/kinds.h"
#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/plan/pod_template.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr int kGraceSeconds = 30;
constexpr int kNobody = 65532;

json owner_reference(const config::DecoupledTraining& run) {
  return {{"apiVersion", api_version(Kind::kTraining)},
          {"kind", to_string(Kind::kTraining)},
          {"name", run.name},
          {"uid", run.uid},
          {"controller", true},
          {"blockOwnerDeletion", true}};
}

json head(Kind kind, const config::DecoupledTraining& run, const std::string& name,
          const Labels& labels) {
  return {{"apiVersion", api_version(kind)},
          {"kind", to_string(kind)},
          {"metadata",
           {{"name", name},
            {"namespace", run.name_space},
            {"labels", labels},
            {"ownerReferences", json::array({owner_reference(run)})}}}};
}

json http_probe(const char* path, int period, int timeout, int threshold) {
  return {{"httpGet", {{"path", path}, {"port", kAdminPort}}},
          {"periodSeconds", period},
          {"timeoutSeconds", timeout},
          {"failureThreshold", threshold}};
}

// Catches a stopped process within stallSeconds: the admin port has a thread of its own, so busy is
// not dead.
json liveness(const config::RestartSpec& restart) {
  const int period = std::clamp(static_cast<int>(restart.stall_seconds / 10.0), 1, 10);
  const int threshold = std::clamp(static_cast<int>(restart.stall_seconds / (2.0 * period)), 3, 6);
  json probe(http_probe("/healthz", period, std::max(period, 2), threshold));
  // A process that doesn't answer its probe won't act on SIGTERM either: don't wait the pod's grace
  // period for it.
  probe["terminationGracePeriodSeconds"] = 2;
  return probe;
}

json hardened_container(const char* name, const std::string& image, const std::string& pull_policy,
                        json command) {
  return {{"name", name},
          {"image", image},
          {"imagePullPolicy", pull_policy},
          {"command", std::move(command)},
          {"terminationMessagePolicy", "FallbackToLogsOnError"},
          {"securityContext",
           {{"allowPrivilegeEscalation", false},
            {"readOnlyRootFilesystem", true},
            {"capabilities", {{"drop", json::array({"ALL"})}}}}},
          {"startupProbe", http_probe("/healthz", 1, 2, 180)},
          {"env", json::array()},
          {"volumeMounts",
           json::array({{{"name", "spec"}, {"mountPath", "/etc/archipelago"}, {"readOnly", true}},
                        {{"name", "tmp"}, {"mountPath", "/tmp"}}})}};
}

json pod_spec(const config::DecoupledTraining& run, const std::string& datacenter, json container) {
  return {
      {"restartPolicy", "Never"},  // a restart is ours to count, with a new incarnation
      {"terminationGracePeriodSeconds", kGraceSeconds},
      {"automountServiceAccountToken", false},
      {"enableServiceLinks", false},
      {"nodeSelector", {{kNodeLabelDatacenter, datacenter}}},
      {"securityContext",
       {{"runAsNonRoot", true},
        {"runAsUser", kNobody},
        {"runAsGroup", kNobody},
        {"fsGroup", kNobody},
        {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
      {"containers", json::array({std::move(container)})},
      {"volumes",
       json::array({{{"name", "spec"}, {"configMap", {{"name", spec_config_map_name(run.name)}}}},
                    {{"name", "tmp"}, {"emptyDir", json::object()}}})}};
}

void add_pull_secrets(json& spec, const std::vector<std::string>& names) {
  for (const std::string& n : names) spec["imagePullSecrets"].push_back({{"name", n}});
}

// Threads from the CPU limit, set before libtorch and OpenMP start; without a limit the daemon
// counts the cores.
void limit_threads(json& container, double cpu_limit) {
  if (cpu_limit <= 0) return;
  const std::string threads =
      std::to_string(std::max(1, static_cast<int>(std::ceil(std::min(cpu_limit, 1024.0)))));
  container["env"].push_back({{"name", "OMP_NUM_THREADS"}, {"value", threads}});
  container["command"].push_back("--threads");
  container["command"].push_back(threads);
}

void mount_data(json& spec, const config::DataVolume& volume) {
  if (volume.claim.empty() && volume.host_path.empty()) return;
  json source{{"name", "data"}};
  if (!volume.claim.empty())
    source["persistentVolumeClaim"] = {{"claimName", volume.claim}, {"readOnly", true}};
  else
    source["hostPath"] = {{"path", volume.host_path}};
  spec["volumes"].push_back(std::move(source));
  spec["containers"][0]["volumeMounts"].push_back(
      {{"name", "data"}, {"mountPath", kDataPath}, {"readOnly", true}});
}

const std::string& first_given(const std::string& a, const std::string& b, const std::string& c) {
  return !a.empty() ? a : !b.empty() ? b : c;
}
}  // namespace

json build_learner_pod(const config::DecoupledTraining& run, const config::DatacenterSpec& dc,
                       std::int32_t ordinal, std::int64_t incarnation, const PlanOptions& options) {
  const config::TrainingSpec& spec = run.spec;
  const std::string unit = config::unit_name(dc.name, ordinal);
  json pod = head(Kind::kPod, run, learner_pod_name(run.name, dc.name, ordinal, incarnation),
                  learner_labels(run.name, run.uid, dc.name, unit, incarnation, 0));
  json container = hardened_container(
      kRoleLearner, first_given(dc.learner_image, spec.images.learner, options.learner_image),
      spec.images.pull_policy,
      {"archipelago-learner", "--config", kSpecPath, "--unit", unit, "--incarnation",
       std::to_string(incarnation), "--datacenter", dc.name, "--outer",
       "http://" + outer_service_name(run.name) + ":" + std::to_string(kExchangePort), "--admin",
       "[::]:" + std::to_string(kAdminPort)});
  // An adopted run goes on under its own id: the learner takes it from the outer optimizer.
  if (!spec.outer_optimizer.storage.adopt) {
    container["command"].push_back("--run-id");
    container["command"].push_back(run.uid);
  }
  limit_threads(container, dc.cpu_limit);
  container["ports"] = json::array({{{"name", "admin"}, {"containerPort", kAdminPort}}});
  container["livenessProbe"] = liveness(spec.restart);
  pod["spec"] = pod_spec(run, dc.name, std::move(container));
  add_pull_secrets(pod["spec"],
                   dc.pull_secrets.empty() ? spec.images.pull_secrets : dc.pull_secrets);
  const bool own_volume = !dc.volume.claim.empty() || !dc.volume.host_path.empty();
  mount_data(pod["spec"], own_volume ? dc.volume : spec.data.volume);
  merge_template(pod, dc.template_json);
  return pod;
}

json build_outer_pod(const config::DecoupledTraining& run, std::int64_t incarnation,
                     const PlanOptions& options) {
  const config::TrainingSpec& spec = run.spec;
  const std::string& dc = spec.outer_optimizer.datacenter;
  Labels labels = child_labels(run.name, run.uid, kRoleOuter);
  labels[kLabelDatacenter] = dc;
  labels[kLabelIncarnation] = std::to_string(incarnation);
  json pod = head(Kind::kPod, run, outer_pod_name(run.name, incarnation), labels);
  json container = hardened_container(
      kRoleOuter,
      first_given(spec.images.outer_optimizer, options.outer_image, options.outer_image),
      spec.images.pull_policy,
      {"archipelago-outer-optimizer", "--config", kSpecPath, "--data-dir", kStatePath, "--listen",
       "[::]:" + std::to_string(kExchangePort), "--admin", "[::]:" + std::to_string(kAdminPort),
       "--run-id", run.uid});
  container["ports"] = json::array({{{"name", "exchange"}, {"containerPort", kExchangePort}},
                                    {{"name", "admin"}, {"containerPort", kAdminPort}}});
  container["livenessProbe"] = liveness(spec.restart);
  container["readinessProbe"] = http_probe("/readyz", 1, 2, 3);
  container["volumeMounts"].push_back({{"name", "state"}, {"mountPath", kStatePath}});
  pod["spec"] = pod_spec(run, dc, std::move(container));
  pod["spec"]["volumes"].push_back(
      {{"name", "state"}, {"persistentVolumeClaim", {{"claimName", claim_in_use(run)}}}});
  add_pull_secrets(pod["spec"], spec.images.pull_secrets);
  merge_template(pod, spec.outer_optimizer.template_json);
  return pod;
}

json build_outer_service(const config::DecoupledTraining& run) {
  json out = head(Kind::kService, run, outer_service_name(run.name),
                  child_labels(run.name, run.uid, kRoleOuter));
  out["spec"] = {{"type", run.spec.outer_optimizer.service_type},
                 {"selector", {{kLabelRunUid, run.uid}, {kLabelRole, kRoleOuter}}},
                 {"ports", json::array({{{"name", "exchange"},
                                         {"port", kExchangePort},
                                         {"targetPort", kExchangePort},
                                         {"protocol", "TCP"}}})}};
  return out;
}

json build_outer_claim(const config::DecoupledTraining& run) {
  const config::StorageSpec& storage = run.spec.outer_optimizer.storage;
  json out = head(Kind::kClaim, run, outer_claim_name(run.name, run.uid),
                  child_labels(run.name, run.uid, kRoleOuter));
  // The model outlives the resource unless the user said otherwise: no owner, so nothing collects
  // it.
  if (storage.retain == config::RetainPolicy::kRetain) out["metadata"].erase("ownerReferences");
  out["spec"] = {{"accessModes", storage.access_modes},
                 {"resources", {{"requests", {{"storage", storage.size}}}}}};
  if (!storage.storage_class_name.empty())
    out["spec"]["storageClassName"] = storage.storage_class_name;
  return out;
}

json build_spec_config_map(const config::DecoupledTraining& run, const std::string& spec_text) {
  json out = head(Kind::kConfigMap, run, spec_config_map_name(run.name),
                  child_labels(run.name, run.uid, kRoleOuter));
  out["data"] = {{"spec.json", spec_text}};
  return out;
}

std::string resolved_spec_text(const config::DecoupledTraining& run) {
  return to_text(config::to_json(run));
}

std::string claim_in_use(const config::DecoupledTraining& run) {
  const std::string& existing = run.spec.outer_optimizer.storage.existing_claim;
  return existing.empty() ? outer_claim_name(run.name, run.uid) : existing;
}

}  // namespace archipelago::op
