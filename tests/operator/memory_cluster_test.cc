#include "operator/cluster/memory_cluster.h"

#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

json pod(const std::string& name) {
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata", {{"name", name}, {"namespace", "default"}}},
          {"spec", {{"terminationGracePeriodSeconds", 20}}}};
}
const ObjectKey kA{"default", "a"};

Object bound(MemoryCluster& cluster) {
  json body = cluster.create(pod("a"))->json();
  body["spec"]["nodeName"] = "node-1";
  return *cluster.update(body);
}
}  // namespace

TEST_CASE("a bound pod stays until its kubelet has ended it") {
  ManualClock clock;
  MemoryCluster cluster(clock);
  const Object made = bound(cluster);
  REQUIRE(cluster.remove(Kind::kPod, kA, {}));
  const Object ending = *cluster.get(Kind::kPod, kA);
  CHECK(ending.deleting());
  WallTime until{};
  REQUIRE(parse_wall(string_at(ending.json(), {"metadata", "deletionTimestamp"}), &until));
  CHECK(until == clock.wall() + std::chrono::seconds(20));
  REQUIRE(!cluster.create(pod("a")));  // the name is taken until then
  SECTION("the kubelet finalises, by uid") {
    CHECK(!cluster.finalize_delete(kA, "other"));
    REQUIRE(cluster.finalize_delete(kA, made.uid()));
    CHECK(!cluster.get(Kind::kPod, kA));
  }
  SECTION("grace 0 takes it at once") {
    REQUIRE(cluster.remove(Kind::kPod, kA, {made.uid(), 0}));
    CHECK(!cluster.get(Kind::kPod, kA));
  }
  SECTION("a later request can't lengthen the grace") {
    clock.advance(seconds(5));
    REQUIRE(cluster.remove(Kind::kPod, kA, {}));
    CHECK(cluster.get(Kind::kPod, kA)->resource_version() == ending.resource_version());
  }
}

TEST_CASE("an unbound or finished pod goes at once") {
  ManualClock clock;
  MemoryCluster cluster(clock);
  REQUIRE(cluster.create(pod("a")));
  REQUIRE(cluster.remove(Kind::kPod, kA, {}));
  CHECK(!cluster.get(Kind::kPod, kA));
  json body = bound(cluster).json();
  body["status"] = {{"phase", "Failed"}};
  REQUIRE(cluster.update_status(body));
  REQUIRE(cluster.remove(Kind::kPod, kA, {}));
  CHECK(!cluster.get(Kind::kPod, kA));
}

TEST_CASE("history is bounded: an old version is told that it is gone") {
  ManualClock clock;
  MemoryCluster cluster(clock, {4, 4, 1, {}});
  const std::string start = cluster.list(Kind::kPod, {})->resource_version;
  auto idle = cluster.watch(Kind::kNode, "", start);
  for (int i = 0; i < 3; ++i) REQUIRE(cluster.create(pod("p" + std::to_string(i))));
  CHECK(!(*idle)->next(SystemClock().now(), {}));  // reads on: other kinds' events don't age it out
  for (int i = 3; i < 6; ++i) REQUIRE(cluster.create(pod("p" + std::to_string(i))));
  auto watch = cluster.watch(Kind::kPod, "", start);
  REQUIRE(watch);
  const auto event = (*watch)->next(SystemClock().now(), {});
  REQUIRE(event);
  CHECK(event->type == WatchType::kGone);
  CHECK(!(*watch)->next(SystemClock().now(), {}));
  CHECK(!(*idle)->next(SystemClock().now(), {}));
  CHECK(!cluster.watch(Kind::kPod, "", "abc"));
}

TEST_CASE("a child of an owner that is gone is collected") {
  ManualClock clock;
  MemoryCluster cluster(clock);
  json child = pod("a");
  child["metadata"]["ownerReferences"] = json::array({{{"uid", "gone"}, {"controller", true}}});
  REQUIRE(cluster.create(child));
  CHECK(!cluster.get(Kind::kPod, kA));
}

TEST_CASE("events are bounded and passed on") {
  ManualClock clock;
  int heard = 0;
  MemoryClusterOptions options;
  options.events = 2;
  options.on_event = [&](const EventRecord&) { ++heard; };
  MemoryCluster cluster(clock, options);
  for (int i = 0; i < 3; ++i) {
    EventRecord e;
    e.reason = "R" + std::to_string(i);
    cluster.record(e);
  }
  CHECK(heard == 3);
  REQUIRE(cluster.events().size() == 2);
  CHECK(cluster.events()[0].reason == "R1");
  CHECK(cluster.events()[0].time == clock.wall());
}

TEST_CASE("a waiting watch wakes on an event and on stop") {
  SystemClock clock;
  MemoryCluster cluster(clock);
  auto watch = cluster.watch(Kind::kPod, "", cluster.list(Kind::kPod, {})->resource_version);
  std::jthread writer([&] { (void)cluster.create(pod("a")); });
  const auto event = (*watch)->next(clock.now() + seconds(30), {});
  REQUIRE(event);
  CHECK(event->object->name() == "a");
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  CHECK(!(*watch)->next(clock.now() + seconds(30), stop.get_token()));
}

}  // namespace archipelago::op
