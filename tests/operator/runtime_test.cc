// Queue, store, poller, and the whole controller against a fake kubelet.
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "cluster_fixture.h"
#include "operator/api/labels.h"
#include "operator/runtime/controller.h"
#include "operator/runtime/object_store.h"
#include "operator/runtime/reflector.h"
#include "operator/runtime/status_poller.h"
#include "operator/runtime/work_queue.h"

namespace archipelago::op {
using nlohmann::json;

namespace {
const ObjectKey kA{"n", "a"};
const ObjectKey kB{"n", "b"};

Object pod_object(const std::string& uid, const std::string& phase, const std::string& version) {
  return Object({{"apiVersion", "v1"},
                 {"kind", "Pod"},
                 {"metadata",
                  {{"name", "p"},
                   {"namespace", "n"},
                   {"uid", uid},
                   {"resourceVersion", version},
                   {"ownerReferences", json::array({{{"controller", true}, {"uid", "run"}}})}}},
                 {"status", {{"phase", phase}}}});
}

template <class Condition>
bool wait_until(Condition condition, double limit = 30) {
  SystemClock clock;
  const TimePoint end = clock.now() + seconds(limit);
  while (clock.now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}
}  // namespace

TEST_CASE("urgent keys go first, also after they were being worked on") {
  ManualClock clock;
  WorkQueue queue(clock, 1);
  const std::stop_source stop;
  const ObjectKey c{"n", "c"};
  queue.add(kA, Urgency::kNew);
  queue.add(kB, Urgency::kNew);
  queue.add(c, Urgency::kNew);
  queue.add(kB, Urgency::kUrgent);
  CHECK(queue.size() == 3);
  CHECK(queue.take(stop.get_token()) == kB);
  queue.add(kB, Urgency::kNew);
  queue.add(kB, Urgency::kUrgent);
  CHECK(queue.take(stop.get_token()) == kA);  // kB is with a worker
  queue.done(kB);
  CHECK(queue.take(stop.get_token()) == kB);
  CHECK(queue.take(stop.get_token()) == c);
  CHECK(queue.size() == 0);
}

TEST_CASE("a failure goes before reports, and those before new runs") {
  ManualClock clock;
  WorkQueue queue(clock, 1);
  const std::stop_source stop;
  const auto key = [](const std::string& name) { return ObjectKey{"n", name}; };
  for (int i = 0; i < 1000; ++i) queue.add(key("new-" + std::to_string(i)), Urgency::kNew);
  clock.advance(seconds(1));
  for (int i = 0; i < 1000; ++i) queue.add(key("steady-" + std::to_string(i)), Urgency::kStarted);
  queue.add_after(key("timer"), Duration(0));
  clock.advance(seconds(1));
  queue.add(key("steady-500"), Urgency::kUrgent);  // it waits already: it moves up
  queue.add(key("failed"), Urgency::kUrgent);
  CHECK(queue.take(stop.get_token()) == key("steady-500"));  // since its first word
  CHECK(queue.take(stop.get_token()) == key("failed"));
  for (int i = 0; i < 1000; ++i) CHECK(!queue.take(stop.get_token())->name.starts_with("new-"));
  CHECK(queue.take(stop.get_token())->name.starts_with("new-"));
  CHECK(queue.size() == 999);
  CHECK(queue.waiting(Urgency::kNew) == 999);
  CHECK(queue.waiting(Urgency::kStarted) == 0);
}

TEST_CASE("the queue holds one slot a key and never hands one key out twice") {
  ManualClock clock;
  WorkQueue queue(clock, 1);
  std::stop_source stop;
  queue.add(kA, Urgency::kNew);
  queue.add(kA, Urgency::kStarted);
  queue.add_after(kB, seconds(5));
  CHECK(queue.size() == 2);
  CHECK(queue.take(stop.get_token()) == kA);
  queue.add(kA, Urgency::kStarted);  // while it is being worked on
  clock.advance(seconds(6));
  CHECK(queue.take(stop.get_token()) == kB);
  queue.done(kA);
  CHECK(queue.take(stop.get_token()) == kA);
  CHECK(queue.size() == 0);
  stop.request_stop();
  CHECK(!queue.take(stop.get_token()));
}

TEST_CASE("of two times for a key the earlier counts, backoff grows until forgotten") {
  ManualClock clock;
  WorkQueue queue(clock, 1, {seconds(1), seconds(8), 2.0, 0.0});
  const auto due_after = [&](double s) {
    std::stop_source stop;
    clock.advance(seconds(s));
    std::jthread stopper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stop.request_stop();
    });
    const auto key = queue.take(stop.get_token());
    if (key) queue.done(*key);
    return key.has_value();
  };
  queue.add_after(kA, seconds(10));
  queue.add_after(kA, seconds(2));
  queue.add_after(kA, seconds(20));
  CHECK(!due_after(1.9));
  CHECK(due_after(0.2));
  CHECK(!due_after(100));
  queue.add_rate_limited(kA);
  CHECK(due_after(1.0));
  queue.add_rate_limited(kA);
  CHECK(!due_after(1.9));
  CHECK(due_after(0.2));
  queue.add_rate_limited(kA);
  queue.add_rate_limited(kA);  // woken meanwhile: still the same wait
  queue.add_rate_limited(kA);
  CHECK(!due_after(3.9));
  CHECK(due_after(0.2));
  queue.forget(kA);
  queue.add_rate_limited(kA);
  CHECK(due_after(1.0));
}

TEST_CASE("late events of a predecessor change nothing about its successor (K-01)") {
  ObjectStore store;
  const auto event = [&](WatchType type, const Object& o) {
    return store.apply({type, o, o.resource_version()});
  };
  event(WatchType::kAdded, pod_object("A", "Running", "1"));
  event(WatchType::kAdded, pod_object("B", "Running", "5"));
  event(WatchType::kModified, pod_object("A", "Failed", "6"));
  event(WatchType::kDeleted, pod_object("A", "Failed", "7"));
  REQUIRE(store.get({"n", "p"}));
  CHECK(store.get({"n", "p"})->uid() == "B");
  CHECK(string_at(store.get({"n", "p"})->status(), {"phase"}) == "Running");
  CHECK(store.controlled_by("n", "run").size() == 1);
  CHECK(store.controlled_by("m", "run").empty());
  SECTION("the event of a write of our own, whose answer the store took, tells nothing") {
    store.replace_version(pod_object("B", "Failed", "8"), "5");
    CHECK(!event(WatchType::kModified, pod_object("B", "Failed", "8")));
    CHECK(event(WatchType::kModified, pod_object("B", "Failed", "9")));
    CHECK(event(WatchType::kDeleted, pod_object("B", "Failed", "9")));
  }
  SECTION("a new list tells what was missed") {
    CHECK(store.replace({pod_object("B", "Running", "5")}).empty());
    CHECK(store.replace({pod_object("B", "Failed", "9")}).size() == 1);
    const auto gone = store.replace({});
    REQUIRE(gone.size() == 1);
    CHECK(gone[0].uid() == "B");
    CHECK(store.controlled_by("n", "run").empty());
  }
  SECTION("its own deletion takes it") {
    event(WatchType::kDeleted, pod_object("B", "Failed", "8"));
    CHECK(!store.get({"n", "p"}));
  }
}

namespace {
class FakeSource final : public OuterStatusSource {
 public:
  std::atomic<int> polls{0};
  std::atomic<int> settings{0};
  std::atomic<int> probes{0};
  std::atomic<bool> answers{true};
  std::atomic<std::int64_t> step{1};
  std::atomic<bool> finished{false};
  std::atomic<bool> refuses{false};
  std::function<json()> units = [] { return json::array(); };

  Result<std::string> poll(const PodEndpoint&, Duration) override {
    ++polls;
    if (!answers) return fail(ErrorKind::kTimeout, "no answer");
    return json{{"phase", finished ? "finished" : "running"},
                {"globalStep", step.load()},
                {"settingsGeneration", 1},
                {"units", units()}}
        .dump();
  }
  Status put_settings(const PodEndpoint&, const json&, Duration) override {
    ++settings;
    if (refuses) return fail(ErrorKind::kRefused, "budget.globalSteps: the run has reached 100");
    return {};
  }
  UnitProbe probe_unit(const PodEndpoint&, Duration) override {
    ++probes;
    return {true, "Waiting"};
  }
};
}  // namespace

TEST_CASE("what comes up is looked at before the interval is over, once") {
  SystemClock clock;
  FakeSource source;
  StatusPoller poller(source, clock, Logger::null(), {seconds(3600), seconds(1), 1, 1},
                      [](const ObjectKey&) {});
  poller.start();
  poller.follow(kA, "run", PodEndpoint{"n", "a", "run", "p", "u1", ""});
  REQUIRE(wait_until([&] { return source.polls == 1; }));
  poller.hurry(kA, "east-0/1");
  poller.hurry(kA, "east-0/1");
  REQUIRE(wait_until([&] { return source.polls == 2; }));
  poller.hurry(kA, "");
  poller.hurry(kA, "east-0/2");  // its next incarnation
  REQUIRE(wait_until([&] { return source.polls == 3; }));
  poller.stop();
}

TEST_CASE("the poller asks a new pod at once, caches, and keeps the cache through silence") {
  SystemClock clock;
  FakeSource source;
  std::atomic<int> woken{0};
  StatusPoller poller(source, clock, Logger::null(), {seconds(0.02), seconds(1), 2, 1},
                      [&](const ObjectKey&) { ++woken; });
  poller.start();
  poller.follow(kA, "run", PodEndpoint{"n", "a", "run", "p", "u1", ""});
  REQUIRE(wait_until([&] { return woken > 2; }));
  CHECK(poller.input(kA, "run").status->document.global_step == 1);
  CHECK(poller.input(kA, "run").status->pod_uid == "u1");
  CHECK(!poller.input(kA, "another run").status);
  poller.send_settings(kA, {{"generation", 2}});
  poller.send_settings(kA, {{"generation", 2}});  // at every poll until it acts: sent once
  poller.probe(kA, "east-0", PodEndpoint{"n", "a", "run", "l", "u2", ""});
  REQUIRE(
      wait_until([&] { return source.settings == 1 && !poller.input(kA, "run").probes.empty(); }));
  CHECK(poller.input(kA, "run").probes.at("east-0").phase == "Waiting");
  source.answers = false;
  const int asked = source.polls;
  REQUIRE(wait_until([&] { return source.polls > asked + 2; }));
  CHECK(poller.input(kA, "run").status);
  poller.follow(kA, "run", std::nullopt);
  poller.forget(kA);
  CHECK(!poller.input(kA, "run").status);
  poller.stop();
  CHECK(source.settings == 1);
}

TEST_CASE("settings that the outer optimizer refused are in its run's input, until it takes some") {
  SystemClock clock;
  FakeSource source;
  StatusPoller poller(source, clock, Logger::null(), {seconds(3600), seconds(1), 1, 1},
                      [](const ObjectKey&) {});
  poller.start();
  poller.follow(kA, "run", PodEndpoint{"n", "a", "run", "p", "u1", ""});
  source.refuses = true;
  poller.send_settings(kA, {{"generation", 2}});
  REQUIRE(wait_until([&] { return poller.input(kA, "run").refused_settings.has_value(); }));
  CHECK(poller.input(kA, "run").refused_settings->generation == 2);
  CHECK(poller.input(kA, "run").refused_settings->message.find("globalSteps") != std::string::npos);
  SECTION("a newer generation that it takes") {
    source.refuses = false;
    poller.send_settings(kA, {{"generation", 3}});
    CHECK(wait_until([&] { return !poller.input(kA, "run").refused_settings; }));
  }
  SECTION("another process judges anew") {
    poller.follow(kA, "run", PodEndpoint{"n", "a", "run", "p2", "u2", ""});
    CHECK(!poller.input(kA, "run").refused_settings);
  }
  poller.stop();
}

namespace {
// Binds and runs pods; ends those that are deleted.
class FakeKubelet {
 public:
  explicit FakeKubelet(MemoryCluster& cluster) : cluster_(cluster) {
    thread_ = std::jthread([this](std::stop_token stop) {
      while (!stop.stop_requested()) {
        tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    });
  }

 private:
  void tick() {
    for (const Object& pod : items(cluster_, Kind::kPod)) {
      json body = pod.json();
      if (pod.deleting()) {
        (void)cluster_.finalize_delete(pod.key(), pod.uid());
      } else if (string_at(pod.spec(), {"nodeName"}).empty()) {
        body["spec"]["nodeName"] = "node";
        (void)cluster_.update(body);
      } else if (string_at(pod.status(), {"phase"}) == "Pending") {
        body["status"] = {{"phase", "Running"},
                          {"podIP", "127.1.0.1"},
                          {"conditions", json::array({{{"type", "Ready"}, {"status", "True"}}})}};
        (void)cluster_.update_status(body);
      }
    }
  }
  MemoryCluster& cluster_;
  std::jthread thread_;
};

void fail_pod(MemoryCluster& cluster, const std::string& name, int code) {
  for (int i = 0; i < 50; ++i) {
    const auto pod = cluster.get(Kind::kPod, {"default", name});
    if (!pod) return;
    json body = pod->json();
    body["status"] = {
        {"phase", "Failed"},
        {"containerStatuses",
         json::array({{{"state", {{"terminated", {{"exitCode", code}, {"reason", "Error"}}}}}}})}};
    if (cluster.update_status(body)) return;
  }
}
}  // namespace

TEST_CASE("the controller brings a run up, replaces what dies, and ends it") {
  SystemClock clock;
  MemoryCluster cluster(clock);
  FakeSource source;
  source.units = [&] {
    json out = json::array();
    for (const Object& pod : items(cluster, Kind::kPod))
      if (pod.label(kLabelRole) == kRoleLearner && string_at(pod.status(), {"phase"}) == "Running")
        out.push_back({{"name", pod.label(kLabelUnit)},
                       {"datacenter", pod.label(kLabelDatacenter)},
                       {"incarnation", std::stoll(pod.label(kLabelIncarnation))},
                       {"phase", "Stepping"}});
    return out;
  };
  Metrics metrics;
  ControllerOptions options;
  options.poll_interval = seconds(0.02);
  options.progress_write_interval = seconds(0.01);
  Controller controller(cluster, source, clock, Logger::null(), &metrics, options);
  controller.start();
  FakeKubelet kubelet(cluster);
  REQUIRE(cluster.create(small_training()));
  const auto status = [&] {
    return parse_status(cluster.get(Kind::kTraining, {"default", "r"})->status());
  };
  REQUIRE(wait_until(
      [&] { return status().phase == RunPhase::kRunning && status().learners.summary == "3/3"; }));
  CHECK(controller.synced());

  fail_pod(cluster, "r-east-1-i1", 137);
  REQUIRE(wait_until(
      [&] { return status().units[1].incarnation == 2 && status().learners.summary == "3/3"; }));
  CHECK(status().units[1].charged == 1);
  fail_pod(cluster, "r-outer-i1", 137);
  REQUIRE(wait_until([&] {
    return status().outer.incarnation == 2 && status().phase == RunPhase::kRunning &&
           is_true(status().conditions, condition::kOuterOptimizerReady);
  }));
  REQUIRE(cluster.remove(Kind::kPod, {"default", "r-west-0-i1"}, {}));
  REQUIRE(wait_until(
      [&] { return status().units[2].incarnation == 2 && status().learners.summary == "3/3"; }));
  CHECK(status().units[2].charged == 0);
  CHECK(status().units[0].incarnation == 1);

  source.step = 2000;
  source.finished = true;
  REQUIRE(wait_until([&] { return status().phase == RunPhase::kSucceeded; }));
  CHECK(status().global_step == 2000);
  controller.stop();
  CHECK(metrics.render().find("archipelago_operator_reconcile_total{result=\"done\"}") !=
        std::string::npos);
  bool told = false;
  for (const EventRecord& e : cluster.events()) told = told || e.reason == "Succeeded";
  CHECK(told);
}

TEST_CASE("a kind that can't be read says why, and the command that helps (K-28)") {
  // Passes everything on but lists of one kind.
  struct Closed final : Cluster {
    explicit Closed(Cluster& c) : inner(c) {}
    Cluster& inner;
    std::mutex mutex;
    std::optional<Error> error;
    Result<Object> create(const json& o) override { return inner.create(o); }
    Status check(const json& o) override { return inner.check(o); }
    Result<Object> get(Kind k, const ObjectKey& key) const override { return inner.get(k, key); }
    Result<ObjectList> list(Kind k, const ListOptions& options) const override {
      if (error) return fail(*error);
      return inner.list(k, options);
    }
    Result<Object> update(const json& o) override { return inner.update(o); }
    Result<Object> apply(const json& o) override { return inner.apply(o); }
    Result<Object> update_status(const json& o, WriteClass c) override {
      return inner.update_status(o, c);
    }
    Status remove(Kind k, const ObjectKey& key, const DeleteOptions& options) override {
      return inner.remove(k, key, options);
    }
    Result<std::unique_ptr<Watch>> watch(Kind k, const std::string& ns,
                                         const std::string& v) override {
      return inner.watch(k, ns, v);
    }
    void record(const EventRecord& e) override { inner.record(e); }
  };
  const SystemClock clock;
  MemoryCluster memory(clock);
  Closed closed(memory);
  ObjectStore store;
  const auto why = [&](const Error& error) {
    closed.error = error;
    Reflector reflector(closed, Kind::kTraining, "", store, clock, Logger::null(),
                        [](const Object&) {});
    reflector.start();
    CHECK(wait_until([&] { return !reflector.unreadable().empty(); }));
    CHECK(!reflector.synced());
    const std::string text = reflector.unreadable();
    reflector.stop();
    return text;
  };
  CHECK(why({ErrorKind::kRefused, "cannot list decoupledtrainings"}) ==
        "cannot list decoupledtrainings");
  CHECK(why({ErrorKind::kNotFound, "404"}).find("kubectl apply") != std::string::npos);
}

}  // namespace archipelago::op
