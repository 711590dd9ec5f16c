// archipelago fetch: the model of a run into a folder, through the API server. From the outer
// optimizer while its pod runs; afterwards from the claim, by a pod made for it.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/kube_commands.h"
#include "common/base/files.h"
#include "common/base/rng.h"
#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/plan/children.h"

namespace archipelago::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr Duration kIdle = seconds(120);  // the newest checkpoint may be exported first

bool is_plain_name(const std::string& name) {
  if (name.empty() || name.size() > 128 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
}

bool is_serving(const op::Object& pod) {
  if (pod.deleting() || op::string_at(pod.status(), {"phase"}) != "Running") return false;
  const json& conditions = op::at(pod.status(), {"conditions"});
  if (!conditions.is_array()) return false;
  return std::any_of(conditions.begin(), conditions.end(), [](const json& c) {
    return op::string_at(c, {"type"}) == "Ready" && op::string_at(c, {"status"}) == "True";
  });
}

std::string query_of(long long step) { return step < 0 ? "" : "?step=" + std::to_string(step); }

Result<std::vector<std::string>> list_files(KubeSession& session, const op::ObjectKey& pod,
                                            long long step) {
  op::StreamOptions options;
  options.idle = kIdle;
  options.max_bytes = 1U << 20;
  ARCH_TRY(
      const std::string text,
      session.client().stream_text(
          op::kube::pod_proxy_get(pod, op::kAdminPort, "/v1/model" + query_of(step)), options));
  const json names = json::parse(text, nullptr, false);
  std::vector<std::string> out;
  if (names.is_array())
    for (const json& n : names)
      if (n.is_string() && is_plain_name(n.get<std::string>())) out.push_back(n);
  if (out.empty())
    return fail(ErrorKind::kCorrupt,
                pod.name + " names no files of a model: " + text.substr(0, 200));
  return out;
}

// Whole or not at all: a name in the folder is a complete file.
Status fetch_file(KubeSession& session, const op::ObjectKey& pod, const std::string& name,
                  const FetchArguments& arguments) {
  const fs::path part = arguments.folder / (name + ".part");
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  if (!out) return fail(errno_error("write " + part.string(), errno));
  std::uint64_t expected = 0;
  std::uint64_t taken = 0;
  const http::HeadSink head = [&](const http::Response&, std::uint64_t length) -> Status {
    expected = length;
    return {};
  };
  const http::Sink take = [&](std::span<const std::byte> bytes) -> Status {
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    taken += bytes.size();
    if (!out) return fail(errno_error("write " + part.string(), errno));
    return {};
  };
  op::StreamOptions options;
  options.idle = kIdle;
  const std::string target = "/v1/model/" + name + query_of(arguments.step);
  ARCH_TRY_VOID(session.client().stream(op::kube::pod_proxy_get(pod, op::kAdminPort, target), take,
                                        options, head));
  out.close();
  if (!out) return fail(errno_error("write " + part.string(), errno));
  if (expected != 0 && taken != expected)
    return fail(ErrorKind::kUnavailable, name + ": " + std::to_string(taken) + " of " +
                                             std::to_string(expected) + " bytes came");
  std::error_code error;
  fs::rename(part, arguments.folder / name, error);
  if (error) return fail(ErrorKind::kIo, "rename " + part.string() + ": " + error.message());
  std::printf("%s  %llu bytes\n", (arguments.folder / name).c_str(),
              static_cast<unsigned long long>(taken));
  return {};
}

Status fetch_all(KubeSession& session, const op::ObjectKey& pod, const FetchArguments& arguments) {
  ARCH_TRY(const std::vector<std::string> names, list_files(session, pod, arguments.step));
  std::error_code error;
  fs::create_directories(arguments.folder, error);
  if (error) return fail(ErrorKind::kIo, arguments.folder.string() + ": " + error.message());
  for (const std::string& name : names) ARCH_TRY_VOID(fetch_file(session, pod, name, arguments));
  return {};
}

// A pod like the outer optimizer's, that only reads: it takes no lock and changes nothing.
json reader_pod(const std::string& name, const std::string& name_space, const std::string& image,
                const std::string& claim, const json& node_selector) {
  json container{
      {"name", "serve-model"},
      {"image", image},
      {"command",
       {"archipelago-outer-optimizer", "--serve-model", "--data-dir", op::kStatePath, "--admin",
        "[::]:" + std::to_string(op::kAdminPort)}},
      {"readinessProbe",
       {{"httpGet", {{"path", "/readyz"}, {"port", op::kAdminPort}}}, {"periodSeconds", 1}}},
      {"securityContext",
       {{"allowPrivilegeEscalation", false},
        {"readOnlyRootFilesystem", true},
        {"capabilities", {{"drop", json::array({"ALL"})}}}}},
      {"volumeMounts",
       json::array({{{"name", "state"}, {"mountPath", op::kStatePath}, {"readOnly", true}},
                    {{"name", "tmp"}, {"mountPath", "/tmp"}}})}};
  json spec{{"restartPolicy", "Never"},
            {"automountServiceAccountToken", false},
            {"terminationGracePeriodSeconds", 2},
            {"activeDeadlineSeconds", 3600},
            {"securityContext",
             {{"runAsNonRoot", true},
              {"runAsUser", 65532},
              {"runAsGroup", 65532},
              {"fsGroup", 65532},
              {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
            {"containers", json::array({std::move(container)})},
            {"volumes",
             json::array({{{"name", "state"}, {"persistentVolumeClaim", {{"claimName", claim}}}},
                          {{"name", "tmp"}, {"emptyDir", json::object()}}})}};
  if (node_selector.is_object()) spec["nodeSelector"] = node_selector;
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata",
           {{"name", name},
            {"namespace", name_space},
            {"labels", {{"app.kubernetes.io/name", "archipelago-fetch"}}}}},
          {"spec", std::move(spec)}};
}

Status wait_until_serving(KubeSession& session, const op::ObjectKey& key, double timeout) {
  const TimePoint end = session.clock().now() + seconds(timeout);
  std::string last = "it is not there";
  while (session.clock().now() < end) {
    const auto pod = session.cluster().get(op::Kind::kPod, key);
    if (!pod && !is_retryable(pod.error().kind)) return fail(pod.error());
    if (pod && is_serving(*pod)) return {};
    if (pod) last = op::to_text(pod->status());
    if (pod && op::string_at(pod->status(), {"phase"}) == "Failed") break;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return fail(ErrorKind::kUnavailable,
              "pod " + key.name + " does not serve the claim: " + last.substr(0, 1000));
}

struct ReaderPlan {
  std::string image;
  std::string claim;
  json node_selector;
};

Result<ReaderPlan> plan_reader(KubeSession& session, const FetchArguments& arguments) {
  ReaderPlan out{arguments.image, arguments.claim, nullptr};
  const auto training = session.training(arguments.name);
  if (!training && (out.claim.empty() || out.image.empty()))
    return fail(ErrorKind::kNotFound,
                training.error().message +
                    ". HINT: --claim NAME --image IMAGE reads the claim that a deleted run left");
  if (!training) return out;
  const auto pod = session.pod_of(*training, "outer");
  if (pod) {
    const json& container = op::at(pod->spec(), {"containers"}).at(0);
    if (out.image.empty()) out.image = op::string_at(container, {"image"});
    out.node_selector = op::at(pod->spec(), {"nodeSelector"});
  }
  if (out.image.empty()) out.image = op::string_at(training->spec(), {"images", "outerOptimizer"});
  if (out.image.empty())
    return fail(ErrorKind::kInvalid,
                "--image: none given, and no pod of the run tells it; give the outer optimizer's");
  if (out.claim.empty())
    out.claim = op::string_at(training->spec(), {"outerOptimizer", "storage", "existingClaim"});
  if (out.claim.empty()) out.claim = op::outer_claim_name(training->name(), training->uid());
  return out;
}

Status fetch_from_claim(KubeSession& session, const FetchArguments& arguments) {
  ARCH_TRY(const ReaderPlan plan, plan_reader(session, arguments));
  Rng rng(static_cast<std::uint64_t>(session.clock().wall().time_since_epoch().count()));
  const std::string name = "archipelago-fetch-" + std::to_string(rng.next() % 1'000'000'000);
  const op::ObjectKey key{session.name_space(), name};
  std::printf("reading claim %s with pod %s\n", plan.claim.c_str(), name.c_str());
  ARCH_TRY(const op::Object made,
           session.cluster().create(
               reader_pod(name, key.name_space, plan.image, plan.claim, plan.node_selector)));
  Status done = wait_until_serving(session, key, arguments.timeout);
  if (done) done = fetch_all(session, key, arguments);
  const Status removed = session.cluster().remove(op::Kind::kPod, key, {made.uid(), 0});
  if (!removed) std::cerr << "archipelago: " << removed.error().message << "\n";
  return done;
}

Status fetch(KubeSession& session, const FetchArguments& arguments) {
  if (!arguments.claim.empty()) return fetch_from_claim(session, arguments);
  ARCH_TRY(const op::Object training, session.training(arguments.name));
  const auto pod = session.pod_of(training, "outer");
  if (pod && is_serving(*pod)) return fetch_all(session, pod->key(), arguments);
  return fetch_from_claim(session, arguments);
}

}  // namespace

int fetch_command(const FetchArguments& arguments) {
  auto session = KubeSession::open(arguments.kube);
  if (!session) return complain(session.error().message, kExitRefused);
  const Status done = fetch(**session, arguments);
  if (done) return kExitOk;
  const ErrorKind kind = done.error().kind;
  const bool refused = kind == ErrorKind::kNotFound || kind == ErrorKind::kInvalid;
  return complain(done.error().message, refused ? kExitRefused : kExitFailed);
}

}  // namespace archipelago::cli
