// The CRD and the programs know the same fields, defaults and bounds; walks both.
#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "common/config/parse.h"
#include "operator/api/status.h"
#include "tests/config/case_table.h"

namespace archipelago::config {
namespace {

const std::string kFile =
    std::string(ARCHIPELAGO_SOURCE_DIR) + "/crds/decoupledtrainings.archipelago.training.yaml";

Json crd() {
  const auto text = read_file(kFile);
  if (!text) return {};
  auto document = parse_document(*text);
  INFO((document ? std::string() : format_errors(document.error())));
  REQUIRE(document);
  return *document;
}

Json schema() { return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]; }

// The smallest document, with one item in each list of objects.
Json smallest() {
  return Json::parse(R"({"apiVersion": "archipelago.training/v1alpha1", "kind": "DecoupledTraining",
    "metadata": {"name": "islands"},
    "spec": {"data": {"train": {"path": "a"}, "validation": [{"path": "b"}]},
             "datacenters": [{"name": "us"}]}})");
}

// What an API server does to a stored or posted value.
void apply_defaults(Json& value, const Json& schema) {
  if (value.is_object()) {
    const Json parts = schema.value("properties", Json::object());
    for (const auto& [name, part] : parts.items()) {
      if (!value.contains(name) && part.contains("default")) value[name] = part["default"];
      if (value.contains(name)) apply_defaults(value[name], part);
    }
  } else if (value.is_array() && schema.contains("items")) {
    for (Json& item : value) apply_defaults(item, schema["items"]);
  }
}

// Fields that the programs ask for in the object at `at`: an unknown field's error lists them.
std::set<std::string> known_fields(const Json& document, const Json::json_pointer& at,
                                   const std::string& path) {
  Json asked = document;
  asked[at]["zzzzz"] = 1;
  const auto training = parse_training_object(asked);
  std::set<std::string> out;
  if (training) return out;
  for (const FieldError& error : training.error()) {
    if (error.path != path + ".zzzzz") continue;
    std::istringstream words(error.allowed);
    for (std::string word; std::getline(words, word, ',');)
      out.insert(word.substr(word.find_first_not_of(' ')));
  }
  return out;
}

struct Leaf {
  Json::json_pointer at;
  std::string path;
  Json schema;
};

// Objects are compared on the way; leaves are gathered.
void walk(Json& document, const Json::json_pointer& at, const std::string& path, const Json& part,
          std::vector<Leaf>& leaves) {
  INFO(path);
  CHECK((path == "spec" || part.contains("description") || path.ends_with("]")));
  if (!part.contains("properties")) {
    leaves.push_back({at, path, part});
    if (part.value("type", "") == "array" && part["items"].contains("properties"))
      walk(document, at / 0, path + "[0]", part["items"], leaves);
    return;
  }
  // resources.limits and the like are maps: any name goes.
  std::set<std::string> declared;
  for (const auto& item : part["properties"].items()) declared.insert(item.key());
  if (!document.contains(at)) document[at] = Json::object();
  CHECK(known_fields(document, at, path) == declared);
  for (const auto& [name, child] : part["properties"].items())
    walk(document, at / name, path + "." + name, child, leaves);
}

std::vector<Leaf> leaves_of_spec() {
  std::vector<Leaf> leaves;
  Json document = smallest();
  walk(document, Json::json_pointer("/spec"), "spec", schema()["properties"]["spec"], leaves);
  return leaves;
}

// The errors about one field after it was set.
std::string errors_at(const Leaf& leaf, const Json& value) {
  Json document = smallest();
  document[leaf.at] = value;
  const auto training = parse_training_object(document);
  std::string out;
  if (training) return out;
  for (const FieldError& error : training.error())
    if (error.path.rfind(leaf.path, 0) == 0) out += format_error(error) + "\n";
  return out;
}

bool out_of_range(const Leaf& leaf, const Json& value) {
  const std::string errors = errors_at(leaf, value);
  return errors.find("is out of range") != std::string::npos ||
         errors.find("not supported yet") != std::string::npos;
}

TEST_CASE("the CRD is small enough for client-side apply") {
  const auto text = read_file(kFile);
  REQUIRE(text);
  CHECK(text->size() < 100'000);
  CHECK(crd().dump().size() < 100'000);
}

TEST_CASE("the CRD declares what the programs know, and nothing else") {
  CHECK(leaves_of_spec().size() > 100);
}

TEST_CASE("defaults of the CRD are those of the programs") {
  const auto plain = parse_training_object(smallest());
  REQUIRE(plain);
  Json defaulted = smallest();
  apply_defaults(defaulted, schema());
  const auto again = parse_training_object(defaulted);
  INFO((again ? std::string() : format_errors(again.error())));
  REQUIRE(again);
  CHECK((*again == *plain));

  // The other way: what the programs resolve stands in the CRD, but for what follows from others.
  const Json resolved = to_json(*plain)["spec"].flatten();
  const Json declared = defaulted["spec"].flatten();
  const std::set<std::string> following{"/outer/learningRate", "/sync/overlap",
                                        "/sync/maxLead",       "/sync/startUnits",
                                        "/inner/warmupSteps",  "/outerOptimizer/datacenter",
                                        "/model/initFrom/seed"};
  for (const auto& [path, value] : resolved.items()) {
    INFO(path);
    CHECK(declared.contains(path) == (following.count(path) == 0));
    if (declared.contains(path)) CHECK(declared[path] == value);
  }
}

TEST_CASE("bounds of numbers are the same") {
  int judged = 0;
  for (const Leaf& leaf : leaves_of_spec()) {
    const std::string type = leaf.schema.value("type", "");
    if (type != "integer" && type != "number") continue;
    INFO(leaf.path);
    ++judged;
    const bool fixed = leaf.schema.contains("x-kubernetes-validations");  // not supported yet
    const double step = type == "integer" ? 1 : 1e-6;
    for (const char* bound : {"minimum", "maximum"}) {
      if (!leaf.schema.contains(bound) || fixed) continue;
      const Json& at = leaf.schema[bound];
      const bool open =
          leaf.schema.value(bound[1] == 'i' ? "exclusiveMinimum" : "exclusiveMaximum", false);
      CHECK(out_of_range(leaf, at) == open);
      const double beyond = at.get<double>() + (bound[1] == 'i' ? -step : step);
      const Json value = type == "integer" ? Json(static_cast<std::int64_t>(beyond)) : Json(beyond);
      CHECK(out_of_range(leaf, value));
    }
    if (!fixed) {
      CHECK(leaf.schema.contains("minimum"));
      // Seeds go as far as the type does.
      CHECK(out_of_range(leaf, 1e300) == (type == "number"));
      if (!leaf.schema.contains("maximum"))
        CHECK(!out_of_range(leaf, std::numeric_limits<std::int64_t>::max()));
    }
    CHECK(errors_at(leaf, "x") != "");
    if (type == "integer") CHECK(errors_at(leaf, 1.5) != "");
  }
  CHECK(judged > 40);
}

TEST_CASE("words are the same, and those to come are refused by both") {
  int judged = 0;
  for (const Leaf& leaf : leaves_of_spec()) {
    if (!leaf.schema.contains("enum")) continue;
    INFO(leaf.path);
    ++judged;
    bool refuses = false;
    std::string allowed;
    for (const Json& word : leaf.schema["enum"]) {
      INFO(word.dump());
      const std::string errors = errors_at(leaf, word);
      CHECK(errors.find("is not allowed") == std::string::npos);
      if (errors.find("is not supported yet") == std::string::npos) {
        allowed += (allowed.empty() ? "" : ", ") + word.get<std::string>();
      } else {
        refuses = true;
      }
    }
    CHECK(refuses == leaf.schema.contains("x-kubernetes-validations"));
    const std::string unknown = errors_at(leaf, "zzz");
    for (const Json& word : leaf.schema["enum"])
      if (errors_at(leaf, word).find("not supported") == std::string::npos)
        CHECK(unknown.find(word.get<std::string>()) != std::string::npos);
    if (refuses) {
      const std::string rule = leaf.schema["x-kubernetes-validations"].dump();
      CHECK(rule.find("is not supported yet, allowed: " + allowed + "'") != std::string::npos);
    }
  }
  CHECK(judged >= 19);
}

TEST_CASE("texts and lists have a length") {
  for (const Leaf& leaf : leaves_of_spec()) {
    INFO(leaf.path);
    const std::string type = leaf.schema.value("type", "");
    if (type == "string")
      CHECK((leaf.schema.contains("maxLength") || leaf.schema.contains("enum")));
    if (type == "array") CHECK(leaf.schema.contains("maxItems"));
    if (leaf.schema.contains("additionalProperties")) CHECK(leaf.schema.contains("maxProperties"));
  }
}

// Every field of status with a value other than its default.
op::TrainingStatus full_status() {
  op::TrainingStatus s;
  const WallTime t{};
  op::LastFailure failure{3, "uid", op::FailureReason::kCrash, 1, "text", t};
  s.run_id = s.loss = s.validation_loss = s.goodput = s.merged_fraction = "1";
  s.start_time = s.completion_time = s.active_since = t;
  s.first_step_active_seconds = 3;
  s.conditions.push_back({"SpecValid", true, "Valid", "text", t, 1});
  s.learners.summary = "1/2";
  s.outer.pod = s.outer.pod_uid = s.outer.endpoint = "x";
  s.outer.since = s.outer.next_start = t;
  s.outer.last_failure = failure;
  op::DatacenterStatus datacenter;
  datacenter.name = "us";
  datacenter.uplink_mbps = "1.0";
  s.datacenters.push_back(datacenter);
  op::UnitStatus unit;
  unit.name = "us-0";
  unit.reason = "Unschedulable";
  unit.pod_uids = {"uid"};
  unit.stepping_since = unit.next_start = t;
  unit.last_failure = failure;
  s.units.push_back(unit);
  s.retired.push_back({"us-1", 4});
  return s;
}

void check_declared(const Json& value, const Json& part, const std::string& path) {
  INFO(path);
  const std::string type = part.value("type", "");
  const std::string is = value.is_object()           ? "object"
                         : value.is_array()          ? "array"
                         : value.is_number_integer() ? "integer"
                         : value.is_string()         ? "string"
                                                     : "unknown";
  CHECK(type == is);
  if (is == "object") {
    for (const auto& [name, child] : value.items()) {
      INFO(name);
      const bool declared = part.value("properties", Json::object()).contains(name);
      CHECK(declared);
      if (declared) check_declared(child, part["properties"][name], path + "." + name);
    }
  }
  if (is == "array") {
    REQUIRE(part.contains("items"));
    for (const Json& child : value) check_declared(child, part["items"], path + "[]");
  }
}

int count_leaves(const Json& part) {
  if (part.contains("items")) return count_leaves(part["items"]);
  if (!part.contains("properties")) return 1;
  int out = 0;
  for (const auto& item : part["properties"].items()) out += count_leaves(item.value());
  return out;
}

TEST_CASE("every field of status is declared: an API server drops others") {
  const Json status = schema()["properties"]["status"];
  const Json written = op::to_json(full_status());
  check_declared(written, status, "status");
  // and none is declared that nobody writes
  CHECK(static_cast<int>(written.flatten().size()) == count_leaves(status));
}

TEST_CASE("columns show fields that exist") {
  const Json version = crd()["spec"]["versions"][0];
  CHECK(version["additionalPrinterColumns"].size() == 9);
  for (const Json& column : version["additionalPrinterColumns"]) {
    const std::string path = column["jsonPath"];
    if (path.rfind(".status.", 0) != 0) continue;
    const Json* part = &version["schema"]["openAPIV3Schema"];
    std::istringstream words(path.substr(1));
    for (std::string word; std::getline(words, word, '.');) {
      REQUIRE((*part)["properties"].contains(word));
      part = &(*part)["properties"][word];
    }
    CHECK((*part)["type"] == column["type"]);
  }
}

}  // namespace
}  // namespace archipelago::config
