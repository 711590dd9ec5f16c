// What only a real API server can say: that it accepts our events and leases, and its own words.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/event_recorder.h"
#include "operator/kube/leader.h"
#include "tests/operator/kube/kube_fixture.h"

namespace archipelago::op {
using nlohmann::json;

TEST_CASE("a real server accepts events and their series") {
  if (!RealCluster::usable()) return;
  RealCluster real;
  const EventRecord e{Kind::kTraining, real.ns,           "r",     "u", true, "UnitFailed",
                      "exit 1",        real.clock.wall(), "east-0"};
  real.cluster->record(e);
  const kube::Request list =
      raw_request("GET", "/apis/events.k8s.io/v1/namespaces/" + real.ns + "/events", {}, "list");
  json events;
  REQUIRE(RealCluster::eventually([&] {
    events = real.client->call(list).value_or(json::object())["items"];
    return events.is_array() && events.size() == 1;
  }));
  CHECK(events[0]["note"] == "exit 1");
  const std::string name = string_at(events[0], {"metadata", "name"});
  const auto patched =
      real.client->call(kube::patch_event({real.ns, name}, kube::series_patch({e, name, 3})));
  REQUIRE(patched);
  CHECK(int_at(*patched, {"series", "count"}) == 3);
}

TEST_CASE("a lease on a real server: taken, renewed, given back, taken by the next") {
  if (!RealCluster::usable()) return;
  RealCluster real;
  const BootClock boot;
  LeaderOptions options;
  options.name_space = real.ns;
  options.lease = seconds(5);
  options.renew_deadline = seconds(3);
  options.retry = seconds(0.2);
  int lost = 0;
  WriteGate one_gate(boot, [](const std::string&) {});
  WriteGate two_gate(boot, [](const std::string&) {});
  const auto on_lost = [&](const std::string&) { ++lost; };
  LeaderElector one(*real.client, boot, one_gate, Logger::null(), options, on_lost);
  one.start();
  REQUIRE(one.wait_until_leading({}));
  LeaderElector two(*real.client, boot, two_gate, Logger::null(), options, on_lost);
  two.start();
  std::this_thread::sleep_for(std::chrono::seconds(6));  // beyond the lease: it was renewed
  CHECK(one.leading());
  CHECK(!two.leading());
  CHECK(one_gate.open());
  one.stop();
  CHECK(two.wait_until_leading({}));
  CHECK(two_gate.open());
  two.stop();
  CHECK(lost == 0);
}

TEST_CASE("a namespace that isn't there, told from an object that isn't") {
  if (!RealCluster::usable()) return;
  RealCluster real;
  const json body{{"apiVersion", "v1"},
                  {"kind", "ConfigMap"},
                  {"metadata", {{"name", "m"}, {"namespace", "no-such-namespace"}}}};
  const auto made = real.cluster->create(body);
  REQUIRE(!made);
  CHECK(made.error().kind == ErrorKind::kNotFound);
  CHECK(made.error().message.find("the namespace does not exist") != std::string::npos);
  const Discovery d = discover(*real.client);
  CHECK(d.served == Served::kYes);
  CHECK(d.server_version.starts_with("v1."));
  const auto old = real.cluster->watch(Kind::kPod, real.ns, "1");
  REQUIRE(old);
  CHECK((*old)->next(real.clock.now() + seconds(20), {})->type == WatchType::kGone);
}

}  // namespace archipelago::op
