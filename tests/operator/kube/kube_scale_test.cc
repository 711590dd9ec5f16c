// How long and how much memory 5,000 pods take: figures for the page of performance, printed, never
// asserted. Hidden; run with the tag [scale].
#include <fstream>
#include <iostream>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/runtime/object_store.h"
#include "tests/operator/kube/kube_fixture.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr int kPods = 5000;
constexpr int kThreads = 8;

double resident_mb() {
  std::ifstream in("/proc/self/statm");
  double total = 0;
  double resident = 0;
  in >> total >> resident;
  return resident * 4096 / 1e6;
}

// About as large as a learner's pod.
json big_pod(const std::string& ns, int number) {
  json env = json::array();
  for (int i = 0; i < 20; ++i)
    env.push_back({{"name", "ARCHIPELAGO_VARIABLE_" + std::to_string(i)}, {"value", "some value"}});
  return {
      {"apiVersion", "v1"},
      {"kind", "Pod"},
      {"metadata",
       {{"name", "p-" + std::to_string(number)},
        {"namespace", ns},
        {"labels",
         {{"app.kubernetes.io/managed-by", "archipelago-operator"},
          {"archipelago.training/run", "r"},
          {"archipelago.training/unit", "us-east-" + std::to_string(number)},
          {"archipelago.training/incarnation", "0"}}}}},
      {"spec",
       {{"containers",
         json::array({{{"name", "learner"}, {"image", "archipelago-learner:1"}, {"env", env}}})}}}};
}
}  // namespace

TEST_CASE("five thousand pods", "[.][scale]") {
  if (!RealCluster::usable()) return;
  RealCluster real;
  std::vector<std::jthread> makers;
  for (int t = 0; t < kThreads; ++t)
    makers.emplace_back([&, t] {
      for (int i = t; i < kPods; i += kThreads) CHECK(real.cluster->create(big_pod(real.ns, i)));
    });
  makers.clear();
  KubeCluster slim(*real.client);
  const double before = resident_mb();
  const TimePoint began = real.clock.now();
  ObjectStore store;
  std::string version;
  {
    const auto list = slim.list(Kind::kPod, {real.ns, {}});
    REQUIRE(list);
    (void)store.replace(list->items);
    version = list->resource_version;
  }
  const double listed = to_seconds(real.clock.now() - began);
  std::cout << "pods: " << store.size() << ", list: " << listed << " s, memory before: " << before
            << " MB, with them: " << resident_mb() << " MB\n";
  // Every pod changes once: from the first status write to the last event.
  auto watch = slim.watch(Kind::kPod, real.ns, version);
  REQUIRE(watch);
  const TimePoint changed = real.clock.now();
  for (int t = 0; t < kThreads; ++t)
    makers.emplace_back([&, t] {
      for (int i = t; i < kPods; i += kThreads) {
        json body = big_pod(real.ns, i);
        body["status"] = {{"phase", "Running"}, {"podIP", "10.0.0.1"}};
        CHECK(real.cluster->update_status(body));
      }
    });
  for (int seen = 0; seen < kPods; ++seen) {
    const auto event = (*watch)->next(real.clock.now() + seconds(60), {});
    REQUIRE(event);
    REQUIRE(event->type != WatchType::kEnded);
    if (event->object) store.apply(*event);
    if (!event->object) --seen;
  }
  std::cout << "all changed and seen: " << to_seconds(real.clock.now() - changed)
            << " s, memory: " << resident_mb() << " MB\n";
}

}  // namespace archipelago::op
