#include "tests/cluster/test_kubelet.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/api/labels.h"

namespace archipelago::test {
namespace {

using nlohmann::json;
using op::string_at;

constexpr int kMaxTries = 50;
constexpr char kOrder[] = "archipelago.training/test-kubelet";

op::kube::Request request_of(std::string method, std::string path, const json& body,
                             std::string content = "application/json") {
  op::kube::Request out;
  out.method = std::move(method);
  out.object = path;
  out.path = std::move(path);
  out.body = body.dump();
  out.content_type = std::move(content);
  out.rule = {"", "pods", "update"};
  return out;
}

std::string pod_path(const op::ObjectKey& key) {
  return "/api/v1/namespaces/" + key.name_space + "/pods/" + key.name;
}

bool finished(const op::Object& pod) {
  const std::string phase = string_at(pod.json(), {"status", "phase"});
  return phase == "Failed" || phase == "Succeeded";
}

std::string order_of(const op::Object& pod) {
  return string_at(pod.json(), {"metadata", "annotations", kOrder});
}

json condition(const char* type, const std::string& now) {
  return {{"type", type}, {"status", "True"}, {"lastTransitionTime", now}};
}

json running_status(const op::Object& pod, const std::string& now) {
  const json& container = pod.spec()["containers"][0];
  const json state{{"running", {{"startedAt", now}}}};
  return {{"phase", "Running"},
          {"podIP", "127.0.0.1"},
          {"startTime", now},
          {"conditions", {condition("PodScheduled", now), condition("Ready", now)}},
          {"containerStatuses",
           {{{"name", container.value("name", "main")},
             {"image", container.value("image", "")},
             {"imageID", ""},
             {"ready", true},
             {"started", true},
             {"restartCount", 0},
             {"state", state}}}}};
}

RunningPod row_of(const op::Object& pod, TimePoint now) {
  RunningPod out;
  out.uid = pod.uid();
  out.key = pod.key();
  out.run_uid = pod.label(op::kLabelRunUid);
  out.role = pod.label(op::kLabelRole);
  out.datacenter = pod.label(op::kLabelDatacenter);
  out.unit = pod.label(op::kLabelUnit);
  const std::string text = pod.label(op::kLabelIncarnation);
  std::from_chars(text.data(), text.data() + text.size(), out.incarnation);
  out.since = now;
  return out;
}

}  // namespace

TestKubelet::TestKubelet(op::KubeClient& client, op::KubeCluster& cluster, PodTable& table,
                         const Clock& clock, Logger log, KubeletOptions options)
    : client_(client),
      cluster_(cluster),
      table_(table),
      clock_(clock),
      log_(std::move(log)),
      options_(std::move(options)) {}

TestKubelet::~TestKubelet() { stop(); }

Status TestKubelet::start() {
  for (int i = 0; i < options_.nodes; ++i)
    ARCH_TRY_VOID(make_node(node_name(static_cast<std::uint32_t>(i))));
  threads_.emplace_back([this](std::stop_token stop) { follow(op::Kind::kPod, stop); });
  if (options_.scheduler.empty())
    threads_.emplace_back([this](std::stop_token stop) { follow(op::Kind::kClaim, stop); });
  else
    threads_.emplace_back([this](std::stop_token stop) { keep_alive(stop); });
  for (int i = 0; i < options_.workers; ++i)
    threads_.emplace_back([this](std::stop_token stop) { work(stop); });
  return {};
}

void TestKubelet::stop() {
  if (threads_.empty()) return;
  for (std::jthread& thread : threads_) thread.request_stop();
  threads_.clear();
  if (options_.scheduler.empty()) return;
  for (int i = 0; i < options_.nodes; ++i)
    (void)client_.call(request_of(
        "DELETE", "/api/v1/nodes/" + node_name(static_cast<std::uint32_t>(i)), json::object()));
}

std::string TestKubelet::node_name(std::uint32_t number) const {
  return (options_.scheduler.empty() ? "fake" : options_.scheduler) + "-" + std::to_string(number);
}

Status TestKubelet::make_node(const std::string& name) {
  json node{{"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", {{"name", name}}}};
  if (!options_.scheduler.empty())
    node["spec"] = {{"unschedulable", true},
                    {"taints", json::array({{{"key", "archipelago.training/test"},
                                             {"value", options_.scheduler},
                                             {"effect", "NoSchedule"}}})}};
  const auto made = cluster_.create(node);
  if (!made && made.error().kind != ErrorKind::kConflict) return fail(made.error());
  return beat(name);
}

// A cluster's controllers give up a node that is silent for 40 s, those of our own clusters
// after 8.
void TestKubelet::keep_alive(std::stop_token stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  while (!never.wait_for(lock, stop, std::chrono::seconds(2), [] { return false; }) &&
         !stop.stop_requested())
    for (int i = 0; i < options_.nodes; ++i)
      if (const Status done = beat(node_name(static_cast<std::uint32_t>(i))); !done)
        log_.warn("node not kept alive", {{"error", done.error().message}});
}

Status TestKubelet::beat(const std::string& name) {
  const std::string now = format_wall(clock_.wall());
  const json status{{"status",
                     {{"conditions",
                       {{{"type", "Ready"},
                         {"status", "True"},
                         {"reason", "KubeletReady"},
                         {"lastHeartbeatTime", now},
                         {"lastTransitionTime", now}}}},
                      {"capacity", {{"pods", "100000"}}}}}};
  const auto patched = client_.call(request_of("PATCH", "/api/v1/nodes/" + name + "/status", status,
                                               "application/merge-patch+json"));
  if (!patched) return fail(patched.error());
  return {};
}

void TestKubelet::follow(op::Kind kind, std::stop_token stop) {
  while (!stop.stop_requested()) {
    const Status ended = list_and_watch(kind, stop);
    if (!ended && !stop.stop_requested())
      log_.warn("watch failed", {{"error", ended.error().message}});
    if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Status TestKubelet::list_and_watch(op::Kind kind, std::stop_token stop) {
  ARCH_TRY(const op::ObjectList list, cluster_.list(kind, {options_.name_space, {}}));
  for (const op::Object& object : list.items) look_at(object, false);
  std::string version = list.resource_version;
  while (!stop.stop_requested()) {
    ARCH_TRY(const auto watch, cluster_.watch(kind, options_.name_space, version));
    while (!stop.stop_requested()) {
      const auto event = watch->next(clock_.now() + seconds(1), stop);
      if (!event) continue;
      if (event->type == op::WatchType::kGone) return {};
      if (event->type == op::WatchType::kEnded) break;
      version = event->resource_version;
      if (event->object) look_at(*event->object, event->type == op::WatchType::kDeleted);
    }
  }
  return {};
}

void TestKubelet::look_at(const op::Object& object, bool deleted) {
  if (object.kind() == op::Kind::kPod) return look_at_pod(object, deleted);
  if (deleted) return;
  if (object.deleting()) return add(Work::kEndClaim, object);
  if (string_at(object.json(), {"status", "phase"}) != "Bound") add(Work::kBindClaim, object);
}

void TestKubelet::look_at_pod(const op::Object& pod, bool deleted) {
  if (!options_.scheduler.empty() && string_at(pod.spec(), {"schedulerName"}) != options_.scheduler)
    return;
  const std::string order = order_of(pod);
  if (deleted || finished(pod) || pod.deleting())
    table_.erase(pod.label(op::kLabelRunUid), pod.uid());
  if (deleted) return forget(pod.uid());
  const bool stays = order == "stay" || order == "pending-stay";
  if (pod.deleting()) {
    if (!stays) add(Work::kEnd, pod);
    return;
  }
  const std::string phase = string_at(pod.json(), {"status", "phase"}, "Pending");
  if (phase == "Running" && !string_at(pod.json(), {"status", "podIP"}).empty()) {
    // After a restart of this program.
    const std::vector<RunningPod> known = table_.of_run(pod.label(op::kLabelRunUid));
    for (const RunningPod& other : known)
      if (other.uid == pod.uid()) return;
    return table_.put(row_of(pod, clock_.now()));
  }
  const json& gates = op::at(pod.spec(), {"schedulingGates"});
  const bool gated = gates.is_array() && !gates.empty();
  const json& conditions = op::at(pod.status(), {"containerStatuses"});
  const bool scripted = conditions.is_array() && !conditions.empty();
  if (phase == "Pending" && order != "hold" && !gated && !scripted) add(Work::kStart, pod);
}

void TestKubelet::add(Work work, const op::Object& object) {
  const std::lock_guard lock(mutex_);
  const char name = static_cast<char>('a' + static_cast<int>(work));
  if (!taken_.insert(name + object.uid()).second) return;
  jobs_.push_back({work, object, 0, {}});
  ready_.notify_one();
}

void TestKubelet::forget(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  for (const char name : {'a', 'b'}) taken_.erase(name + uid);  // kStart, kEnd
}

void TestKubelet::work(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    if (!ready_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    if (job.not_before > clock_.now()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Status done = job.not_before > clock_.now()
                            ? Status(fail(ErrorKind::kUnavailable, "its turn comes later"))
                            : perform(job);
    if (done || done.error().kind == ErrorKind::kNotFound) continue;
    if (job.not_before <= clock_.now()) {
      if (++job.tries >= kMaxTries) {
        log_.error("gave up", {{"object", job.object.name()}, {"error", done.error().message}});
        continue;
      }
      job.not_before = clock_.now() + seconds(0.2);
    }
    lock.lock();
    jobs_.push_back(std::move(job));
    ready_.notify_one();
  }
}

Status TestKubelet::perform(const Job& job) {
  switch (job.work) {
    case Work::kStart:
      return start_pod(job.object);
    case Work::kEnd: {
      ARCH_TRY_VOID(
          cluster_.remove(op::Kind::kPod, job.object.key(), {job.object.uid(), std::int64_t{0}}));
      ended_.fetch_add(1);
      return {};
    }
    case Work::kBindClaim:
      return patch_claim(job.object, "/status", {{"status", {{"phase", "Bound"}}}});
    case Work::kEndClaim:
      return patch_claim(job.object, "", {{"metadata", {{"finalizers", nullptr}}}});
  }
  return {};
}

Status TestKubelet::patch_claim(const op::Object& claim, const std::string& part,
                                const json& patch) {
  const std::string path =
      "/api/v1/namespaces/" + claim.name_space() + "/persistentvolumeclaims/" + claim.name() + part;
  const auto done = client_.call(request_of("PATCH", path, patch, "application/merge-patch+json"));
  if (!done) return fail(done.error());
  return {};
}

Status TestKubelet::start_pod(const op::Object& pod) {
  const op::ObjectKey key = pod.key();
  if (string_at(pod.json(), {"spec", "nodeName"}).empty()) {
    const std::uint32_t node = next_node_.fetch_add(1) % static_cast<std::uint32_t>(options_.nodes);
    const json binding{{"apiVersion", "v1"},
                       {"kind", "Binding"},
                       {"metadata", {{"name", key.name}, {"uid", pod.uid()}}},
                       {"target", {{"kind", "Node"}, {"name", node_name(node)}}}};
    const auto bound = client_.call(request_of("POST", pod_path(key) + "/binding", binding));
    if (!bound && bound.error().kind != ErrorKind::kConflict) return fail(bound.error());
  }
  if (order_of(pod).starts_with("pending")) return {};
  json status{{"metadata", {{"uid", pod.uid()}}},
              {"status", running_status(pod, format_wall(clock_.wall()))}};
  const auto patched = client_.call(
      request_of("PATCH", pod_path(key) + "/status", status, "application/merge-patch+json"));
  if (!patched) return fail(patched.error());
  table_.put(row_of(pod, clock_.now()));
  started_.fetch_add(1);
  return {};
}

}  // namespace archipelago::test
