#include "operator/kube/kube_cluster.h"

#include <array>
#include <mutex>
#include <random>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/rng.h"
#include "operator/api/json.h"
#include "operator/kube/event_recorder.h"
#include "operator/kube/kube_metrics.h"
#include "operator/kube/kube_watch.h"
#include "operator/kube/list_pages.h"
#include "operator/kube/slim.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr int kWatchTries = 3;

struct Target {
  Kind kind;
  ObjectKey key;
};

// Kind and key of a body that is to be written; what is missing in it is our own mistake.
Result<Target> target_of(const json& body) {
  const std::string kind_name = string_at(body, {"kind"});
  const auto kind = parse_kind(kind_name);
  if (!kind) return fail(ErrorKind::kInvalid, "kind '" + kind_name + "' is not one of ours");
  const ObjectKey key{is_namespaced(*kind) ? string_at(body, {"metadata", "namespace"}) : "",
                      string_at(body, {"metadata", "name"})};
  if (key.name.empty()) return fail(ErrorKind::kInvalid, kind_name + ": metadata.name is missing");
  if (is_namespaced(*kind) && key.name_space.empty())
    return fail(ErrorKind::kInvalid,
                kind_name + " " + key.name + ": metadata.namespace is missing");
  if (string_at(body, {"apiVersion"}) != api_version(*kind))
    return fail(ErrorKind::kInvalid, kind_name + " " + key.name + ": apiVersion must be " +
                                         std::string(api_version(*kind)));
  return Target{*kind, key};
}

// Kinds that others use too: only what the operator made is read of them.
bool is_child(Kind kind) {
  return kind == Kind::kPod || kind == Kind::kService || kind == Kind::kConfigMap ||
         kind == Kind::kClaim;
}

std::string selector_of(const std::map<std::string, std::string>& labels,
                        const std::string& fixed) {
  std::string out = fixed;
  for (const auto& [key, value] : labels) out += (out.empty() ? "" : ",") + key + "=" + value;
  return out;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::uint64_t seed_of(std::uint64_t given) {
  if (given != 0) return given;
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}
}  // namespace

struct KubeCluster::Impl {
  Impl(KubeClient& c, KubeClusterOptions o)
      : client(c),
        options(std::move(o)),
        metrics(client.metrics()),
        rng(seed_of(options.seed)),
        events(client, options.event_source,
               options.instance.empty() ? host_name() : options.instance, options.event_queue,
               rng.next(), metrics) {}

  [[nodiscard]] std::string selector(Kind kind,
                                     const std::map<std::string, std::string>& labels) const {
    return selector_of(labels, is_child(kind) ? options.child_selector : "");
  }

  // The object in the answer, whole.
  Result<Object> object(Kind kind, const kube::Request& request, CallClass call_class) {
    ARCH_TRY(json answer, client.call(request, call_class));
    auto out = kube::take_object(kind, std::move(answer), false);
    if (!out) return fail(out.error().with_context(request.what()));
    return out;
  }

  double jitter() {
    std::lock_guard lock(mutex);
    return rng.uniform(0.9, 1.1);
  }

  KubeClient& client;
  const KubeClusterOptions options;
  const kube::KubeMetrics metrics;
  std::mutex mutex;  // guards rng
  Rng rng;
  kube::EventRecorder events;
};

KubeCluster::KubeCluster(KubeClient& client, KubeClusterOptions options)
    : impl_(std::make_unique<Impl>(client, std::move(options))) {}
KubeCluster::~KubeCluster() = default;

Result<Object> KubeCluster::create(const json& object) {
  ARCH_TRY(const Target t, target_of(object));
  return impl_->object(t.kind, kube::create(t.kind, t.key.name_space, object),
                       CallClass::kDecision);
}

Status KubeCluster::check(const json& object) {
  ARCH_TRY(const Target t, target_of(object));
  ARCH_TRY_VOID(impl_->client.call(kube::check(t.kind, t.key.name_space, object)));
  return {};
}

Result<Object> KubeCluster::get(Kind kind, const ObjectKey& key) const {
  return impl_->object(kind, kube::get(kind, key), CallClass::kDecision);
}

Result<ObjectList> KubeCluster::list(Kind kind, const ListOptions& options) const {
  const kube::ListHooks hooks{
      [&](const kube::Request& request) { return impl_->client.call(request); },
      [&](const std::string& why) {
        impl_->metrics.skipped(kind);
        impl_->client.log().warn("list: skipped an object that can't be read: " + why,
                                 {{"kind", to_string(kind)}});
      }};
  return kube::list_pages(kind, options.name_space, impl_->selector(kind, options.labels),
                          impl_->options.slim, hooks);
}

Result<Object> KubeCluster::update(const json& object) {
  ARCH_TRY(const Target t, target_of(object));
  return impl_->object(t.kind, kube::update(t.kind, t.key, object), CallClass::kDecision);
}

Result<Object> KubeCluster::apply(const json& object) {
  ARCH_TRY(const Target t, target_of(object));
  json body = object;
  // The server refuses the one; the other would make a stale read fail what is meant to merge.
  body["metadata"].erase("managedFields");
  body["metadata"].erase("resourceVersion");
  return impl_->object(t.kind, kube::apply(t.kind, t.key, body), CallClass::kDecision);
}

Result<Object> KubeCluster::update_status(const json& object, WriteClass write_class) {
  ARCH_TRY(const Target t, target_of(object));
  return impl_->object(
      t.kind, kube::update_status(t.kind, t.key, object),
      write_class == WriteClass::kProgress ? CallClass::kProgress : CallClass::kDecision);
}

Duration KubeCluster::progress_turn(bool booked) { return impl_->client.progress_turn(booked); }

Status KubeCluster::remove(Kind kind, const ObjectKey& key, const DeleteOptions& options) {
  ARCH_TRY_VOID(impl_->client.call(kube::remove(kind, key, options)));
  return {};
}

Result<std::unique_ptr<Watch>> KubeCluster::watch(Kind kind, const std::string& name_space,
                                                  const std::string& resource_version) {
  const Duration timeout = seconds(to_seconds(impl_->options.watch_timeout) * impl_->jitter());
  const kube::Request request =
      kube::watch(kind, name_space, resource_version, impl_->selector(kind, {}),
                  static_cast<int>(timeout / std::chrono::seconds(1)));
  kube::WatchSettings settings;
  settings.kind = kind;
  settings.slim = impl_->options.slim;
  settings.idle = impl_->options.watch_idle;
  settings.total = timeout + seconds(15);
  settings.failed_wait = seconds(impl_->jitter());
  settings.buffer = impl_->options.watch_buffer;
  for (int tries = 1;; ++tries) {
    auto out = kube::open_watch(impl_->client, request, settings, impl_->metrics);
    if (out || tries == kWatchTries) return out;
    // Asked to come later (429, 503): waited out by the next try, without a list in between.
    if (impl_->client.asked_to_wait(request) <= Duration(0)) return out;
    // The head may come as late as the pause.
    settings.open = seconds(30) + impl_->client.asked_to_wait(request);
  }
}

void KubeCluster::record(const EventRecord& event) { impl_->events.record(event); }

}  // namespace archipelago::op
