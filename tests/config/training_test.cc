// The whole resource: defaults, round trip, what an API server adds, all errors at once.
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "good_spec.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

TEST_CASE("defaults are those of the document") {
  const DecoupledTraining training = good();
  REQUIRE(training.name == "islands");
  const TrainingSpec& spec = training.spec;
  CHECK(training.name_space == "default");
  CHECK(spec.sync.fragments == 24);
  CHECK(spec.sync.interval == 24);
  CHECK(spec.sync.overlap == 2);
  CHECK(spec.sync.max_lead == 48);
  CHECK(spec.sync.start_units == 4);
  CHECK(spec.sync.merge == MergeRule::kRda);
  CHECK(spec.outer.learning_rate == 0.4);
  CHECK(spec.outer_optimizer.datacenter == "us-east");
  CHECK(spec.outer_optimizer.storage.size_bytes == (std::int64_t{10} << 30));
  CHECK(spec.datacenters[1].template_json == "{}");
  CHECK_FALSE(spec.ttl_seconds_after_finished.has_value());
  CHECK(total_units(spec) == 4);
  CHECK(unit_name("eu-west", 1) == "eu-west-1");
}

TEST_CASE("defaults that follow from other fields") {
  CHECK(good({"sync.merge=mean"}).spec.outer.learning_rate == 0.7);
  CHECK(good({"sync.merge=mean", "outer.learningRate=0.4"}).spec.outer.learning_rate == 0.4);
  CHECK(good({"sync.fragments=1", "sync.interval=100"}).spec.sync.max_lead == 200);
  CHECK(good({"sync.fragments=1", "sync.interval=4", "sync.overlap=3"}).spec.sync.max_lead == 8);
  CHECK(good({"sync.fragments=1", "sync.interval=1"}).spec.sync.overlap == 1);
  CHECK(good({"sync.fragments=1", "sync.interval=1"}).spec.sync.max_lead ==
        3);  // H/P + overlap + 1
  CHECK(good({"budget.globalSteps=40"}).spec.inner.warmup_steps == 40);
  CHECK(good({"datacenters[0].learnerUnits=0"}).spec.sync.start_units == 2);
}

TEST_CASE("a model of another family round-trips") {
  const std::vector<std::string> sets{
      "model={headDim: 48, rmsNormEps: 1.0e-6, attentionBias: all, qkNorm: true, initFrom: {path: "
      "m}, rope: {theta: 500000, scaling: llama3, factor: 32, lowFreqFactor: 2, highFreqFactor: 8, "
      "originalContextLength: 4096}}"};
  const auto parsed = parse_training(kGood, sets);
  if (!parsed) FAIL(format_errors(parsed.error()));
  const ModelSpec& model = parsed->spec.model;
  CHECK(model.head_size() == 48);
  CHECK(model.tensors_per_layer() == 15);
  CHECK(model.rope.original_context_length == 4096);
  CHECK(model.init_path == "m");
  const auto again = parse_training(to_json(*parsed));
  if (!again) FAIL(format_errors(again.error()));
  CHECK((*again == *parsed));
}

TEST_CASE("the resolved spec round-trips") {
  const std::vector<std::string> sets{
      "metadata.uid=5c0e-1",
      "metadata.generation=7",
      "metadata.labels={team: a}",
      "metadata.annotations={note: 'two\nlines'}",
      "images={learner: 'registry.example/l:0.1', pullPolicy: Never, pullSecrets: [s]}",
      "inner.betas=[0.8, 0.99]",
      "inner.learningRate=0.1",
      "inner.seed=9223372036854775807",
      "model.initFrom.seed=42",
      "sync.grace={rule: slack, fraction: 0.7}",
      "sync.uplink=int8",
      "outerOptimizer.storage={size: 20Gi, existingClaim: old, adopt: true, retain: Delete}",
      "datacenters[1]={name: eu-west, learnerUnits: 3, inner: {batchSize: 4}, data: {volume: "
      "{claim: c}}, "
      "template: {resources: {limits: {cpu: 500m, memory: 2Gi, nvidia.com/gpu: 1}}, nodeSelector: "
      "{zone: b}}}",
      "ttlSecondsAfterFinished=0",
      "activeDeadlineSeconds=100",
      "suspend=true",
  };
  const auto parsed = parse_training(kGood, sets);
  if (!parsed) FAIL(format_errors(parsed.error()));
  CHECK(parsed->spec.datacenters[1].cpu_limit == Approx(0.5));
  CHECK(parsed->spec.datacenters[1].memory_limit_bytes == (std::int64_t{2} << 30));
  CHECK(Json::parse(
            parsed->spec.datacenters[1].template_json)["resources"]["limits"]["nvidia.com/gpu"] ==
        1);
  const auto again = parse_training(to_json(*parsed));
  if (!again) FAIL(format_errors(again.error()));
  CHECK((*again == *parsed));
  const auto text = parse_training(to_json(*parsed).dump(2));
  REQUIRE(text);
  CHECK((*text == *parsed));
  CHECK_FALSE((good() == *parsed));
}

TEST_CASE("an object as an API server stores it") {
  Json object = *parse_document(kGood);
  object["metadata"]["uid"] = "9b2e4c9e-0000-4000-8000-000000000000";
  object["metadata"]["resourceVersion"] = "1234";
  object["metadata"]["generation"] = 3;
  object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z";
  object["metadata"]["managedFields"] = Json::array({{{"manager", "kubectl"}}});
  object["metadata"]["finalizers"] = {"x/y"};
  object["status"] = {{"phase", "Running"}, {"anything", {1, 2}}};
  object["spec"]["ttlSecondsAfterFinished"] = nullptr;
  const auto training = parse_training(object);
  if (!training) FAIL(format_errors(training.error()));
  CHECK(training->uid == "9b2e4c9e-0000-4000-8000-000000000000");
  CHECK(training->generation == 3);
}

TEST_CASE("objects of another shape get errors, never an exception") {
  const auto [text, path] = GENERATE(table<std::string, std::string>({
      {"[]", ""},
      {"null", ""},
      {"12", ""},
      {R"({"apiVersion":"archipelago.training/v1alpha1","kind":"DecoupledTraining","metadata":null,"spec":null})",
       "metadata.name"},
      {R"({"metadata":[],"spec":"two"})", "spec"},
      {R"({"kind":"Pod"})", "kind"},
      {R"({"kind":3})", "kind"},
      {R"({"metadata":{"name":"a","labels":{"x":1}}})", "metadata.labels.x"},
      {R"({"metadata":{"name":"a","annotations":{"x":[[]]}}})", "metadata.annotations.x"},
      {R"({"spec":{"datacenters":{"name":"a"}}})", "spec.datacenters"},
      {R"({"spec":{"datacenters":["a"]}})", "spec.datacenters[0]"},
      {R"({"spec":{"data":{"validation":{}}}})", "spec.data.validation"},
      {R"({"spec":{"datacenters":[{"name":"a","template":{"resources":[1]}}]}})",
       "spec.datacenters[0].template.resources"},
  }));
  CAPTURE(text);
  const auto training = parse_training(Json::parse(text));
  REQUIRE_FALSE(training);
  bool found = false;
  for (const FieldError& error : training.error()) found = found || error.path == path;
  CAPTURE(format_errors(training.error()));
  CHECK(found);
}

TEST_CASE("all errors come at once, each with its line") {
  const std::string text = R"(apiVersion: archipelago.training/v1alpha1
kind: DecoupledTraining
metadata: {name: Islands}
spec:
  sync:
    interval: 10
    fragments: 3
    qourum: 2
  data: {train: {path: x}}
  restart: {stallSeconds: 1h30m}
  datacenters:
  - {name: a, learnerUnits: 1, workersPerUnit: 2}
)";
  const auto training = parse_training(text);
  REQUIRE_FALSE(training);
  const std::string errors = format_errors(training.error());
  CAPTURE(errors);
  CHECK(training.error().size() == 5);
  CHECK_THAT(errors, Catch::Contains("metadata.name (line 3): \"Islands\" is not allowed"));
  CHECK_THAT(errors,
             Catch::Contains("spec.sync.fragments (line 7): 3 does not divide interval 10"));
  CHECK_THAT(errors, Catch::Contains("spec.sync.qourum (line 8): is an unknown field"));
  CHECK_THAT(errors, Catch::Contains("did you mean quorum?"));
  CHECK_THAT(errors,
             Catch::Contains(
                 "spec.restart.stallSeconds (line 10): \"1h30m\" is not a number, allowed: 1 to "
                 "86400. HINT: write it in seconds: 5400"));
  CHECK_THAT(errors,
             Catch::Contains("workersPerUnit (line 12): 2 is not supported yet, allowed: 1"));
}

}  // namespace
}  // namespace archipelago::config
