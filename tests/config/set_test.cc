// apply_set: paths, names, quoting, and errors that say what was there.
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/config/parse.h"
#include "good_spec.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

TEST_CASE("overrides by index, by name, by absolute path") {
  Json document = *parse_document(kGood);
  REQUIRE(apply_set(document, "sync.quorum=2"));
  REQUIRE(apply_set(document, "datacenters[0].learnerUnits=3"));
  REQUIRE(apply_set(document, "datacenters.eu-west.learnerUnits=5"));
  REQUIRE(apply_set(document, "data.validation.main.everySteps=7"));
  REQUIRE(apply_set(document, "metadata.name=other"));
  REQUIRE(apply_set(document, "spec.inner.betas=[0.8, 0.9]"));
  REQUIRE(apply_set(document,
                    "datacenters[1].template.nodeSelector.topology\\.kubernetes\\.io/zone=b"));
  REQUIRE(apply_set(document, "metadata.annotations.note=a=b, c: d#e"));
  CHECK(document["spec"]["sync"]["quorum"] == 2);
  CHECK(document["spec"]["datacenters"][0]["learnerUnits"] == 3);
  CHECK(document["spec"]["datacenters"][1]["learnerUnits"] == 5);
  CHECK(document["spec"]["data"]["validation"][0]["everySteps"] == 7);
  CHECK(document["metadata"]["name"] == "other");
  CHECK(document["spec"]["inner"]["betas"] == Json({0.8, 0.9}));
  CHECK(document["spec"]["datacenters"][1]["template"]["nodeSelector"]
                ["topology.kubernetes.io/zone"] == "b");
}

TEST_CASE("overrides that can't be applied say why") {
  const auto [set, part] = GENERATE(table<std::string, std::string>({
      {"sync.quorum", "path=value"},
      {"=2", "path=value"},
      {".sync=2", "path=value"},
      {"sync..quorum=2", "path=value"},
      {"sync.=2", "path=value"},
      {"datacenters[x]=2", "path=value"},
      {"datacenters[0=2", "path=value"},
      {"datacenters[-1]=2", "path=value"},
      {"datacenters[99999999999999999999]=2", "path=value"},
      {"[0]=2", "path=value"},
      {"datacenters[2].learnerUnits=1", "2 items"},
      {"datacenters.us-west.learnerUnits=1", "\"us-east\", \"eu-west\""},
      {"sync[0]=1", "no list"},
      {"metadata.name.x=1", "plain value"},
      {"sync.quorum=[1", "never be closed"},
      {"sync.quorum=\x01", "control character"},
  }));
  CAPTURE(set);
  Json document = *parse_document(kGood);
  document["spec"]["sync"] = Json::object();
  const Status applied = apply_set(document, set);
  REQUIRE_FALSE(applied);
  CHECK_THAT(applied.error().message, Catch::Contains(part) && Catch::Contains("--set"));
  CHECK_FALSE(parse_training(kGood, {set}));
}

}  // namespace
}  // namespace archipelago::config
