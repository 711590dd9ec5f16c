// read -> plan -> status -> execute -> events, against a cluster that conflicts and refuses.
#include <functional>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "cluster_fixture.h"
#include "operator/api/labels.h"
#include "operator/runtime/object_store.h"

namespace archipelago::op {
using nlohmann::json;

TEST_CASE("the first pass writes status, then makes the children") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  CHECK(w.look().result == ReconcileResult::kDone);
  CHECK(w.pod_names() ==
        std::vector<std::string>{"r-east-0-i1", "r-east-1-i1", "r-outer-i1", "r-west-0-i1"});
  CHECK(w.memory.get(Kind::kConfigMap, {"default", "r-spec"}).has_value());
  CHECK(w.memory.get(Kind::kService, {"default", "r-outer"}).has_value());
  CHECK(w.memory.list(Kind::kClaim, {})->items.size() == 1);
  CHECK(w.status().units.size() == 3);
  CHECK(is_true(w.status().conditions, condition::kSpecValid));
  SECTION("deleting the resource takes all but the retained claim (K-10)") {
    REQUIRE(w.memory.remove(Kind::kTraining, w.key, {}));
    CHECK(w.pod_names().empty());
    CHECK(!w.memory.get(Kind::kService, {"default", "r-outer"}));
    CHECK(w.memory.list(Kind::kClaim, {})->items.size() == 1);
    CHECK(w.look().result == ReconcileResult::kGone);
  }
  SECTION("steady state: no write, no call (K-20)") {
    (void)w.look();  // records the uids
    const auto before = w.cluster.calls;
    for (int i = 0; i < 20; ++i) CHECK(w.look().result == ReconcileResult::kDone);
    CHECK(w.cluster.calls == before);
  }
}

TEST_CASE("a view that lags behind makes no second pod (K-01)") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  struct Blind final : StateReader {  // the pods' ADDED events are five seconds late
    const DirectReader& inner;
    bool blind = true;
    std::function<void()> after_look;
    explicit Blind(const DirectReader& r) : inner(r) {}
    std::optional<Object> training(const ObjectKey& key) const override {
      return inner.training(key);
    }
    std::vector<Object> pods(const std::string& ns, const std::string& uid) const override {
      auto out = blind ? std::vector<Object>{} : inner.pods(ns, uid);
      if (after_look) after_look();
      return out;
    }
    void wrote(const Object&, const std::string&) override {}
    std::optional<Object> child(Kind kind, const ObjectKey& key) const override {
      return blind ? std::nullopt : inner.child(kind, key);
    }
    std::optional<Object> node(const std::string& name) const override { return inner.node(name); }
    bool nodes_known() const override { return false; }
  } blind(w.reader);
  Reconciler reconciler(w.cluster, blind, w.clock, Logger::null(), at_once());
  for (int i = 0; i < 20; ++i)
    CHECK(reconciler.reconcile(w.key, {}).result == ReconcileResult::kDone);
  CHECK(w.pod_names().size() == 4);
  CHECK(w.cluster.calls["create"] == 7);  // four pods, Service, ConfigMap, claim: once each
  CHECK(w.cluster.calls["remove"] == 0);
  SECTION("an expectation that nothing fulfils ends") {
    REQUIRE(w.memory.remove(Kind::kPod, {"default", "r-east-0-i1"}, {}));
    (void)reconciler.reconcile(w.key, {});
    CHECK(w.cluster.calls["create"] == 7);
    w.clock.advance(Expectations::kExpiry);
    (void)reconciler.reconcile(w.key, {});
    CHECK(w.pod_names().size() == 4);
  }
  SECTION("an event of the child ends it at once") {
    REQUIRE(w.memory.remove(Kind::kPod, {"default", "r-east-0-i1"}, {}));
    reconciler.child_seen(w.key, Kind::kPod, "r-east-0-i1");
    (void)reconciler.reconcile(w.key, {});
    CHECK(w.pod_names().size() == 4);
  }
  SECTION("an event between the look and the act tells of what the look has not seen") {
    blind.after_look = [&] { reconciler.child_seen(w.key, Kind::kPod, "r-east-0-i1"); };
    (void)reconciler.reconcile(w.key, {});
    CHECK(w.cluster.calls["create"] == 7);
    blind.after_look = nullptr;
  }
  blind.blind = false;
  (void)reconciler.reconcile(w.key, {});
  CHECK(w.status().units[0].incarnation == 1);
  CHECK(w.status().units[0].pod_uids.size() == 1);
}

TEST_CASE("on conflict nothing is executed, and a repeat charges once (K-19)") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  (void)w.look();
  (void)w.look();
  w.fail_pod("r-east-0-i1", 1);
  int conflicts = 3;
  w.cluster.refuse = [&](const std::string& verb, const json&) -> std::optional<Error> {
    if (verb != "status" || conflicts == 0) return std::nullopt;
    --conflicts;
    json body = w.training().json();
    body["metadata"]["annotations"]["foreign"] = std::to_string(conflicts);
    (void)w.memory.update(body);
    return Error{ErrorKind::kConflict, "the object has been modified"};
  };
  const auto pods = w.pod_names();
  for (int i = 0; i < 3; ++i) {
    CHECK(w.look().result == ReconcileResult::kConflict);
    CHECK(w.pod_names() == pods);
  }
  CHECK(w.look().result == ReconcileResult::kDone);
  CHECK(w.status().units[0].charged == 1);
  CHECK(w.status().units[0].incarnation == 2);
  CHECK(w.status().phase == RunPhase::kPending);
  CHECK(string_at(w.training().json(), {"metadata", "annotations", "foreign"}) ==
        "0");  // others' stay (K-37)
}

TEST_CASE("a real stale version conflicts too") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  struct Old final : StateReader {
    const DirectReader& inner;
    Object stored;
    Old(const DirectReader& r, Object o) : inner(r), stored(std::move(o)) {}
    std::optional<Object> training(const ObjectKey&) const override { return stored; }
    std::vector<Object> pods(const std::string& ns, const std::string& uid) const override {
      return inner.pods(ns, uid);
    }
    void wrote(const Object&, const std::string&) override {}
    std::optional<Object> child(Kind kind, const ObjectKey& key) const override {
      return inner.child(kind, key);
    }
    std::optional<Object> node(const std::string&) const override { return std::nullopt; }
    bool nodes_known() const override { return false; }
  } old(w.reader, w.training());
  (void)w.look();
  Reconciler reconciler(w.cluster, old, w.clock, Logger::null(), at_once());
  const int creates = w.cluster.calls["create"];
  CHECK(reconciler.reconcile(w.key, {}).result == ReconcileResult::kConflict);
  CHECK(w.cluster.calls["create"] == creates);
}

TEST_CASE("a cache that has not seen our own status write makes no conflict") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  struct Late final : StateReader {  // the resource's own events never come
    const DirectReader& inner;
    ObjectStore store;
    ObjectKey key;
    Late(const DirectReader& r, const Object& o) : inner(r), key(o.key()) {
      (void)store.replace({o});
    }
    std::optional<Object> training(const ObjectKey&) const override { return store.get(key); }
    std::vector<Object> pods(const std::string& ns, const std::string& uid) const override {
      return inner.pods(ns, uid);
    }
    void wrote(const Object& training, const std::string& over) override {
      store.replace_version(training, over);
    }
    std::optional<Object> child(Kind kind, const ObjectKey& k) const override {
      return inner.child(kind, k);
    }
    std::optional<Object> node(const std::string&) const override { return std::nullopt; }
    bool nodes_known() const override { return false; }
  } late(w.reader, w.training());
  Reconciler reconciler(w.cluster, late, w.clock, Logger::null(), at_once());
  for (int i = 0; i < 3; ++i)
    CHECK(reconciler.reconcile(w.key, {}).result == ReconcileResult::kDone);
  CHECK(w.status().units[0].pod_uids.size() == 1);
  // Somebody else's write after ours, which the cache has not: a conflict, as it must be.
  json body = w.training().json();
  body["metadata"]["annotations"]["foreign"] = "x";
  REQUIRE(w.memory.update(body));
  w.fail_pod("r-east-0-i1", 1);
  CHECK(reconciler.reconcile(w.key, {}).result == ReconcileResult::kConflict);
  SECTION("an answer that came late does not undo what the cache has seen") {
    (void)late.store.replace({w.training()});
    const std::string now = w.training().resource_version();
    late.store.replace_version(Object(body), "an older version");
    CHECK(late.store.get(w.key)->resource_version() == now);
    CHECK(reconciler.reconcile(w.key, {}).result == ReconcileResult::kDone);
    CHECK(w.status().units[0].incarnation == 2);
  }
}

TEST_CASE("what can't be read at all is a condition, and nothing is planned (K-28)") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  const std::string why = "pods is forbidden: User \"x\" cannot list resource \"pods\"";
  CHECK(w.reconciler.report_blind(w.key, why).result == ReconcileResult::kDone);
  CHECK(is_true(w.status().conditions, condition::kForbidden));
  CHECK(find_condition(w.status().conditions, condition::kForbidden)->message == why);
  CHECK(w.pod_names().empty());
  (void)w.look();
  CHECK(!is_true(w.status().conditions, condition::kForbidden));
  CHECK(w.pod_names().size() == 4);
}

TEST_CASE("pods that come up within two seconds share a status write") {
  ClusterWorld w;
  Reconciler reconciler(w.cluster, w.reader, w.clock, Logger::null(), {});
  REQUIRE(w.memory.create(small_training()));
  (void)reconciler.reconcile(w.key, {});
  CHECK(w.cluster.calls["status"] == 1);
  for (const std::string& name : w.pod_names()) {
    w.set_pod(name, {{"phase", "Running"}});
    w.clock.advance(seconds(0.1));
    const auto out = reconciler.reconcile(w.key, {});
    REQUIRE(out.requeue);
    CHECK(*out.requeue <= seconds(2));
  }
  CHECK(w.cluster.calls["status"] == 1);
  SECTION("and are written when it is over") {
    w.clock.advance(seconds(1.6));
    (void)reconciler.reconcile(w.key, {});
    CHECK(w.cluster.calls["status"] == 2);
    CHECK(w.status().units[2].phase == UnitPhase::kStarting);
    CHECK(w.status().units[2].pod_uids.size() == 1);
  }
  SECTION("a failure does not wait, and takes them with it") {
    w.fail_pod("r-east-0-i1", 1);
    (void)reconciler.reconcile(w.key, {});
    CHECK(w.cluster.calls["status"] == 2);
    CHECK(w.status().units[0].incarnation == 2);
    CHECK(w.status().units[2].pod_uids.size() == 1);
  }
}

TEST_CASE("a changed template is judged at once, and the run goes on") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  (void)w.look();
  (void)w.look();
  CHECK(w.cluster.calls["check"] == 0);
  w.cluster.refuse = [](const std::string& verb, const json& object) -> std::optional<Error> {
    if (verb != "check") return std::nullopt;
    CHECK(string_at(object, {"kind"}) == "Pod");
    return Error{ErrorKind::kInvalid, "spec.priorityClassName: no such class"};
  };
  const auto pods = w.pod_names();
  json body = w.training().json();
  body["spec"]["datacenters"][1]["template"] = {{"priorityClassName", "gold"}};
  REQUIRE(w.memory.update(body));
  const auto out = w.look();
  CHECK(w.cluster.calls["check"] == 1);  // the one datacenter that changed
  CHECK(out.requeue == Duration(0));
  (void)w.look();
  CHECK(is_true(w.status().conditions, condition::kPodRejected));
  const std::string message =
      find_condition(w.status().conditions, condition::kPodRejected)->message;
  CHECK(message.find("spec.datacenters[west].template") != std::string::npos);
  CHECK(message.find("no such class") != std::string::npos);
  CHECK(w.pod_names() == pods);
  CHECK(w.cluster.calls["check"] == 1);
  w.cluster.refuse = {};
  body = w.training().json();
  body["spec"]["datacenters"][1]["template"] = {{"priorityClassName", "silver"}};
  REQUIRE(w.memory.update(body));
  (void)w.look();
  (void)w.look();
  CHECK(w.cluster.calls["check"] == 2);
  CHECK(!is_true(w.status().conditions, condition::kPodRejected));
}

TEST_CASE("transitions tell failures and recoveries from two statuses") {
  TrainingStatus before;
  before.units.resize(2);
  before.units[0].name = "a";
  before.units[1].name = "b";
  TrainingStatus after = before;
  CHECK(transitions(before, after).empty());
  after.units[0].last_failure = LastFailure{1,   "uid", FailureReason::kOomKilled,
                                            137, "",    WallTime(std::chrono::seconds(100))};
  REQUIRE(transitions(before, after).size() == 1);
  CHECK(transitions(before, after)[0].failed == FailureReason::kOomKilled);
  before = after;
  after.units[0].stepping_since = WallTime(std::chrono::seconds(104));
  REQUIRE(transitions(before, after).size() == 1);
  CHECK(transitions(before, after)[0].recovery_seconds == 4.0);
  CHECK(!transitions(before, after)[0].failed);
}

TEST_CASE("a foreign object of a child's name is a condition, never touched (K-14)") {
  ClusterWorld w;
  json foreign = {{"apiVersion", "v1"},
                  {"kind", "Pod"},
                  {"metadata",
                   {{"name", "r-east-0-i1"},
                    {"namespace", "default"},
                    {"labels",
                     {{kLabelRun, "r"},
                      {kLabelUnit, "east-0"},
                      {kLabelIncarnation, "1"},
                      {kLabelRole, kRoleLearner}}}}},
                  {"spec", {{"who", "them"}}}};
  const Object theirs = *w.memory.create(foreign);
  REQUIRE(w.memory.create(small_training()));
  CHECK(w.look().result == ReconcileResult::kRetry);
  (void)w.look();
  CHECK(is_true(w.status().conditions, condition::kNameConflict));
  CHECK(w.memory.get(Kind::kPod, theirs.key())->resource_version() == theirs.resource_version());
  CHECK(w.status().units[0].pod_uids.empty());  // not counted as ours
  CHECK(w.pod_names().size() == 4);             // the others were made
  REQUIRE(w.memory.remove(Kind::kPod, theirs.key(), {}));
  w.clock.advance(seconds(61));
  (void)w.look();
  (void)w.look();
  CHECK(!is_true(w.status().conditions, condition::kNameConflict));
  CHECK(w.status().units[0].pod_uids.size() == 1);
}

TEST_CASE("two runs of one name in two namespaces don't meet (K-14)") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  REQUIRE(w.memory.create(small_training("r", "other")));
  (void)w.look();
  (void)w.reconciler.reconcile({"other", "r"}, {});
  (void)w.look();
  (void)w.reconciler.reconcile({"other", "r"}, {});
  CHECK(w.pod_names().size() == 8);
  w.fail_pod("r-east-0-i1", 1);
  (void)w.look();
  (void)w.reconciler.reconcile({"other", "r"}, {});
  CHECK(w.status().units[0].incarnation == 2);
  CHECK(
      parse_status(w.memory.get(Kind::kTraining, {"other", "r"})->status()).units[0].incarnation ==
      1);
}

TEST_CASE("a full quota: bounded calls, one condition, one event, and it heals (K-20)") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  bool full = true;
  int refusals = 0;
  w.cluster.refuse = [&](const std::string& verb, const json& o) -> std::optional<Error> {
    if (verb != "create" || string_at(o, {"kind"}) != "Pod" || !full) return std::nullopt;
    return Error{ErrorKind::kRefused, "exceeded quota: used: pods=" + std::to_string(++refusals)};
  };
  (void)w.look();
  (void)w.look();
  CHECK(is_true(w.status().conditions, condition::kPodRejected));
  const int writes = w.cluster.calls["status"];
  for (int i = 0; i < 600; ++i) {  // ten minutes, woken each second
    w.clock.advance(seconds(1));
    (void)w.look();
  }
  CHECK(refusals < 4 * 25);
  CHECK(w.cluster.calls["status"] == writes);
  int told = 0;
  for (const EventRecord& e : w.cluster.events) told += e.reason == condition::kPodRejected ? 1 : 0;
  CHECK(told == 1);
  full = false;
  w.clock.advance(seconds(75));
  (void)w.look();
  (void)w.look();
  CHECK(!is_true(w.status().conditions, condition::kPodRejected));
  CHECK(w.pod_names().size() == 4);
}

TEST_CASE("one object that doesn't fit doesn't stop the others (K-06, K-07)") {
  const json bad =
      GENERATE(values<json>({json("two"), json(-1), json(300), json(2147483648LL), json()}));
  CAPTURE(bad.dump());
  ClusterWorld w;
  json broken = small_training("broken");
  broken["spec"]["datacenters"][0]["learnerUnits"] = bad;
  if (bad.is_null()) broken["spec"] = nullptr;
  REQUIRE(w.memory.create(broken));
  REQUIRE(w.memory.create(small_training()));
  const ReconcileOutcome out = w.reconciler.reconcile({"default", "broken"}, {});
  CHECK(out.result == ReconcileResult::kDone);
  const TrainingStatus status =
      parse_status(w.memory.get(Kind::kTraining, {"default", "broken"})->status());
  const Condition* valid = find_condition(status.conditions, condition::kSpecValid);
  REQUIRE(valid != nullptr);
  CHECK(!valid->status);
  CHECK(!valid->message.empty());
  CHECK(status.observed_generation == 1);
  CHECK(w.cluster.events.size() == 1);
  CHECK(w.pod_names().empty());
  CHECK(w.look().result == ReconcileResult::kDone);
  CHECK(w.pod_names().size() == 4);
}

TEST_CASE("a name too long for its pods is told, nothing is made (K-13)") {
  ClusterWorld w;
  w.key.name = std::string(60, 'a');
  REQUIRE(w.memory.create(small_training(w.key.name)));
  (void)w.look();
  CHECK(!is_true(w.status().conditions, condition::kSpecValid));
  CHECK(w.pod_names().empty());
}

TEST_CASE("a server that refuses the status itself is told once") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  w.cluster.refuse = [&](const std::string& verb, const json&) -> std::optional<Error> {
    if (verb != "status") return std::nullopt;
    return Error{ErrorKind::kInvalid, "spec.datacenters: must be an array"};
  };
  for (int i = 0; i < 5; ++i) CHECK(w.look().result == ReconcileResult::kDone);
  CHECK(w.cluster.events.size() == 1);
  CHECK(w.pod_names().empty());
}

namespace {
struct SteppingWorld : ClusterWorld {
  SteppingWorld() {
    REQUIRE(memory.create(small_training()));
    (void)look();
    for (const std::string& name : pod_names())
      set_pod(name, {{"phase", "Running"},
                     {"conditions", json::array({{{"type", "Ready"}, {"status", "True"}}})}});
    (void)look();
  }
  ReconcileOutcome at_step(std::int64_t step) {
    PolledStatus told;
    told.document.phase = "running";
    told.document.settings_generation = 1;
    told.pod_uid = status().outer.pod_uid;
    told.time = clock.wall();
    told.document.global_step = step;
    polled.status = told;
    return look();
  }
};
}  // namespace

TEST_CASE("progress without a turn holds up no worker, and is written when its turn comes") {
  SteppingWorld w;
  (void)w.at_step(1);
  w.clock.advance(seconds(11));
  std::vector<bool> asked;
  w.cluster.turn = [&](bool booked) {
    asked.push_back(booked);
    return booked ? Duration(0) : Duration(seconds(5));
  };
  const int writes = w.cluster.calls["status"];
  const ReconcileOutcome out = w.at_step(2);
  CHECK(out.result == ReconcileResult::kDone);
  REQUIRE(out.requeue);
  CHECK(*out.requeue == seconds(5));
  w.clock.advance(seconds(4));
  CHECK(w.at_step(3).requeue == Duration(seconds(1)));  // it has its turn: another is not booked
  CHECK(w.cluster.calls["status"] == writes);
  CHECK(asked == std::vector<bool>{false});
  SECTION("with the numbers of then") {
    w.clock.advance(seconds(1));
    (void)w.at_step(4);
    CHECK(w.cluster.calls["status"] == writes + 1);
    CHECK(w.status().global_step == 4);
    CHECK(asked == std::vector<bool>{false, true});
    w.clock.advance(seconds(11));
    (void)w.at_step(5);
    CHECK(asked == std::vector<bool>{false, true, false});  // each write has its own turn
  }
  SECTION("a failure goes at once and takes them with it") {
    w.fail_pod("r-west-0-i1", 1);
    (void)w.at_step(4);
    CHECK(w.status().units[2].incarnation == 2);
    CHECK(w.status().global_step == 4);
    CHECK(asked.size() == 1);
  }
}

TEST_CASE("settings that the outer optimizer refuses are told once and not sent again") {
  SteppingWorld w;
  json body = w.training().json();
  body["spec"]["budget"]["globalSteps"] = 2000;
  REQUIRE(w.memory.update(body));
  const std::int64_t generation = w.training().generation();
  const ReconcileOutcome sent = w.at_step(1);
  REQUIRE(sent.settings);
  CHECK(int_at(*sent.settings, {"generation"}) == generation);
  w.polled.refused_settings = RefusedSettings{generation, "422: budget.globalSteps: reached"};
  for (int i = 0; i < 5; ++i) {
    CHECK(!w.at_step(2 + i).settings);
    w.clock.advance(seconds(31));
  }
  std::vector<std::string> told;
  for (const EventRecord& e : w.cluster.events)
    if (e.reason == "SettingsRefused") told.push_back(e.message);
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("budget.globalSteps") != std::string::npos);
  SECTION("the next change is sent") {
    body = w.training().json();
    body["spec"]["budget"]["globalSteps"] = 3000;
    REQUIRE(w.memory.update(body));
    CHECK(w.at_step(20).settings);
  }
}

TEST_CASE("writes of mere progress are spaced, decisions are not") {
  SteppingWorld w;
  (void)w.at_step(1);
  const int writes = w.cluster.calls["status"];
  for (int i = 2; i < 12; ++i) {
    w.clock.advance(seconds(0.5));
    (void)w.at_step(i);
  }
  CHECK(w.cluster.calls["status"] - writes <= 1);
  SECTION("less often while new runs wait for their children") {
    w.clock.advance(seconds(12));
    w.polled.new_runs_wait = true;
    const int before = w.cluster.calls["status"];
    (void)w.at_step(12);
    CHECK(w.cluster.calls["status"] == before);
    w.polled.new_runs_wait = false;
    (void)w.at_step(13);
    CHECK(w.cluster.calls["status"] == before + 1);
    return;
  }
  w.fail_pod("r-west-0-i1", 1);
  (void)w.at_step(12);
  CHECK(w.status().units[2].incarnation == 2);
  CHECK(w.status().global_step == 12);
}

TEST_CASE("a ready outer optimizer is handed to the poller, a gone one is not") {
  ClusterWorld w;
  REQUIRE(w.memory.create(small_training()));
  (void)w.look();
  CHECK(!w.look().outer);
  w.set_pod("r-outer-i1", {{"phase", "Running"},
                           {"podIP", "127.1.0.5"},
                           {"conditions", json::array({{{"type", "Ready"}, {"status", "True"}}})}});
  const auto out = w.look();
  REQUIRE(out.outer);
  CHECK(out.outer->ip == "127.1.0.5");
  w.fail_pod("r-outer-i1", 137);
  CHECK(!w.look().outer);
}

}  // namespace archipelago::op
