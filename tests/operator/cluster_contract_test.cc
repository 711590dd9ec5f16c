// The contract of the Cluster port. Compiled once for each implementation: MemoryCluster, and with
// ARCHIPELAGO_CONTRACT_KUBE KubeCluster on a real API server.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#ifdef ARCHIPELAGO_CONTRACT_KUBE
#include "tests/operator/kube/kube_fixture.h"
#else
#include "operator/cluster/memory_cluster.h"
#endif

namespace archipelago::op {
namespace {
using nlohmann::json;

json pod(const std::string& name, const std::string& name_space) {
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata", {{"name", name}, {"namespace", name_space}, {"labels", {{"app", "a"}}}}},
          {"spec", {{"containers", json::array({{{"name", "c"}, {"image", "i"}}})}}}};
}
json training(const std::string& name, const std::string& name_space) {
  return {{"apiVersion", "archipelago.training/v1alpha1"},
          {"kind", "DecoupledTraining"},
          {"metadata", {{"name", name}, {"namespace", name_space}}},
          {"spec",
           {{"suspend", false},
            {"data", {{"train", {{"path", "/data/train.bin"}, {"format", "text"}}}}},
            {"datacenters", json::array({{{"name", "east"}, {"learnerUnits", 1}}})}}}};
}
json config_map(const std::string& name, const std::string& text, const std::string& name_space) {
  return {{"apiVersion", "v1"},
          {"kind", "ConfigMap"},
          {"metadata", {{"name", name}, {"namespace", name_space}}},
          {"data", {{"spec.json", text}}}};
}
template <class T>
ErrorKind kind_of(const Result<T>& r) {
  REQUIRE(!r.has_value());
  return r.error().kind;
}

#ifdef ARCHIPELAGO_CONTRACT_KUBE
bool usable() { return RealCluster::usable(); }
struct Fixture {
  RealCluster real;
  KubeCluster& cluster = *real.cluster;
  const std::string ns = real.ns;
  const std::string other = real.other;
  // Dependents go later, and only where a garbage collector runs.
  bool gone(Kind kind, const ObjectKey& key) {
    if (!RealCluster::controllers()) return true;
    return RealCluster::eventually([&] { return !cluster.get(kind, key); });
  }
};
#else
bool usable() { return true; }
struct Fixture {
  SystemClock clock;
  MemoryCluster cluster{clock, {64, 64, 1, {}}};
  const std::string ns = "default";
  const std::string other = "other";
  bool gone(Kind kind, const ObjectKey& key) { return !cluster.get(kind, key); }
};
#endif

std::optional<WatchEvent> next(Watch& watch, double wait = 5) {
  return watch.next(SystemClock().now() + seconds(wait), {});
}

// A server may show the deletionTimestamp before the end, even of a pod that runs nowhere.
std::optional<WatchEvent> next_end(Watch& watch) {
  auto event = next(watch);
  if (event && event->type == WatchType::kModified && event->object->deleting())
    event = next(watch);
  return event;
}
}  // namespace

TEST_CASE("create gives identity and refuses a second of that name") {
  if (!usable()) return;
  Fixture f;
  json body = pod("a", f.ns);
  body["status"] = {{"phase", "Running"}};
  const auto made = f.cluster.create(body);
  REQUIRE(made);
  CHECK(!made->uid().empty());
  CHECK(!made->resource_version().empty());
  CHECK(string_at(made->status(), {"phase"}) == "Pending");  // never taken from the body
  CHECK(kind_of(f.cluster.create(pod("a", f.ns))) == ErrorKind::kConflict);
  CHECK(f.cluster.create(pod("a", f.other)).has_value());
  CHECK(kind_of(f.cluster.create(json{{"kind", "Pod"}})) == ErrorKind::kInvalid);
  CHECK(kind_of(f.cluster.get(Kind::kPod, {f.ns, "b"})) == ErrorKind::kNotFound);
}

TEST_CASE("list selects by namespace and labels") {
  if (!usable()) return;
  Fixture f;
  REQUIRE(f.cluster.create(pod("a", f.ns)));
  REQUIRE(f.cluster.create(pod("b", f.other)));
  json other = pod("c", f.ns);
  other["metadata"]["labels"] = {{"app", "b"}};
  REQUIRE(f.cluster.create(other));
  int everywhere = 0;  // another test's may be there too
  const auto all = f.cluster.list(Kind::kPod, {});
  for (const Object& o : all->items)
    everywhere += o.name_space() == f.ns || o.name_space() == f.other;
  CHECK(everywhere == 3);
  CHECK(f.cluster.list(Kind::kPod, {f.ns, {}})->items.size() == 2);
  const auto list = f.cluster.list(Kind::kPod, {f.ns, {{"app", "a"}}});
  REQUIRE(list->items.size() == 1);
  CHECK(list->items[0].name() == "a");
}

TEST_CASE("writes with a stale version or another uid conflict") {
  if (!usable()) return;
  Fixture f;
  const Object first = *f.cluster.create(training("t", f.ns));
  json body = first.json();
  body["spec"]["suspend"] = true;
  const auto second = f.cluster.update(body);
  REQUIRE(second);
  CHECK(second->generation() == first.generation() + 1);
  CHECK(kind_of(f.cluster.update(body)) == ErrorKind::kConflict);
  CHECK(kind_of(f.cluster.update_status(body)) == ErrorKind::kConflict);
  body = second->json();
  body["metadata"]["uid"] = "other";
  CHECK(kind_of(f.cluster.update(body)) == ErrorKind::kConflict);
}

TEST_CASE("status and spec are written apart") {
  if (!usable()) return;
  Fixture f;
  const Object made = *f.cluster.create(training("t", f.ns));
  json body = made.json();
  body["spec"]["suspend"] = true;  // ignored by the status write
  body["status"] = {{"phase", "Running"}};
  const auto written = f.cluster.update_status(body);
  REQUIRE(written);
  CHECK(!bool_at(written->spec(), {"suspend"}));
  CHECK(written->generation() == made.generation());
  CHECK(string_at(written->status(), {"phase"}) == "Running");
  body = written->json();
  body["status"] = {{"phase", "Failed"}};  // ignored by the spec write
  body["spec"]["suspend"] = true;
  const auto updated = f.cluster.update(body);
  REQUIRE(updated);
  CHECK(string_at(updated->status(), {"phase"}) == "Running");
  SECTION("a write that changes nothing makes no version") {
    CHECK(f.cluster.update_status(updated->json())->resource_version() ==
          updated->resource_version());
  }
}

TEST_CASE("apply creates, merges, and respects a uid") {
  if (!usable()) return;
  Fixture f;
  const auto made = f.cluster.apply(config_map("m", "1", f.ns));
  REQUIRE(made);
  json foreign = made->json();
  foreign["metadata"]["annotations"] = {{"theirs", "kept"}};
  REQUIRE(f.cluster.update(foreign));
  json body = config_map("m", "2", f.ns);
  body["metadata"]["uid"] = made->uid();
  const auto merged = f.cluster.apply(body);
  REQUIRE(merged);
  CHECK(string_at(merged->json(), {"data", "spec.json"}) == "2");
  CHECK(string_at(merged->json(), {"metadata", "annotations", "theirs"}) == "kept");
  REQUIRE(f.cluster.remove(Kind::kConfigMap, {f.ns, "m"}, {}));
  CHECK(kind_of(f.cluster.apply(body)) == ErrorKind::kConflict);
}

TEST_CASE("delete has a uid precondition and cascades to dependents") {
  if (!usable()) return;
  Fixture f;
  const Object owner = *f.cluster.create(training("t", f.ns));
  json child = pod("p", f.ns);
  child["metadata"]["ownerReferences"] = json::array({{{"apiVersion", api_version(Kind::kTraining)},
                                                       {"kind", to_string(Kind::kTraining)},
                                                       {"name", "t"},
                                                       {"uid", owner.uid()},
                                                       {"controller", true}}});
  REQUIRE(f.cluster.create(child));
  CHECK(f.cluster.get(Kind::kPod, {f.ns, "p"})->controller_uid() == owner.uid());
  const ObjectKey key{f.ns, "t"};
  CHECK(kind_of(f.cluster.remove(Kind::kTraining, key, {"other", {}})) == ErrorKind::kConflict);
  REQUIRE(f.cluster.remove(Kind::kTraining, key, {owner.uid(), {}}));
  CHECK(kind_of(f.cluster.remove(Kind::kTraining, key, {})) == ErrorKind::kNotFound);
  CHECK(f.gone(Kind::kPod, {f.ns, "p"}));
}

TEST_CASE("a watch from a list misses nothing and sees nothing twice") {
  if (!usable()) return;
  Fixture f;
  REQUIRE(f.cluster.create(pod("before", f.ns)));
  const auto list = f.cluster.list(Kind::kPod, {});
  const Object made = *f.cluster.create(pod("a", f.ns));
  REQUIRE(f.cluster.create(training("noise", f.ns)));
  auto watch = f.cluster.watch(Kind::kPod, f.ns, list->resource_version);
  REQUIRE(watch);
  json body = made.json();
  body["status"] = {{"phase", "Running"}};
  REQUIRE(f.cluster.update_status(body));
  REQUIRE(f.cluster.create(pod("elsewhere", f.other)));
  REQUIRE(f.cluster.remove(Kind::kPod, {f.ns, "a"}, {}));
  const auto added = next(**watch);
  const auto modified = next(**watch);
  const auto deleted = next_end(**watch);
  REQUIRE((added && modified && deleted));
  CHECK(added->type == WatchType::kAdded);
  CHECK(modified->type == WatchType::kModified);
  CHECK(string_at(modified->object->status(), {"phase"}) == "Running");
  CHECK(deleted->type == WatchType::kDeleted);
  CHECK(deleted->object->uid() == made.uid());
  CHECK(!next(**watch, 0.01));
  SECTION("it resumes from the last version seen") {
    auto again = f.cluster.watch(Kind::kPod, f.ns, modified->resource_version);
    CHECK(next_end(**again)->type == WatchType::kDeleted);
  }
}

}  // namespace archipelago::op
