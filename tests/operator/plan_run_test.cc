// The run as a whole: start, suspend, scale, the outer optimizer's pod, ends.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "plan_fixture.h"

namespace archipelago::op {
namespace {
bool holds(const World& w, const char* type) { return is_true(w.in.status.conditions, type); }
const Condition& get(const World& w, const char* type) {
  const Condition* c = find_condition(w.in.status.conditions, type);
  REQUIRE(c != nullptr);
  return *c;
}
}  // namespace

TEST_CASE("a run starts: shared children first, then pods, Pending until the first global step") {
  World w;
  const Decision first = w.step();
  CHECK(first.deletes.empty());
  CHECK(count_kind(first.creates, "ConfigMap") == 1);
  CHECK(count_kind(first.creates, "Service") == 1);
  CHECK(count_kind(first.creates, "PersistentVolumeClaim") == 1);
  CHECK(count_kind(first.creates, "Pod") == 4);
  CHECK(string_at(first.creates.front(), {"kind"}) == "ConfigMap");
  CHECK(w.in.status.phase == RunPhase::kPending);
  CHECK(!w.in.status.active_since);  // nothing runs yet: the deadline's clock stands
  w.run_all();
  w.step();
  w.poll(0);
  w.step();
  CHECK(w.in.status.phase == RunPhase::kPending);
  CHECK(holds(w, condition::kQuorumAvailable));
  w.poll(1);
  w.step();
  CHECK(w.in.status.phase == RunPhase::kRunning);
  CHECK(holds(w, condition::kProgressing));
  CHECK(w.in.status.learners.summary == "3/3");
  const Decision idle = w.look();
  CHECK(idle.creates.empty());
  CHECK(idle.deletes.empty());
  CHECK(idle.applies.empty());
  CHECK(idle.events.empty());
  CHECK(idle.status == w.in.status);  // no heartbeat: nothing to write (K-20)
}

TEST_CASE("suspend and resume (K-16)") {
  World w;
  w.start();
  w.pass(100);
  w.in.run.spec.suspend = true;
  w.step();
  CHECK(w.in.status.phase == RunPhase::kSuspended);
  CHECK(w.in.status.learners.summary == "0/3");
  CHECK(!w.in.status.active_since);
  const auto active = w.in.status.active_seconds;
  CHECK(active >= 100);
  // Learners first: the last one leaves its inner state at the outer optimizer.
  for (const ObservedPod& p : w.in.pods) CHECK(p.deletion.has_value() == (p.role == kRoleLearner));
  SECTION("the outer optimizer goes when they are gone") {
    w.gone("r-east-0-i1");
    w.gone("r-east-1-i1");
    w.step();
    CHECK(!w.pod("r-outer-i1").deletion);
    w.gone("r-west-0-i1");
    w.step();
    CHECK(w.pod("r-outer-i1").deletion);
  }
  SECTION("or beyond their grace period") {
    const Decision d = w.look();
    REQUIRE(d.requeue);
    CHECK(*d.requeue <= seconds(30));
    w.pass(31);
    w.step();
    CHECK(w.pod("r-outer-i1").deletion);
  }
  CHECK(w.in.claim);  // the outer optimizer's state stays
  CHECK(w.in.service);
  SECTION("resumed while the old pods still end: new incarnations, new template, nothing charged") {
    w.pass(50);
    w.in.run.spec.suspend = false;
    w.in.run.spec.datacenters[0].template_json = R"({"nodeSelector":{"gpu":"h200"}})";
    const Decision d = w.step();
    CHECK(w.unit("east-0").incarnation == 2);
    CHECK(w.unit("east-0").charged == 0);
    CHECK(w.unit("east-0").disruptions == 0);
    CHECK(w.unit("east-0").attempt == 0);
    CHECK(w.in.status.active_seconds == active);
    bool seen = false;
    for (const auto& o : d.creates)
      if (string_at(o, {"metadata", "name"}) == "r-east-0-i2")
        seen = string_at(o, {"spec", "nodeSelector", "gpu"}) == "h200";
    CHECK(seen);
    CHECK(!w.has_pod("r-outer-i2"));  // its predecessor may still write the claim
    w.gone("r-outer-i1");
    w.step();
    CHECK(w.has_pod("r-outer-i2"));
    CHECK(!holds(w, condition::kSuspended));
  }
  SECTION("five toggles in a second use up one incarnation at most each") {
    for (int i = 0; i < 5; ++i) {
      w.pass(0.1);
      w.in.run.spec.suspend = i % 2 == 1;
      w.step();
    }
    CHECK(w.unit("east-0").incarnation <= 5);
    CHECK(w.unit("east-0").charged == 0);
    CHECK(w.in.status.restarts == 0);
  }
  SECTION("created suspended: no pods at all") {
    World other;
    other.in.run.spec.suspend = true;
    const Decision d = other.step();
    CHECK(count_kind(d.creates, "Pod") == 0);
    CHECK(other.in.pods.empty());
    CHECK(!other.in.status.start_time);
    CHECK(other.unit("east-0").incarnation == 1);
  }
}

TEST_CASE("scaling keeps the fence: retired units come back above their last incarnation") {
  World w;
  w.start();
  w.fail_pod("r-east-1-i1", 1);
  w.step();
  w.in.run.spec.datacenters[0].learner_units = 1;
  w.step();
  CHECK(w.in.status.units.size() == 2);
  REQUIRE(w.in.status.retired.size() == 1);
  CHECK(w.in.status.retired[0].name == "east-1");
  CHECK(w.in.status.retired[0].last_incarnation == 2);
  CHECK(!w.has_pod("r-east-1-i2"));
  w.in.run.spec.datacenters[0].learner_units = 2;
  w.step();
  CHECK(w.in.status.retired.empty());
  CHECK(w.unit("east-1").incarnation == 3);
  CHECK(w.unit("east-1").charged == 0);
  SECTION("a datacenter goes") {
    w.in.run.spec.datacenters.pop_back();
    w.step();
    CHECK(!w.has_pod("r-west-0-i1") == !w.pod("r-west-0-i1").deletion.has_value());
    CHECK(w.in.status.datacenters.size() == 1);
  }
}

TEST_CASE("the outer optimizer is restarted for ever, one pod object at a time (K-10, K-33)") {
  World w;
  w.start();
  const std::string service = w.in.service->uid;
  w.fail_pod("r-outer-i1", 137);
  const Decision d = w.step();
  CHECK(w.in.status.outer.incarnation == 2);
  CHECK(count_kind(d.creates, "Pod") == 0);  // the old object is still there in this pass
  REQUIRE(d.deletes.size() == 1);            // and only that pod goes
  CHECK(d.deletes[0].name == "r-outer-i1");
  CHECK(w.in.service->uid == service);
  w.step();
  CHECK(w.has_pod("r-outer-i2"));  // at once: it had been ready
  CHECK(w.unit("east-0").incarnation == 1);
  for (int i = 2; i < 40; ++i) {
    w.fail_pod("r-outer-i" + std::to_string(i), 1);
    w.step();
    w.pass(301);
    w.step();
  }
  CHECK(w.has_pod("r-outer-i40"));
  CHECK(w.in.status.phase != RunPhase::kFailed);
  SECTION("except exit 12") {
    w.fail_pod("r-outer-i40", 12);
    w.step();
    CHECK(w.in.status.phase == RunPhase::kFailed);
    CHECK(get(w, condition::kFailed).reason == "ConfigRefused");
  }
}

TEST_CASE("a lost node never gives up the outer optimizer's pod by time alone") {
  World w;
  w.start();
  w.in.nodes_known = true;
  w.in.nodes = {{"node-east", {true, false, w.in.now, false}},
                {"node-west", {true, true, wall(0), false}}};
  w.pod("r-outer-i1").ready = false;
  w.pass(3600);
  w.step();
  CHECK(w.in.status.outer.incarnation == 1);
  CHECK(holds(w, condition::kOuterOptimizerNodeLost));
  CHECK(get(w, condition::kOuterOptimizerNodeLost).message.find("kubectl taint nodes node-east") !=
        std::string::npos);
  CHECK(w.unit("east-0").incarnation == 2);  // learners are
  SECTION("the operator of the machine says that it is off") {
    w.in.nodes["node-east"].out_of_service = true;
    w.step();
    CHECK(w.has_pod("r-outer-i2"));
    CHECK(!w.has_pod("r-outer-i1"));
    CHECK(!holds(w, condition::kOuterOptimizerNodeLost));
  }
  SECTION("the node object is gone") {
    w.in.nodes.erase("node-east");
    w.step();
    CHECK(w.has_pod("r-outer-i2"));
  }
}

TEST_CASE("success is sticky and proven by the outer optimizer, not by pods (K-02)") {
  World w;
  w.start();
  const bool by_document = GENERATE(true, false);
  if (by_document) {
    w.poll(2000, "finished");
  } else {
    w.gone("r-east-0-i1");  // finished and collected before anybody looked
    w.fail_pod("r-outer-i1", 0, "Completed");
  }
  w.step();
  CHECK(w.in.status.phase == RunPhase::kSucceeded);
  CHECK(holds(w, condition::kComplete));
  CHECK(!holds(w, condition::kProgressing));
  CHECK(w.unit("east-0").phase == UnitPhase::kFinished);
  const TrainingStatus end = w.in.status;
  w.in.pods.clear();
  w.in.polled.reset();
  w.pass(5000);
  const Decision d = w.step();
  CHECK(d.creates.empty());
  CHECK(w.in.status == end);
}

TEST_CASE("the end of a failed run: first cause named, the rest cleaned up (K-38), sticky (K-02)") {
  World w(small_run(2, 1, 3));
  w.start();
  w.fail_pod("r-east-1-i1", 13);
  w.pod("r-east-1-i1").terminated->message = "train.bin: no such file";
  const Decision d = w.step();
  CHECK(w.in.status.phase == RunPhase::kFailed);
  const Condition& failed = get(w, condition::kFailed);
  CHECK(failed.status);
  CHECK(failed.reason == "DataUnreadable");
  CHECK(failed.message.find("east-1") != std::string::npos);
  CHECK(failed.message.find("train.bin: no such file") != std::string::npos);
  CHECK(!holds(w, condition::kQuorumAvailable));
  CHECK(!holds(w, condition::kProgressing));
  CHECK(d.creates.empty());
  CHECK(d.deletes.size() == 3);     // outer and two units
  CHECK(w.has_pod("r-east-1-i1"));  // the log of the cause
  CHECK(w.in.status.completion_time);
  const TrainingStatus end = w.in.status;
  w.in.pods.clear();
  w.pass(100);
  CHECK(w.step().creates.empty());
  CHECK(w.in.status == end);
  SECTION("a later change has no effect, and says so") {
    w.in.run.generation = 2;
    w.in.run.spec.budget.global_steps = 9000;
    const Decision later = w.step();
    REQUIRE(later.events.size() == 1);
    CHECK(later.events[0].reason == "NoEffect");
    CHECK(later.creates.empty());
  }
}

TEST_CASE("activeDeadlineSeconds counts activity only") {
  World w;
  w.in.run.spec.active_deadline_seconds = 100;
  w.step();
  w.pass(1000);  // unschedulable for long (K-12)
  w.step();
  CHECK(w.in.status.phase == RunPhase::kPending);
  w.run_all();
  w.step();
  w.pass(60);
  w.in.run.spec.suspend = true;
  w.step();
  w.pass(1000);
  w.in.run.spec.suspend = false;
  w.in.pods.clear();
  w.step();
  w.run_all();
  w.step();
  w.pass(39);
  w.step();
  CHECK(w.in.status.phase != RunPhase::kFailed);
  w.pass(1.5);
  w.step();
  CHECK(w.in.status.phase == RunPhase::kFailed);
  CHECK(get(w, condition::kFailed).reason == "DeadlineExceeded");
}

TEST_CASE("ttl deletes the children, never the claim") {
  World w;
  w.in.run.spec.ttl_seconds_after_finished = 50;
  w.start();
  w.poll(2000, "finished");
  w.step();
  CHECK(w.in.pods.size() == 4);  // they end by themselves
  CHECK(w.look().requeue <= seconds(50));
  w.pass(50);
  const Decision d = w.step();
  CHECK(d.deletes.size() == 6);
  for (const DeleteAction& del : d.deletes) CHECK(del.kind != Kind::kClaim);
}

TEST_CASE("the quorum lost for nodeLostSeconds degrades the run, and heals") {
  World w(small_run(1, 1, 2));
  w.start();
  CHECK(w.in.status.phase == RunPhase::kRunning);
  w.in.polled->document.units[1].phase = "Silent";
  w.step();
  CHECK(w.in.status.phase == RunPhase::kRunning);
  CHECK(!holds(w, condition::kQuorumAvailable));
  w.pass(61);
  w.in.polled->time = w.in.now;
  w.step();
  CHECK(w.in.status.phase == RunPhase::kDegraded);
  w.poll(20);
  w.step();
  CHECK(w.in.status.phase == RunPhase::kRunning);
}

TEST_CASE("a live change of settings is sent until the outer optimizer acts on it (K-17)") {
  World w;
  w.start();
  CHECK(!w.look().settings);
  w.in.run.generation = 2;
  w.in.run.spec.budget.global_steps = 4000;
  const Decision d = w.step();
  REQUIRE(d.settings);
  CHECK(int_at(*d.settings, {"budget", "globalSteps"}) == 4000);
  CHECK(int_at(*d.settings, {"generation"}) == 2);
  CHECK(d.applies.size() == 1);  // the ConfigMap, for pods to come
  CHECK(string_at(d.applies[0], {"metadata", "uid"}) == w.in.config_map->uid);
  w.in.config_map->spec_text = resolved_spec_text(w.in.run);
  w.poll(11);
  CHECK(!w.look().settings);
  CHECK(w.look().deletes.empty());  // no pod is restarted for it
}

TEST_CASE("goodput is time in steps over the integral of desired units since the first step") {
  World w;
  w.start(1);
  CHECK(w.in.status.goodput.empty());
  w.pass(100);
  w.poll(50);
  for (OuterUnit& u : w.in.polled->document.units) u.step_seconds_total = 90;
  w.in.polled->document.loss = 2.11874;
  w.in.polled->document.merged_fraction = 0.9871;
  w.step();
  CHECK(w.in.status.goodput == "0.900");
  CHECK(w.in.status.loss == "2.1187");
  CHECK(w.in.status.merged_fraction == "0.987");
  CHECK(w.in.status.validation_loss.empty());
}

TEST_CASE("what the outer optimizer says of itself is passed on, by name") {
  World w;
  w.start();
  w.in.polled->document.conditions = {{"CheckpointStale", true, "DiskFull", "no space left"},
                                      {"Evil", true, "X", ""}};
  w.step();
  CHECK(holds(w, condition::kCheckpointStale));
  CHECK(find_condition(w.in.status.conditions, "Evil") == nullptr);
  for (const char* type : {"DuplicateUnit", "RolledBack", "Rebuilt", "JournalFull",
                           "ValidationSkipped", "ModelNotWritten"}) {
    CAPTURE(type);
    w.in.polled->document.conditions = {{type, true, "", "words"}};
    w.step();
    CHECK(holds(w, type));
    CHECK(find_condition(w.in.status.conditions, type)->message == "words");
    w.in.polled->document.conditions.clear();  // another process, that knows nothing of it
    w.step();
    CHECK(find_condition(w.in.status.conditions, type)->reason == "NotReported");
    CHECK(!holds(w, type));
  }
}

TEST_CASE("refusals become conditions whose text stays (K-20)") {
  World w;
  w.start();
  w.in.problems = {{ProblemKind::kPodRejected, "r-east-0-i1", "exceeded quota: used pods=7"}};
  CHECK(w.step().events.size() == 1);
  CHECK(holds(w, condition::kPodRejected));
  w.in.problems = {{ProblemKind::kPodRejected, "r-east-0-i2", "exceeded quota: used pods=8"}};
  const Decision again = w.look();
  CHECK(again.status == w.in.status);
  CHECK(again.events.empty());
  w.in.problems.clear();
  w.step();
  CHECK(!holds(w, condition::kPodRejected));
}

TEST_CASE("an invalid spec moves nothing and is told once (K-06, K-07)") {
  World w;
  w.start();
  const Decision d =
      plan_invalid(w.in.status, "default", "r", "u", 2, "spec.sync.quorum: -1", w.in.now);
  CHECK(!is_true(d.status.conditions, condition::kSpecValid));
  CHECK(d.status.units == w.in.status.units);
  CHECK(d.events.size() == 1);
  CHECK(d.creates.empty());
  CHECK(d.deletes.empty());
  const Decision again =
      plan_invalid(d.status, "default", "r", "u", 2, "spec.sync.quorum: -1", w.in.now);
  CHECK(again.events.empty());
  CHECK(again.status == d.status);
}

TEST_CASE("an adopted run's learners wait for what its outer optimizer knows of them") {
  auto run = small_run();
  run.spec.outer_optimizer.storage.existing_claim = "old-outer-claim";
  run.spec.outer_optimizer.storage.adopt = true;
  World w(run);
  w.step();
  w.step();
  CHECK(w.has_pod("r-outer-i1"));
  CHECK(w.in.pods.size() == 1);
  CHECK(w.unit("east-0").reason == "WaitingForAdoptedRun");
  CHECK(!w.in.claim);  // the old one is used, none is made
  w.run_all();
  w.step();
  w.poll(120);
  w.in.polled->document.run_id = "old-uid";
  w.in.polled->document.fenced = {{"east-0", 3}, {"west-0", 1}};
  w.step();
  CHECK(w.in.status.run_id == "old-uid");
  CHECK(w.has_pod("r-east-0-i4"));
  CHECK(w.has_pod("r-east-1-i1"));
  CHECK(w.has_pod("r-west-0-i2"));
  w.step();
  CHECK(w.in.pods.size() == 4);
}

}  // namespace archipelago::op
