// One learner unit's life, played against plan().
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "plan_fixture.h"

namespace archipelago::op {

TEST_CASE("a crash is charged once, and its successor starts at once after stepping") {
  World w;
  w.start();
  CHECK(w.unit("east-0").phase == UnitPhase::kStepping);
  w.fail_pod("r-east-0-i1", 1);
  const Decision d = w.step();
  const UnitStatus& u = w.unit("east-0");
  CHECK(u.incarnation == 2);
  CHECK(u.charged == 1);
  CHECK(u.restarts == 1);
  CHECK(!u.next_start);
  CHECK(w.has_pod("r-east-0-i2"));  // decided and made in the same pass
  CHECK(w.has_pod("r-east-0-i1"));  // the last failed pod stays, with its log
  REQUIRE(u.last_failure);
  CHECK(u.last_failure->incarnation == 1);
  CHECK(*u.last_failure->exit_code == 1);
  CHECK(w.unit("east-1").incarnation == 1);
  SECTION("looking again changes nothing (K-19)") {
    w.step();
    CHECK(w.unit("east-0").charged == 1);
    CHECK(w.look().creates.empty());
  }
  SECTION("a conflict: the same evidence gives the same decision") {
    World again;
    again.start();
    again.fail_pod("r-east-0-i1", 1);
    const Decision first = again.look();
    again.in.run.annotations["foreign"] = "note";
    CHECK(again.look().status == first.status);
    CHECK(again.look().status.units[0].charged == 1);
  }
  SECTION("the next failure waits, and takes the place of the kept pod") {
    w.run_all();
    w.poll(12);
    w.step();
    w.fail_pod("r-east-0-i2", 1);
    w.step();
    CHECK(w.unit("east-0").phase == UnitPhase::kBackoff);
    CHECK(w.unit("east-0").next_start > w.in.now);
    CHECK(!w.has_pod("r-east-0-i3"));
    CHECK(!w.has_pod("r-east-0-i1"));
    CHECK(w.has_pod("r-east-0-i2"));
    CHECK(w.look().requeue <= seconds(6.1));
    w.pass(6.5);
    w.step();
    CHECK(w.has_pod("r-east-0-i3"));
  }
}

TEST_CASE("thirteen disruptions leave the budget alone (K-05)") {
  World w;
  w.start();
  for (int i = 1; i <= 13; ++i) {
    const std::string name = "r-east-0-i" + std::to_string(i);
    w.fail_pod(name, 137);
    w.pod(name).disruption = "PreemptionByScheduler";
    w.step();
    w.pass(400);  // past any backoff
    w.step();
    w.run_all();
    w.poll(20 + i);
    w.step();
  }
  CHECK(w.unit("east-0").charged == 0);
  CHECK(w.unit("east-0").disruptions == 13);
  CHECK(w.unit("east-0").incarnation == 14);
  CHECK(w.unit("east-0").phase == UnitPhase::kStepping);
  CHECK(w.in.status.phase == RunPhase::kRunning);
}

TEST_CASE("the budget ends a unit, and resetSeconds of stepping refills it") {
  World w;
  w.in.run.spec.restart.backoff_limit = 2;
  w.start();
  const auto crash = [&] {
    w.fail_pod("r-east-0-i" + std::to_string(w.unit("east-0").incarnation), 139);
    w.step();
    w.pass(301);
    w.step();
    w.run_all();
    w.poll(w.in.status.global_step + 1);
    w.step();
  };
  crash();
  crash();
  CHECK(w.unit("east-0").charged == 2);
  SECTION("refilled") {
    w.pass(1800);
    w.poll(100);
    w.step();
    CHECK(w.unit("east-0").charged == 0);
    CHECK(w.unit("east-0").attempt == 0);
    CHECK(w.unit("east-0").restarts == 2);
  }
  SECTION("spent") {
    w.fail_pod("r-east-0-i3", 139);
    w.step();
    CHECK(w.unit("east-0").phase == UnitPhase::kFailed);
    CHECK(w.in.status.phase == RunPhase::kDegraded);
    w.pass(1000);
    CHECK(w.step().creates.empty());
    CHECK(w.unit("east-0").phase == UnitPhase::kFailed);  // sticky
  }
}

TEST_CASE("exit 12 and 13 fail the unit without a retry (K-08)") {
  const int code = GENERATE(12, 13);
  World w;
  w.start();
  w.fail_pod("r-east-0-i1", code);
  w.step();
  CHECK(w.unit("east-0").phase == UnitPhase::kFailed);
  CHECK(w.unit("east-0").incarnation == 1);
  CHECK(w.unit("east-0").charged == 0);
  CHECK(w.in.status.phase == RunPhase::kDegraded);
}

TEST_CASE("a deleted pod is told from one that was never made") {
  World w;
  w.step();
  CHECK(w.unit("east-0").pod_uids.empty());
  w.gone("r-east-0-i1");  // before we ever saw it: the POST may have failed
  const Decision again = w.step();
  CHECK(w.unit("east-0").incarnation == 1);
  CHECK(count_kind(again.creates, "Pod") == 1);
  w.run_all();
  w.step();
  CHECK(!w.unit("east-0").pod_uids.empty());
  w.gone("r-east-0-i1");
  w.step();
  CHECK(w.unit("east-0").incarnation == 2);
  CHECK(w.unit("east-0").charged == 0);
  CHECK(w.unit("east-0").disruptions == 1);
}

TEST_CASE(
    "kubectl delete: the successor waits for the end of the grace period, then costs nothing") {
  World w;
  w.start();
  w.pod("r-east-0-i1").deletion = w.in.now + std::chrono::seconds(30);
  CHECK(count_kind(w.step().creates, "Pod") == 0);
  w.fail_pod("r-east-0-i1", 10);
  w.step();
  CHECK(w.unit("east-0").incarnation == 2);
  CHECK(w.unit("east-0").charged == 0);
  CHECK(w.unit("east-0").last_failure->reason == FailureReason::kPodDeleted);
}

TEST_CASE("a lost node: new incarnation without waiting for the deletion (K-04)") {
  World w;
  w.start();
  w.in.nodes_known = true;
  w.in.nodes = {{"node-east", {true, true, wall(0), false}},
                {"node-west", {true, false, w.in.now, false}}};
  w.pod("r-west-0-i1").ready = false;
  w.pass(30);
  w.poll(12);
  CHECK(w.step().creates.empty());
  CHECK(w.look().requeue.has_value());
  w.pass(31);
  w.poll(13);
  w.step();
  CHECK(w.unit("west-0").incarnation == 2);
  CHECK(w.unit("west-0").last_failure->reason == FailureReason::kNodeLost);
  CHECK(w.unit("west-0").charged == 0);
  CHECK(w.has_pod("r-west-0-i2"));
  CHECK(w.pod("r-west-0-i1").deletion);  // stays Terminating for ever: nobody waits for it
  for (int i = 0; i < 5; ++i) {
    w.pass(60);
    w.in.nodes["node-west"].ready = true;
    w.poll(14 + i);
    w.step();
  }
  CHECK(w.unit("west-0").incarnation == 2);
  CHECK(w.unit("east-0").incarnation == 1);
}

TEST_CASE(
    "pods below status's incarnation are deleted, never judged, above it they are taken over") {
  World w;
  w.start();
  SECTION("below") {
    ObservedPod old = w.pod("r-east-0-i1");
    w.in.status.units[0].incarnation = 3;
    w.in.status.units[0].pod_uids.clear();
    old.phase = PodPhase::kFailed;
    old.terminated = Termination{1, "Error", ""};
    w.pod("r-east-0-i1") = old;
    w.step();
    CHECK(w.unit("east-0").charged == 0);
    CHECK(!w.has_pod("r-east-0-i1"));
    CHECK(w.has_pod("r-east-0-i3"));
  }
  SECTION("above: the status was restored from a backup") {
    w.in.status.units[0].incarnation = 0;
    w.in.status.units[0].pod_uids.clear();
    const Decision d = w.step();
    CHECK(w.unit("east-0").incarnation == 1);
    CHECK(d.creates.empty());
  }
  SECTION("the whole status was lost") {
    w.in.status = TrainingStatus{};
    const Decision d = w.step();
    CHECK(count_kind(d.creates, "Pod") == 0);
    CHECK(w.unit("east-0").incarnation == 1);
    CHECK(w.in.status.outer.incarnation == 1);
  }
  SECTION("status and pods were lost, the outer optimizer knows better") {
    w.poll(50);
    w.in.polled->document.fenced.push_back({"east-0", 6});
    w.in.status = TrainingStatus{};
    w.in.pods.clear();
    w.step();
    CHECK(w.unit("east-0").incarnation == 7);
  }
}

TEST_CASE("a fenced learner comes back above what the outer optimizer has seen, uncharged") {
  World w;
  w.start();
  w.in.polled->document.fenced.push_back({"east-0", 5});
  w.fail_pod("r-east-0-i1", 11);
  w.step();
  CHECK(w.unit("east-0").incarnation == 6);
  CHECK(w.unit("east-0").charged == 0);
}

TEST_CASE("a pod that can't start says why, is not charged and doesn't count (K-12, K-11)") {
  const std::string reason = GENERATE("Unschedulable", "ImagePullBackOff",
                                      "CreateContainerConfigError", "CrashLoopBackOff");
  World w;
  w.start();
  w.fail_pod("r-east-0-i1", 1);
  w.step();
  ObservedPod& p = w.pod("r-east-0-i2");
  p.waiting_reason = reason;
  w.pass(4000);
  w.poll(30);
  w.step();
  const UnitStatus& u = w.unit("east-0");
  CHECK(u.phase == UnitPhase::kPending);
  CHECK(u.reason == reason);
  CHECK(u.incarnation == 2);
  CHECK(u.charged == 1);  // of the crash before
  CHECK(w.in.status.learners.summary == "2/3");
  const Condition* quorum = find_condition(w.in.status.conditions, condition::kQuorumAvailable);
  CHECK(quorum->message.find(reason) != std::string::npos);
}

TEST_CASE("phases follow the outer optimizer's document, silence alone is Unreachable") {
  World w;
  w.step();
  w.run_all();
  w.step();
  CHECK(w.unit("east-0").phase == UnitPhase::kStarting);
  w.poll(0);
  for (const char* phase : {"Recovering", "Stepping", "Waiting", "Starved"}) {
    w.in.polled->document.units[0].phase = phase;
    w.step();
    CHECK(to_string(w.unit("east-0").phase) == std::string(phase));
  }
  w.in.polled->document.units[0].phase = "Silent";
  w.in.polled->document.units[0].last_heard_seconds = 10000;
  w.in.polled->document.units[1].last_heard_seconds = 10000;
  w.pass(5000);
  w.in.polled->time = w.in.now;
  const Decision d = w.step();
  CHECK(w.unit("east-0").phase == UnitPhase::kUnreachable);
  CHECK(w.unit("east-0").incarnation == 1);
  CHECK(d.probe_units.empty());  // its neighbour is silent too
  SECTION("with a neighbour that is heard it is asked, and then replaced and charged") {
    w.in.polled->document.units[1].last_heard_seconds = 1;
    CHECK(w.step().probe_units == std::vector<std::string>{"east-0"});
    w.in.probes["east-0"] = {w.pod("r-east-0-i1").uid, false, "", w.in.now};
    w.step();
    CHECK(w.unit("east-0").incarnation == 2);
    CHECK(w.unit("east-0").charged == 1);
    CHECK(w.unit("east-0").last_failure->reason == FailureReason::kHang);
    CHECK(w.pod("r-east-0-i1").deletion);
  }
  SECTION("an old document moves nothing") {
    w.pass(600);
    w.step();
    CHECK(w.unit("east-0").phase == UnitPhase::kUnreachable);
    CHECK(is_true(w.in.status.conditions, condition::kProgressStale));
  }
}

TEST_CASE("one entry a unit after 2,000 reschedules (K-23)") {
  World w;
  w.start();
  std::size_t bytes = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "r-east-0-i" + std::to_string(w.unit("east-0").incarnation);
    w.fail_pod(name, 137);
    w.pod(name).disruption = "PreemptionByScheduler";
    w.step();
    w.pass(400);
    w.step();
    w.run_all();
    w.step();
    if (i == 10) bytes = to_text(to_json(w.in.status)).size();
  }
  CHECK(w.in.status.units.size() == 3);
  CHECK(to_text(to_json(w.in.status)).size() < bytes + 64);
  CHECK(w.in.pods.size() == 5);  // outer, three units, one kept failure
}

}  // namespace archipelago::op
