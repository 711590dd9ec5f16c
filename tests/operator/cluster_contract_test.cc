// The contract of the Cluster port. An implementation passes by adding its fixture to the list at
// the end.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/cluster/memory_cluster.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

json pod(const std::string& name, const std::string& name_space = "default") {
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata", {{"name", name}, {"namespace", name_space}, {"labels", {{"app", "a"}}}}},
          {"spec", {{"containers", json::array({{{"name", "c"}, {"image", "i"}}})}}}};
}
json training(const std::string& name) {
  return {{"apiVersion", "archipelago.training/v1alpha1"},
          {"kind", "DecoupledTraining"},
          {"metadata", {{"name", name}, {"namespace", "default"}}},
          {"spec", {{"suspend", false}}}};
}
json config_map(const std::string& name, const std::string& text) {
  return {{"apiVersion", "v1"},
          {"kind", "ConfigMap"},
          {"metadata", {{"name", name}, {"namespace", "default"}}},
          {"data", {{"spec.json", text}}}};
}
template <class T>
ErrorKind kind_of(const Result<T>& r) {
  REQUIRE(!r.has_value());
  return r.error().kind;
}

struct MemoryFixture {
  SystemClock clock;
  MemoryCluster cluster{clock, {64, 64, 1, {}}};
};

std::optional<WatchEvent> next(Watch& watch, double wait = 5) {
  return watch.next(SystemClock().now() + seconds(wait), {});
}
}  // namespace

TEMPLATE_TEST_CASE("create gives identity and refuses a second of that name", "", MemoryFixture) {
  TestType f;
  json body = pod("a");
  body["status"] = {{"phase", "Running"}};
  const auto made = f.cluster.create(body);
  REQUIRE(made);
  CHECK(!made->uid().empty());
  CHECK(!made->resource_version().empty());
  CHECK(string_at(made->status(), {"phase"}) == "Pending");  // never taken from the body
  CHECK(kind_of(f.cluster.create(pod("a"))) == ErrorKind::kConflict);
  CHECK(f.cluster.create(pod("a", "other")).has_value());
  CHECK(kind_of(f.cluster.create(json{{"kind", "Pod"}})) == ErrorKind::kInvalid);
  CHECK(kind_of(f.cluster.get(Kind::kPod, {"default", "b"})) == ErrorKind::kNotFound);
}

TEMPLATE_TEST_CASE("list selects by namespace and labels", "", MemoryFixture) {
  TestType f;
  REQUIRE(f.cluster.create(pod("a")));
  REQUIRE(f.cluster.create(pod("b", "other")));
  json other = pod("c");
  other["metadata"]["labels"] = {{"app", "b"}};
  REQUIRE(f.cluster.create(other));
  CHECK(f.cluster.list(Kind::kPod, {})->items.size() == 3);
  CHECK(f.cluster.list(Kind::kPod, {"default", {}})->items.size() == 2);
  const auto list = f.cluster.list(Kind::kPod, {"default", {{"app", "a"}}});
  REQUIRE(list->items.size() == 1);
  CHECK(list->items[0].name() == "a");
}

TEMPLATE_TEST_CASE("writes with a stale version or another uid conflict", "", MemoryFixture) {
  TestType f;
  const Object first = *f.cluster.create(training("t"));
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

TEMPLATE_TEST_CASE("status and spec are written apart", "", MemoryFixture) {
  TestType f;
  const Object made = *f.cluster.create(training("t"));
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

TEMPLATE_TEST_CASE("apply creates, merges, and respects a uid", "", MemoryFixture) {
  TestType f;
  const auto made = f.cluster.apply(config_map("m", "1"));
  REQUIRE(made);
  json foreign = made->json();
  foreign["metadata"]["annotations"] = {{"theirs", "kept"}};
  REQUIRE(f.cluster.update(foreign));
  json body = config_map("m", "2");
  body["metadata"]["uid"] = made->uid();
  const auto merged = f.cluster.apply(body);
  REQUIRE(merged);
  CHECK(string_at(merged->json(), {"data", "spec.json"}) == "2");
  CHECK(string_at(merged->json(), {"metadata", "annotations", "theirs"}) == "kept");
  REQUIRE(f.cluster.remove(Kind::kConfigMap, {"default", "m"}, {}));
  CHECK(kind_of(f.cluster.apply(body)) == ErrorKind::kConflict);
}

TEMPLATE_TEST_CASE("delete has a uid precondition and cascades to dependents", "", MemoryFixture) {
  TestType f;
  const Object owner = *f.cluster.create(training("t"));
  json child = pod("p");
  child["metadata"]["ownerReferences"] = json::array(
      {{{"apiVersion", "v1"}, {"kind", "X"}, {"uid", owner.uid()}, {"controller", true}}});
  REQUIRE(f.cluster.create(child));
  CHECK(f.cluster.get(Kind::kPod, {"default", "p"})->controller_uid() == owner.uid());
  const ObjectKey key{"default", "t"};
  CHECK(kind_of(f.cluster.remove(Kind::kTraining, key, {"other", {}})) == ErrorKind::kConflict);
  REQUIRE(f.cluster.remove(Kind::kTraining, key, {owner.uid(), {}}));
  CHECK(kind_of(f.cluster.remove(Kind::kTraining, key, {})) == ErrorKind::kNotFound);
  CHECK(kind_of(f.cluster.get(Kind::kPod, {"default", "p"})) == ErrorKind::kNotFound);
}

TEMPLATE_TEST_CASE("a watch from a list misses nothing and sees nothing twice", "", MemoryFixture) {
  TestType f;
  REQUIRE(f.cluster.create(pod("before")));
  const auto list = f.cluster.list(Kind::kPod, {});
  const Object made = *f.cluster.create(pod("a"));
  REQUIRE(f.cluster.create(training("noise")));
  auto watch = f.cluster.watch(Kind::kPod, "default", list->resource_version);
  REQUIRE(watch);
  json body = made.json();
  body["status"] = {{"phase", "Running"}};
  REQUIRE(f.cluster.update_status(body));
  REQUIRE(f.cluster.create(pod("elsewhere", "other")));
  REQUIRE(f.cluster.remove(Kind::kPod, {"default", "a"}, {}));
  const auto added = next(**watch);
  const auto modified = next(**watch);
  const auto deleted = next(**watch);
  REQUIRE((added && modified && deleted));
  CHECK(added->type == WatchType::kAdded);
  CHECK(modified->type == WatchType::kModified);
  CHECK(string_at(modified->object->status(), {"phase"}) == "Running");
  CHECK(deleted->type == WatchType::kDeleted);
  CHECK(deleted->object->uid() == made.uid());
  CHECK(!next(**watch, 0.01));
  SECTION("it resumes from the last version seen") {
    auto again = f.cluster.watch(Kind::kPod, "default", modified->resource_version);
    CHECK(next(**again)->type == WatchType::kDeleted);
  }
}

}  // namespace archipelago::op
