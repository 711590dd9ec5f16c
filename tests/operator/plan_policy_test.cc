// The policies, each a table.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/wire/messages_json.h"
#include "operator/api/json.h"
#include "operator/api/status_change.h"
#include "operator/plan/charge.h"
#include "operator/plan/hang.h"
#include "operator/plan/node_loss.h"
#include "operator/plan/observe.h"
#include "operator/plan/replace_delay.h"
#include "plan_fixture.h"

namespace archipelago::op {
using nlohmann::json;

TEST_CASE("who pays for an ended pod (K-05)") {
  struct Row {
    int code;
    const char* container_reason;
    const char* disruption;
    const char* pod_reason;
    bool deleted;
    FailureReason reason;
    bool charged;
    bool final;
  };
  const auto row = GENERATE(values<Row>({
      {1, "Error", "", "", false, FailureReason::kCrash, true, false},
      {137, "Error", "", "", false, FailureReason::kCrash, true, false},
      {137, "OOMKilled", "", "", false, FailureReason::kOomKilled, true, false},
      {14, "Error", "", "", false, FailureReason::kWatchdog, true, false},
      {137, "Error", "PreemptionByScheduler", "", false, FailureReason::kDisrupted, false, false},
      {137, "Error", "EvictionByEvictionAPI", "", true, FailureReason::kDisrupted, false, false},
      {143, "Error", "DeletionByTaintManager", "", false, FailureReason::kDisrupted, false, false},
      {137, "Error", "TerminationByKubelet", "", false, FailureReason::kDisrupted, false, false},
      {137, "Error", "", "Evicted", false, FailureReason::kDisrupted, false, false},
      {137, "Error", "", "", true, FailureReason::kPodDeleted, false, false},
      {10, "Error", "", "", true, FailureReason::kPodDeleted, false, false},
      {10, "Error", "", "", false, FailureReason::kLeft, false, false},
      {11, "Error", "", "", false, FailureReason::kFenced, false, false},
      {12, "Error", "", "", false, FailureReason::kConfigRefused, false, true},
      {12, "Error", "PreemptionByScheduler", "", false, FailureReason::kConfigRefused, false, true},
      {13, "Error", "", "", false, FailureReason::kDataUnreadable, false, true},
      {0, "Completed", "", "", false, FailureReason::kFinished, false, false},
  }));
  CAPTURE(row.code, row.container_reason, row.disruption, row.pod_reason, row.deleted);
  ObservedPod pod;
  pod.uid = "u";
  pod.phase = row.code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
  pod.phase_reason = row.pod_reason;
  pod.disruption = row.disruption;
  if (row.deleted) pod.deletion = wall(1);
  pod.terminated = Termination{row.code, row.container_reason, ""};
  const auto v = judge_ended(pod);
  REQUIRE(v);
  CHECK(v->reason == row.reason);
  CHECK(v->charged == row.charged);
  CHECK(v->final == row.final);
  CHECK(v->pod_uid == "u");
}

TEST_CASE("a pod that no container of ran is not charged, a running one is not judged") {
  ObservedPod pod;
  pod.phase = PodPhase::kFailed;
  pod.phase_reason = "OutOfcpu";
  CHECK(judge_ended(pod)->reason == FailureReason::kNotStarted);
  CHECK(!judge_ended(pod)->charged);
  pod.phase = PodPhase::kRunning;
  pod.terminated = Termination{1, "Error", ""};  // one container of it ended
  CHECK(!judge_ended(pod));
}

TEST_CASE("replacement delay: at once after stepping, then exponential with jitter and a ceiling") {
  config::RestartSpec restart;
  restart.backoff_seconds = 5;
  restart.max_backoff_seconds = 60;
  const auto delay = [&](int attempt, bool stepped) {
    return to_seconds(replace_delay({attempt, stepped, 3, "east-0", 4}, restart));
  };
  CHECK(delay(0, true) == 0);
  CHECK(delay(0, false) == Approx(5).epsilon(0.21));
  CHECK(delay(1, true) == Approx(5).epsilon(0.21));
  CHECK(delay(2, true) == Approx(10).epsilon(0.21));
  CHECK(delay(3, false) == Approx(20).epsilon(0.21));
  CHECK(delay(50, true) <= 60);
  CHECK(delay(50, true) >= 47);
  CHECK(delay(2, true) == delay(2, true));  // a repeated plan decides the same
  CHECK(replace_delay({2, true, 3, "east-1", 4}, restart) !=
        replace_delay({2, true, 3, "east-0", 4}, restart));
}

TEST_CASE("when a node is given up (K-04)") {
  ObservedPod pod;
  pod.node = "n";
  pod.phase = PodPhase::kRunning;
  pod.ready = true;
  ObservedNode good{true, true, wall(0), false};
  const auto at_time = [&](const ObservedPod& p, const NodeMap& nodes, bool known = true) {
    return give_up_time(p, nodes, known, 60, wall(100));
  };
  CHECK(!at_time(pod, {{"n", good}}));
  SECTION("node not ready") {
    ObservedNode bad = good;
    bad.ready = false;
    bad.ready_changed = wall(50);
    CHECK(*at_time(pod, {{"n", bad}}) == wall(110));
  }
  SECTION("node gone, or nodes unreadable") {
    CHECK(*at_time(pod, {}) == wall(100));
    CHECK(!at_time(pod, {}, false));
  }
  SECTION("the node controller's NodeLost on the pod") {
    pod.ready = false;
    pod.ready_reason = "NodeLost";
    pod.ready_changed = wall(20);
    CHECK(*at_time(pod, {}, false) == wall(80));
  }
  SECTION("a deletion that nobody finishes") {
    pod.deletion = wall(30);
    CHECK(*at_time(pod, {{"n", good}}) == wall(90));
  }
}

TEST_CASE("silence becomes a hang only with every witness") {
  ObservedPod pod;
  pod.uid = "u";
  pod.phase = PodPhase::kRunning;
  pod.incarnation = 2;
  OuterUnit heard;
  heard.incarnation = 2;
  heard.last_heard_seconds = 301;
  ObservedProbe deaf{"u", false, "", wall(100)};
  HangInput in{&pod, &heard, true, true, &deaf, 300, wall(100)};
  CHECK(judge_silence(in) == HangAction::kReplace);
  SECTION("never heard") { in.unit = nullptr; }
  SECTION("an earlier incarnation was heard") { heard.incarnation = 1; }
  SECTION("not silent for long enough") { heard.last_heard_seconds = 299; }
  SECTION("the outer optimizer was away itself") { in.outer_served = false; }
  SECTION("nobody of that datacenter is heard: the link") { in.neighbour_heard = false; }
  SECTION("it says that it waits") { deaf.answered = true, deaf.phase = "Waiting"; }
  SECTION("still pending") { pod.phase = PodPhase::kPending; }
  if (in.unit == nullptr || heard.incarnation == 1 || heard.last_heard_seconds < 300 ||
      !in.outer_served || !in.neighbour_heard || deaf.phase == "Waiting" ||
      pod.phase == PodPhase::kPending)
    CHECK(judge_silence(in) == HangAction::kNone);
  SECTION("answers, but not Waiting") {
    deaf.answered = true;
    deaf.phase = "Stepping";
    CHECK(judge_silence(in) == HangAction::kReplace);
  }
  SECTION("no probe, an old one, one of another pod: ask first") {
    in.probe = nullptr;
    CHECK(judge_silence(in) == HangAction::kProbe);
    ObservedProbe other{"v", false, "", wall(100)};
    in.probe = &other;
    CHECK(judge_silence(in) == HangAction::kProbe);
    deaf.time = wall(10);
    in.probe = &deaf;
    CHECK(judge_silence(in) == HangAction::kProbe);
  }
}

TEST_CASE("names carry the incarnation, and the claim the run (K-13, K-36)") {
  CHECK(learner_pod_name("r", "us-east", 0, 3) == "r-us-east-0-i3");
  CHECK(outer_pod_name("r", 1) == "r-outer-i1");
  CHECK(outer_claim_name("r", "5C0E1111-2222-4333") == "r-outer-5c0e1111");
  CHECK(outer_claim_name("r", "5c0e1112-2222-4333") != outer_claim_name("r", "5c0e1111-2222-4333"));
}

TEST_CASE("conditions flip times and lengths (K-08)") {
  std::vector<Condition> list;
  set_condition(list, {"A", true, "X", "m", {}, 1}, wall(1));
  set_condition(list, {"A", true, "Y", "n", {}, 2}, wall(2));
  CHECK(list[0].last_transition == wall(1));
  CHECK(list[0].reason == "Y");
  CHECK(list[0].observed_generation == 2);
  set_condition(list, {"A", false, "Z", "", {}, 2}, wall(3));
  CHECK(list[0].last_transition == wall(3));
  set_trouble(list, {"B", false, "Fine", "", {}, 2}, wall(3));
  CHECK(list.size() == 1);                                      // never true: not shown
  const std::string text = std::string(999, 'a') + "\xc3\xa9";  // é crosses the cut
  set_condition(list, {"A", false, "Z", text, {}, 2}, wall(3));
  CHECK(list[0].message.size() == 999);
  CHECK(cut_utf8("\xf0\x9f\x98\x80x", 3).empty());
  CHECK(cut_utf8("abc", 3) == "abc");
}

TEST_CASE("status survives its JSON, what is unset is omitted (K-24)") {
  World w;
  w.start();
  w.fail_pod("r-east-0-i1", 137, "OOMKilled");
  w.step();
  const json text = to_json(w.in.status);
  CHECK(parse_status(text) == w.in.status);
  CHECK(parse_status(json::parse(text.dump())) == w.in.status);
  CHECK(text.dump().find("null") == std::string::npos);
  CHECK(!text.contains("completionTime"));
  CHECK(at(text, {"loss"}).is_null());
  SECTION("statuses of other versions and hands") {
    CHECK(parse_status(json::object()) == TrainingStatus{});
    CHECK(parse_status(json()) == TrainingStatus{});
    json odd = {{"phase", 7},
                {"units", {{"a", 1}}},
                {"conditions", "x"},
                {"activeSeconds", -5},
                {"tokens", "9"}};
    CHECK(parse_status(odd).phase == RunPhase::kPending);
    CHECK(parse_status(odd).active_seconds == 0);
  }
  SECTION("progress is told from decisions") {
    TrainingStatus next = w.in.status;
    next.global_step += 5;
    next.loss = "1.5";
    CHECK(status_change(next, w.in.status) == StatusChange::kProgress);
    next.units[0].incarnation += 1;
    CHECK(status_change(next, w.in.status) == StatusChange::kDecision);
  }
  SECTION("pods that come up are told from decisions") {
    const auto change = [&](auto edit) {
      TrainingStatus next = w.in.status;
      edit(next);
      return status_change(next, w.in.status);
    };
    CHECK(change([](TrainingStatus&) {}) == StatusChange::kNone);
    CHECK(change([](TrainingStatus& s) { s.units[0].phase = UnitPhase::kRecovering; }) ==
          StatusChange::kSettling);
    CHECK(change([](TrainingStatus& s) { s.units[0].phase = UnitPhase::kBackoff; }) ==
          StatusChange::kDecision);
    CHECK(change([](TrainingStatus& s) { s.units[0].phase = UnitPhase::kUnreachable; }) ==
          StatusChange::kDecision);
    CHECK(change([](TrainingStatus& s) { s.units[2].pod_uids = {"another"}; }) ==
          StatusChange::kDecision);
    CHECK(change([](TrainingStatus& s) { s.units[0].charged += 1; }) == StatusChange::kDecision);
    CHECK(change([](TrainingStatus& s) { s.phase = RunPhase::kDegraded; }) ==
          StatusChange::kDecision);
    CHECK(change([](TrainingStatus& s) { s.outer.pod_uid = "another"; }) ==
          StatusChange::kDecision);
    w.in.status.units[1].pod_uids.clear();
    CHECK(change([](TrainingStatus& s) { s.units[1].pod_uids = {"first"}; }) ==
          StatusChange::kSettling);
  }
}

TEST_CASE("objects that others wrote are read without trust (K-06)") {
  CHECK(observe_pod(json()).phase == PodPhase::kPending);
  const json odd = {
      {"metadata", {{"name", 5}, {"labels", {{kLabelIncarnation, "-3"}, {kLabelUnit, 4}}}}},
      {"spec", nullptr},
      {"status", {{"phase", "Odd"}, {"conditions", {{"type", 1}}}, {"containerStatuses", "x"}}}};
  const ObservedPod pod = observe_pod(odd);
  CHECK(pod.name.empty());
  CHECK(pod.incarnation == 0);
}

TEST_CASE("a status document of another version is read, a damaged one refused by its field") {
  const auto least =
      read_outer_status(R"({"phase": "running", "units": [{"name": "a"}], "news": [1, {}]})");
  REQUIRE(least);
  CHECK(!least->loss);
  CHECK(least->global_step == 0);
  CHECK(least->unit("a")->incarnation == 0);
  const auto [text, names] = GENERATE(table<std::string, std::string>({
      {"[]", "object"},
      {"{", "JSON"},
      {R"({"phase": "odd"})", "status.phase: given 'odd'"},
      {R"({"globalStep": 3})", "status.phase is missing"},
      {R"({"phase": "running", "loss": "2"})", "status.loss must be a number"},
      {R"({"phase": "running", "units": [1]})", "status.units[]"},
      {R"({"phase": "running", "units": [{"name": "a", "incarnation": 1e99}]})", "incarnation"},
      {R"({"phase": "running", "globalStep": -1})", "status.globalStep: given -1"},
  }));
  const auto damaged = read_outer_status(text);
  REQUIRE(!damaged);
  INFO(damaged.error().message);
  CHECK(damaged.error().message.find(names) != std::string::npos);
}

TEST_CASE("what the outer optimizer writes of itself is what the operator reads") {
  diloco::StatusDocument told;
  told.phase = "running";
  told.run_id = "uid";
  told.epoch = 3;
  told.global_step = GlobalStep(41);
  told.settings.generation = 5;
  told.loss = 2.5;
  told.merged_fraction = 0.75;
  told.conditions = {{"RolledBack", "True", "DamagedJournal", "to step 7"}};
  diloco::UnitStatus unit;
  unit.name = "a-0";
  unit.datacenter = "a";
  unit.phase = "Stepping";
  unit.incarnation = Incarnation(2);
  unit.uplink_bytes_per_second = 1e6;
  unit.seconds_in_steps = 12.5;
  told.units = {unit};
  told.fenced = {{"b-0", Incarnation(9)}};
  const auto read = read_outer_status(wire::encode(told));
  REQUIRE(read);
  CHECK(read->run_id == "uid");
  CHECK(read->epoch == 3);
  CHECK(read->global_step == 41);
  CHECK(read->settings_generation == 5);
  CHECK(read->loss == 2.5);
  CHECK(!read->validation_loss);
  CHECK(read->merged_fraction == 0.75);
  REQUIRE(read->conditions.size() == 1);
  CHECK(read->conditions[0].status);
  CHECK(read->conditions[0].message == "to step 7");
  REQUIRE(read->unit("a-0"));
  CHECK(read->unit("a-0")->uplink_mbps == Approx(8.0));
  CHECK(read->unit("a-0")->step_seconds_total == 12.5);
  CHECK(read->highest("a-0") == 2);
  CHECK(read->highest("b-0") == 9);
}

}  // namespace archipelago::op
