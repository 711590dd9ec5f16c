#include "operator/runtime/controller.h"

#include <array>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/plan/observe.h"
#include "operator/reconcile/reconciler.h"
#include "operator/runtime/object_store.h"
#include "operator/runtime/reflector.h"
#include "operator/runtime/run_metrics.h"
#include "operator/runtime/status_poller.h"
#include "operator/runtime/work_queue.h"

namespace archipelago::op {
namespace {

class StoreReader final : public StateReader {
 public:
  ObjectStore trainings;
  ObjectStore pod_store;
  ObjectStore services;
  ObjectStore config_maps;
  ObjectStore claims;
  ObjectStore nodes;

  [[nodiscard]] std::optional<Object> training(const ObjectKey& key) const override {
    return trainings.get(key);
  }
  [[nodiscard]] std::vector<Object> pods(const std::string& name_space,
                                         const std::string& uid) const override {
    return pod_store.controlled_by(name_space, uid);
  }
  void wrote(const Object& training, const std::string& over) override {
    trainings.replace_version(training, over);
  }
  [[nodiscard]] std::optional<Object> child(Kind kind, const ObjectKey& key) const override {
    if (kind == Kind::kService) return services.get(key);
    if (kind == Kind::kConfigMap) return config_maps.get(key);
    return kind == Kind::kClaim ? claims.get(key) : std::nullopt;
  }
  [[nodiscard]] std::optional<Object> node(const std::string& name) const override {
    return nodes.get({"", name});
  }
  // A cluster without a single node that we can see is one whose nodes we can't read.
  [[nodiscard]] bool nodes_known() const override { return nodes.size() > 0; }
};

// The run that a child belongs to, by its controller reference; a retained claim has none, and its
// label says it.
std::optional<ObjectKey> owner_of(const Object& child) {
  const nlohmann::json& owners = at(child.json(), {"metadata", "ownerReferences"});
  if (owners.is_array())
    for (const nlohmann::json& o : owners)
      if (bool_at(o, {"controller"}) && string_at(o, {"kind"}) == to_string(Kind::kTraining))
        return ObjectKey{child.name_space(), string_at(o, {"name"})};
  const std::string run = child.kind() == Kind::kClaim ? child.label(kLabelRun) : "";
  if (run.empty()) return std::nullopt;
  return ObjectKey{child.name_space(), run};
}

PodEndpoint endpoint(const ObjectKey& run, const std::string& uid, const ObservedPod& pod) {
  return {run.name_space, run.name, uid, pod.name, pod.uid, pod.ip};
}

// Units whose containers run and that the outer optimizer has not shown at work yet, and a run
// whose first global step is awaited.
std::string coming_up(const TrainingStatus& status) {
  std::string out = status.phase == RunPhase::kPending ? "run " : "";
  for (const UnitStatus& u : status.units)
    if (u.phase == UnitPhase::kStarting || u.phase == UnitPhase::kRecovering)
      out += u.name + "/" + std::to_string(u.incarnation) + " ";
  return out;
}

std::string_view to_string(ReconcileResult r) {
  switch (r) {
    case ReconcileResult::kDone:
      return "done";
    case ReconcileResult::kGone:
      return "gone";
    case ReconcileResult::kConflict:
      return "conflict";
    case ReconcileResult::kRetry:
      return "retry";
  }
  return "done";
}
}  // namespace

struct Controller::Impl {
  Impl(Cluster& cluster, OuterStatusSource& source, const Clock& c, Logger l, Metrics* m,
       ControllerOptions o)
      : clock(c),
        log(std::move(l)),
        options(std::move(o)),
        queue(clock, options.seed),
        reconciler(cluster, reader, clock, log,
                   {options.plan, options.progress_write_interval,
                    ReconcileOptions{}.busy_progress_write_interval, options.settle_write_interval,
                    options.seed}),
        poller(source, clock, log, {options.poll_interval, options.poll_deadline, 2, options.seed},
               [this](const ObjectKey& key) { queue.add(key, Urgency::kStarted); }),
        trainings(cluster, Kind::kTraining, options.name_space, reader.trainings, clock, log,
                  [this](const Object& training) {
                    queue.add(training.key(),
                              training.status().is_object() ? Urgency::kStarted : Urgency::kNew);
                  }),
        pods(cluster, Kind::kPod, options.name_space, reader.pod_store, clock, log, on_child()),
        services(cluster, Kind::kService, options.name_space, reader.services, clock, log,
                 on_child()),
        config_maps(cluster, Kind::kConfigMap, options.name_space, reader.config_maps, clock, log,
                    on_child()),
        claims(cluster, Kind::kClaim, options.name_space, reader.claims, clock, log, on_child()),
        nodes(cluster, Kind::kNode, "", reader.nodes, clock, log,
              [this](const Object& node) { on_node(node); }) {
    if (m != nullptr) add_metrics(*m);
  }

  std::function<void(const Object&)> on_child() {
    return [this](const Object& child) {
      const auto run = owner_of(child);
      if (!run) return;
      reconciler.child_seen(*run, child.kind(), child.name());
      queue.add(*run, Urgency::kUrgent);
    };
  }

  // A kubelet writes its node often: only what a plan reads of it wakes anybody, and only those
  // that have pods there.
  void on_node(const Object& node) {
    const bool gone = !reader.nodes.get(node.key());
    const ObservedNode now = gone ? ObservedNode{} : observe_node(node.json());
    if (seen_nodes.empty())  // from here on a missing node proves its loss
      for (const Object& t : reader.trainings.all()) queue.add(t.key(), Urgency::kStarted);
    const auto [seen, fresh] = seen_nodes.try_emplace(node.name());
    if (!fresh && seen->second == now) return;
    seen->second = now;
    if (gone) seen_nodes.erase(seen);
    for (const Object& pod : reader.pod_store.all())
      if (string_at(pod.spec(), {"nodeName"}) == node.name())
        if (const auto run = owner_of(pod)) queue.add(*run, Urgency::kStarted);
  }

  void add_metrics(Metrics& m) {
    run_metrics = std::make_unique<RunMetrics>(m);
    for (const ReconcileResult r : {ReconcileResult::kDone, ReconcileResult::kGone,
                                    ReconcileResult::kConflict, ReconcileResult::kRetry})
      total[static_cast<std::size_t>(r)] =
          &m.counter("archipelago_operator_reconcile_total", "Reconciles by result",
                     {{"result", std::string(to_string(r))}});
    took = &m.histogram("archipelago_operator_reconcile_seconds", "Time of one reconcile",
                        {0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 2, 10});
    depth = &m.gauge("archipelago_operator_queue_depth", "Runs waiting for a reconcile");
  }

  void work(std::stop_token stop) {
    while (const auto key = queue.take(stop)) {
      if (reader_ready())
        handle(*key);
      else if (const std::string why = blind(); !why.empty() && trainings.synced())
        finish(*key, reconciler.report_blind(*key, why));
      else
        queue.add_after(*key, seconds(0.02));  // a view that is not complete would miss pods
      queue.done(*key);
    }
  }

  // Nodes may stay unseen: then their loss is judged from the pods.
  [[nodiscard]] bool reader_ready() const {
    return trainings.synced() && pods.synced() && services.synced() && config_maps.synced() &&
           claims.synced();
  }
  [[nodiscard]] std::string blind() const {
    for (const Reflector* r : {&trainings, &pods, &services, &config_maps, &claims})
      if (const std::string why = r->unreadable(); !why.empty()) return why;
    return "";
  }

  void finish(const ObjectKey& key, const ReconcileOutcome& out) {
    if (out.result == ReconcileResult::kDone)
      queue.forget(key);
    else
      queue.add_rate_limited(key);
    if (out.requeue) queue.add_after(key, *out.requeue);
  }

  void handle(const ObjectKey& key) {
    const TimePoint began = clock.now();
    const auto training = reader.training(key);
    PolledInput polled = training ? poller.input(key, training->uid()) : PolledInput{};
    polled.new_runs_wait = queue.waiting(Urgency::kNew) > 0;
    const ReconcileOutcome out = reconciler.reconcile(key, polled);
    if (took != nullptr) {
      took->Observe(to_seconds(clock.now() - began));
      total[static_cast<std::size_t>(out.result)]->Increment();
      depth->Set(static_cast<double>(queue.size()));
    }
    if (out.result == ReconcileResult::kGone) {
      poller.forget(key);
      queue.forget(key);
      if (run_metrics) run_metrics->forget(key);
      return;
    }
    if (run_metrics) run_metrics->observe(key, out.status, out.transitions);
    poller.follow(key, out.run_uid,
                  out.outer ? std::optional(endpoint(key, out.run_uid, *out.outer)) : std::nullopt);
    poller.hurry(key, coming_up(out.status));
    for (const ObservedPod& p : out.probe_pods)
      poller.probe(key, p.unit, endpoint(key, out.run_uid, p));
    if (out.settings) poller.send_settings(key, *out.settings);
    finish(key, out);
  }

  std::array<Reflector*, 6> reflectors() {
    return {&nodes, &trainings, &pods, &services, &config_maps, &claims};
  }

  const Clock& clock;
  Logger log;
  const ControllerOptions options;
  StoreReader reader;
  WorkQueue queue;
  Reconciler reconciler;
  StatusPoller poller;
  Reflector trainings;
  Reflector pods;
  Reflector services;
  Reflector config_maps;
  Reflector claims;
  Reflector nodes;
  std::map<std::string, ObservedNode> seen_nodes;  // of the nodes' reflector thread
  std::unique_ptr<RunMetrics> run_metrics;
  std::array<prometheus::Counter*, 4> total{};
  prometheus::Histogram* took = nullptr;
  prometheus::Gauge* depth = nullptr;
  std::vector<std::jthread> workers;
};

Controller::Controller(Cluster& cluster, OuterStatusSource& source, const Clock& clock, Logger log,
                       Metrics* metrics, ControllerOptions options)
    : impl_(std::make_unique<Impl>(cluster, source, clock, std::move(log), metrics,
                                   std::move(options))) {}

Controller::~Controller() { stop(); }

void Controller::start() {
  for (Reflector* r : impl_->reflectors()) r->start();
  impl_->poller.start();
  for (int i = 0; i < std::max(impl_->options.workers, 1); ++i)
    impl_->workers.emplace_back([impl = impl_.get()](std::stop_token stop) { impl->work(stop); });
}

void Controller::stop() {
  for (std::jthread& w : impl_->workers) w.request_stop();
  impl_->workers.clear();
  impl_->poller.stop();
  for (Reflector* r : impl_->reflectors()) r->stop();
}

bool Controller::synced() const { return impl_->reader_ready(); }
std::string Controller::blind() const { return impl_->blind(); }

}  // namespace archipelago::op
