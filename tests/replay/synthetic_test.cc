// Production cores in virtual time leave a tape; a model is trained under it.
#include <algorithm>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/base/rng.h"
#include "common/config/parse.h"
#include "learner/data.h"
#include "learner/fake_trainer.h"
#include "learner/fragments.h"
#include "replay/plan.h"
#include "replay/replayer.h"
#include "simulator/spec_world.h"
#include "simulator/tape_recorder.h"

namespace archipelago::replay {
namespace {

namespace tape = diloco::tape;
constexpr int kTensors = 7;
constexpr std::int64_t kSteps = 120;

config::DecoupledTraining training_on(const std::string& data) {
  const auto training = config::parse_training(
      R"({"apiVersion":"archipelago.training/v1alpha1","kind":"DecoupledTraining","metadata":{"name":"test"},"spec":{
    "model":{"hiddenSize":32,"layers":1,"heads":4,"kvHeads":2,"intermediateSize":48,"vocabSize":256,"contextLength":16,
      "initFrom":{"seed":5}},
    "data":{"train":{"path":")" +
      data + R"(","format":"text"}},
    "inner":{"batchSize":2,"learningRate":0.02,"warmupSteps":2},
    "sync":{"fragments":4,"interval":4,"overlap":2,"quorum":1},"budget":{"globalSteps":)" +
      std::to_string(kSteps) + R"(},
    "outerOptimizer":{"datacenter":"a"},
    "datacenters":[{"name":"a","learnerUnits":2},{"name":"b","learnerUnits":2,"inner":{"batchSize":4}}]}})");
  if (!training) FAIL(config::format_errors(training.error()));
  return *training;
}

ReplayHooks fake_hooks() {
  ReplayHooks hooks;
  hooks.shapes = [](const config::ModelSpec&) { return learner::fake_tensors(kTensors); };
  hooks.trainer = [](const config::ModelSpec& model, const config::InnerSpec&,
                     int) -> Result<std::unique_ptr<learner::Trainer>> {
    learner::FakeTrainerOptions options;
    options.tensors = learner::fake_tensors(kTensors);
    options.context_length = model.context_length;
    return std::make_unique<learner::FakeTrainer>(std::move(options));
  };
  return hooks;
}

struct Synthetic {
  explicit Synthetic(double availability, std::uint64_t seed = 3) {
    Rng rng(7);
    std::string text;
    for (int i = 0; i < 60000; ++i)
      text.push_back(static_cast<char>('a' + static_cast<int>(rng.below(26))));
    std::ofstream(dir.path() / "train.txt") << text;
    training = training_on((dir.path() / "train.txt").string());
    const auto& spec = training.spec;
    const auto data = learner::TokenFile::open(spec.data.train.path, spec.data.train.format,
                                               spec.model.context_length, spec.model.vocab_size);
    REQUIRE(data);
    simulator::SpecWorldOptions options;
    options.seed = seed;
    options.availability = availability;
    options.away = 10;
    options.dataset_sequences = data->sequences();
    auto world = simulator::world_of(spec, options);
    if (!world) FAIL(world.error().describe());
    simulator::TapeFacts facts;
    facts.spec = config::to_json(training).dump();
    facts.layout_digest = learner::layout_of(learner::fake_tensors(kTensors))->digest().hex();
    facts.dataset_digest = data->digest();
    facts.kernels = "fake";
    facts.init_seed = spec.model.init_seed;
    facts.rules = {0.7F, 0.9F, true, true, "int4"};
    TapeCollector collector;
    simulator::TapeRecorder recorder(
        facts, [&](tape::Record record) { collector.add(std::move(record)); });
    world->observer = &recorder;
    result = simulator::run_world(*world);
    recorder.flush();
    content = collector.take();
  }
  TempDir dir;
  config::DecoupledTraining training;
  simulator::WorldResult result;
  TapeContent content;
};

template <typename Event>
std::int64_t count(const TapeContent& content) {
  std::int64_t found = 0;
  for (const auto& [key, learner] : content.learners)
    found += std::count_if(learner.events.begin(), learner.events.end(),
                           [](const auto& event) { return std::holds_alternative<Event>(event); });
  return found;
}

}  // namespace

TEST_CASE("a synthetic tape under failures is trained to its last global step") {
  const Synthetic run(GENERATE(1.0, 0.7));
  INFO(run.result.violation);
  REQUIRE(run.result.finished);
  const auto report = replay(run.content, {}, fake_hooks());
  if (!report) FAIL(report.error().describe());
  CHECK(report->stopped.empty());
  CHECK(report->divergence.empty());
  CHECK(report->warnings.empty());
  CHECK(report->reached == GlobalStep(kSteps));
  CHECK(report->learner_steps > 2 * kSteps);
  CHECK(report->compared == 0);  // nothing was trained before
}

TEST_CASE("kills are on a synthetic tape as new incarnations that recover from a peer") {
  const Synthetic calm(1.0);
  CHECK(calm.content.learners.size() == 4);
  CHECK(count<tape::Restore>(calm.content) == 0);
  const Synthetic rough(0.6);
  CHECK(rough.content.learners.size() > 8);
  CHECK(count<tape::Restore>(rough.content) > 0);
  CHECK(rough.result.mean_participants < calm.result.mean_participants);
}

TEST_CASE("units of a datacenter with its own batch size train on as many sequences") {
  const Synthetic run(1.0);
  for (const auto& [key, learner] : run.content.learners) {
    const auto& start = std::get<tape::Start>(learner.events.front());
    for (const auto& event : learner.events) {
      const auto* step = std::get_if<tape::Step>(&event);
      if (step == nullptr) continue;
      std::uint32_t sequences = 0;
      for (const auto& one : step->runs) sequences += one.count;
      CHECK(sequences == (start.datacenter == "a" ? 2 : 4));
    }
  }
}

TEST_CASE("the same seed gives the same synthetic tape, another one another") {
  CHECK(differences(Synthetic(0.7, 3).content, Synthetic(0.7, 3).content).empty());
  CHECK(!differences(Synthetic(0.7, 3).content, Synthetic(0.7, 4).content).empty());
}

TEST_CASE("a world refuses a cluster that makes no sense") {
  const auto training = training_on("train.txt");
  simulator::SpecWorldOptions options;
  options.availability = 0;
  CHECK(simulator::world_of(training.spec, options).error().message.find("availability") == 0);
  options.availability = 1;
  options.step_seconds = {1, 1};
  CHECK(simulator::world_of(training.spec, options).error().message.find("4 units") !=
        std::string::npos);
  options.step_seconds = {1, 1, 1, 0};
  CHECK(!simulator::world_of(training.spec, options));
}

}  // namespace archipelago::replay
