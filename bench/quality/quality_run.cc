// One cell of the quality experiments (docs/quality.md): learners of a spec in one process, in
// turn, under a schedule that the production cores decided in virtual time (a synthetic tape), with
// the daemon's own outer step; or the same tokens data parallel. Prints one line of JSON.
//
// The schedule doesn't depend on values, so cells that differ only in optimizer, codec or merge
// train under the very same failures.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/config/parse.h"
#include "common/diloco/data_ledger.h"
#include "learner/data.h"
#include "learner/fragments.h"
#include "learner/llama_shapes.h"
#include "learner/lr_schedule.h"
#include "learner/torch_trainer.h"
#include "replay/engine.h"
#include "replay/replayer.h"
#include "simulator/spec_world.h"
#include "simulator/tape_recorder.h"

namespace archipelago::quality {
namespace {

using nlohmann::json;
namespace tape = diloco::tape;

struct CommandLine {
  std::string spec;
  std::vector<std::string> sets;
  std::string name;
  bool data_parallel = false;
  simulator::SpecWorldOptions world;
  int threads = 2;
  std::int64_t points = 8;  // of the validation curve
};

// Keeps the losses of all learners' steps.
class Losses {
 public:
  void add(const learner::StepResult& step) {
    losses_.push_back(step.loss);
    tokens_ += step.tokens;
    skipped_ += step.skipped ? 1 : 0;
  }
  void write(json& out) const {
    out["learnerSteps"] = losses_.size();
    out["tokens"] = tokens_;
    out["skippedSteps"] = skipped_;
    const std::size_t last = std::max<std::size_t>(1, losses_.size() / 20);
    double sum = 0;
    for (std::size_t i = losses_.size() - std::min(last, losses_.size()); i < losses_.size(); ++i)
      sum += losses_[i];
    out["trainLoss"] = sum / static_cast<double>(last);  // of the last 5% of all steps
  }

 private:
  std::vector<double> losses_;
  std::int64_t tokens_ = 0, skipped_ = 0;
};

class WatchedTrainer final : public learner::Trainer {
 public:
  WatchedTrainer(std::unique_ptr<Trainer> inner, Losses& losses)
      : inner_(std::move(inner)), losses_(losses) {}
  [[nodiscard]] const std::vector<learner::TensorShape>& tensors() const override {
    return inner_->tensors();
  }
  [[nodiscard]] std::int64_t context_length() const override { return inner_->context_length(); }
  [[nodiscard]] learner::Numerics numerics() const override { return inner_->numerics(); }
  void initialise(std::uint64_t seed) override { inner_->initialise(seed); }
  [[nodiscard]] Result<learner::StepResult> step(std::span<const std::int32_t> tokens,
                                                 double rate) override {
    auto result = inner_->step(tokens, rate);
    if (result) losses_.add(*result);
    return result;
  }
  void read(std::span<const learner::TensorRange> ranges, std::span<float> out) const override {
    inner_->read(ranges, out);
  }
  void write(std::span<const learner::TensorRange> ranges, std::span<const float> in) override {
    inner_->write(ranges, in);
  }
  [[nodiscard]] Result<learner::EvalResult> evaluate(
      std::span<const float> weights, std::span<const std::int32_t> tokens) override {
    return inner_->evaluate(weights, tokens);
  }
  [[nodiscard]] std::vector<std::byte> inner_state(config::Precision precision) const override {
    return inner_->inner_state(precision);
  }
  [[nodiscard]] Status restore_inner_state(std::span<const std::byte> bytes) override {
    return inner_->restore_inner_state(bytes);
  }
  [[nodiscard]] Result<std::vector<std::int32_t>> sample(std::span<const std::int32_t> prompt,
                                                         std::int64_t n, double temperature,
                                                         std::uint64_t seed) override {
    return inner_->sample(prompt, n, temperature, seed);
  }

 private:
  std::unique_ptr<Trainer> inner_;
  Losses& losses_;
};

// The spec's first validation set under given weights; a trainer of its own, so nobody's moments
// are touched.
class Validation {
 public:
  static Result<Validation> open(const config::TrainingSpec& spec) {
    if (spec.data.validation.empty())
      return fail(ErrorKind::kInvalid,
                  "data.validation: the spec has none, and loss is the result");
    const auto& set = spec.data.validation.front();
    ARCH_TRY(const auto file,
             learner::TokenFile::open(set.path, spec.data.train.format, spec.model.context_length,
                                      spec.model.vocab_size));
    Validation out;
    const auto row = static_cast<std::size_t>(spec.model.context_length + 1);
    const std::uint64_t count =
        std::min<std::uint64_t>(file.sequences(), static_cast<std::uint64_t>(set.sequences));
    out.tokens_.resize(static_cast<std::size_t>(count) * row);
    for (std::uint64_t i = 0; i < count; ++i)
      ARCH_TRY_VOID(
          file.read(i, std::span(out.tokens_).subspan(static_cast<std::size_t>(i) * row, row)));
    ARCH_TRY(out.trainer_, learner::make_torch_trainer(spec.model, spec.inner));
    return out;
  }
  Result<double> loss(std::span<const float> weights) const {
    ARCH_TRY(const auto result, trainer_->evaluate(weights, tokens_));
    return result.loss;
  }

 private:
  std::vector<std::int32_t> tokens_;
  std::unique_ptr<learner::Trainer> trainer_;
};

std::vector<float> published_weights(const replay::Engine& engine) {
  std::vector<float> flat(static_cast<std::size_t>(engine.fragments().elements()));
  for (std::int32_t p = 0; p < engine.fragments().count(); ++p) {
    const auto& view = engine.fragments()[p];
    const auto published = engine.published(p);
    const float* from = published.bytes->floats().data();
    for (std::size_t i = 0; i < view.elements.size(); ++i) {
      std::copy_n(from, view.elements[i], flat.data() + view.flat_offsets[i]);
      from += view.elements[i];
    }
  }
  return flat;
}

// --- islands

struct Schedule {
  replay::TapeContent tape;
  simulator::WorldResult world;
};

Result<Schedule> decide(const config::DecoupledTraining& training, const CommandLine& line) {
  const auto& spec = training.spec;
  ARCH_TRY(const auto data,
           learner::TokenFile::open(spec.data.train.path, spec.data.train.format,
                                    spec.model.context_length, spec.model.vocab_size));
  simulator::SpecWorldOptions options = line.world;
  options.dataset_sequences = data.sequences();
  ARCH_TRY(auto world, simulator::world_of(spec, options));
  ARCH_TRY(const auto layout, learner::layout_of(learner::llama_shapes(spec.model)));
  simulator::TapeFacts facts;
  facts.spec = config::to_json(training).dump();
  facts.layout_digest = layout.digest().hex();
  facts.dataset_digest = data.digest();
  facts.threads = line.threads;
  facts.init_seed = spec.model.init_seed;
  facts.rules = {static_cast<float>(spec.outer.learning_rate),
                 static_cast<float>(spec.outer.momentum), spec.outer.nesterov,
                 spec.sync.merge == config::MergeRule::kRda,
                 std::string(config::to_string(spec.sync.downlink))};
  replay::TapeCollector collector;
  simulator::TapeRecorder recorder(facts,
                                   [&](tape::Record record) { collector.add(std::move(record)); });
  world.observer = &recorder;
  Schedule out;
  out.world = simulator::run_world(world);
  recorder.flush();
  if (!out.world.violation.empty())
    return fail(ErrorKind::kInternal, "the simulated run: " + out.world.violation);
  out.tape = collector.take();
  return out;
}

Status train_islands(const config::DecoupledTraining& training, const CommandLine& line,
                     const Validation& validation, json& out) {
  ARCH_TRY(const Schedule schedule, decide(training, line));
  Losses losses;
  json curve = json::array();
  Status evaluated;
  const std::int64_t every = std::max<std::int64_t>(
      1, training.spec.budget.global_steps / std::max<std::int64_t>(1, line.points));
  replay::ReplayHooks hooks;
  hooks.shapes = learner::llama_shapes;
  hooks.trainer = [&losses](const config::ModelSpec& model, const config::InnerSpec& inner,
                            int) -> Result<std::unique_ptr<learner::Trainer>> {
    ARCH_TRY(auto trainer, learner::make_torch_trainer(model, inner));
    return std::make_unique<WatchedTrainer>(std::move(trainer), losses);
  };
  hooks.made = [&](GlobalStep t, const replay::Engine& engine) {
    const bool last = t.value > training.spec.budget.global_steps;  // masters, published
    if ((!last && t.value % every != 0) || !evaluated) return;
    const auto loss = validation.loss(published_weights(engine));
    if (!loss) {
      evaluated = fail(loss.error());
      return;
    }
    if (last)
      out["validationLoss"] = *loss;
    else
      curve.push_back({t.value, *loss});
  };
  replay::ReplayOptions options;
  options.merge_threads = line.threads;
  ARCH_TRY(const auto report, replay::replay(schedule.tape, options, hooks));
  ARCH_TRY_VOID(std::move(evaluated));
  if (!report.stopped.empty()) return fail(ErrorKind::kInternal, report.stopped);
  losses.write(out);
  out["curve"] = std::move(curve);
  out["islands"] = config::total_units(training.spec);
  out["incarnations"] = schedule.tape.learners.size();
  out["meanParticipants"] = schedule.world.mean_participants;
  out["mergedFraction"] = schedule.world.merged_fraction;
  out["mergedByUnit"] = schedule.world.merged_by_unit;
  return {};
}

// --- data parallel

// One model, each step over the batches of all islands: the same tokens in as many steps.
Status train_data_parallel(const config::TrainingSpec& spec, const Validation& validation,
                           json& out) {
  ARCH_TRY(const auto data,
           learner::TokenFile::open(spec.data.train.path, spec.data.train.format,
                                    spec.model.context_length, spec.model.vocab_size));
  config::InnerSpec inner = spec.inner;
  inner.gradient_accumulation *= config::total_units(spec);
  ARCH_TRY(const auto trainer, learner::make_torch_trainer(spec.model, inner));
  trainer->initialise(spec.model.init_seed);
  const auto row = static_cast<std::size_t>(spec.model.context_length + 1);
  const auto sequences = static_cast<std::size_t>(inner.batch_size * inner.gradient_accumulation);
  std::vector<std::int32_t> tokens(sequences * row);
  Losses losses;
  std::uint64_t block = 0;
  std::uint32_t index = 0;
  const GlobalStep budget(spec.budget.global_steps);
  for (GlobalStep t(0); t < budget; ++t.value) {
    for (std::size_t i = 0; i < sequences; ++i) {
      if (index >= diloco::block_size(data.sequences(), block)) {
        ++block;
        index = 0;
      }
      const auto sequence = diloco::sequence_index(inner.seed, data.sequences(), block, index++);
      ARCH_TRY_VOID(data.read(sequence, std::span(tokens).subspan(i * row, row)));
    }
    ARCH_TRY(const auto result, trainer->step(tokens, learner::learning_rate(inner, t, budget)));
    losses.add(result);
  }
  ARCH_TRY(const auto layout, learner::layout_of(trainer->tensors()));
  std::vector<float> flat(static_cast<std::size_t>(layout.elements()));
  const learner::TensorRange whole{0, layout.elements()};
  trainer->read(std::span(&whole, 1), flat);
  ARCH_TRY(const double loss, validation.loss(flat));
  losses.write(out);
  out["validationLoss"] = loss;
  out["islands"] = 1;
  return {};
}

Result<json> run(const CommandLine& line) {
  ARCH_TRY(const std::string text, read_file(line.spec));
  const auto training = config::parse_training(text, line.sets);
  if (!training) return fail(ErrorKind::kInvalid, config::format_errors(training.error()));
  learner::tune_allocator();
  learner::set_torch_threads(line.threads);
  ARCH_TRY(const Validation validation, Validation::open(training->spec));
  const SystemClock clock;
  const TimePoint begin = clock.now();
  json out{{"cell", line.name}, {"sets", line.sets}, {"seed", line.world.seed}};
  ARCH_TRY_VOID(line.data_parallel ? train_data_parallel(training->spec, validation, out)
                                   : train_islands(*training, line, validation, out));
  out["seconds"] = to_seconds(clock.now() - begin);
  return out;
}

}  // namespace
}  // namespace archipelago::quality

int main(int argc, char** argv) {
  CLI::App app("One cell of the quality experiments", "quality_run");
  archipelago::quality::CommandLine line;
  app.add_option("spec", line.spec, "a DecoupledTraining")->required();
  app.add_option("--set", line.sets, "path=value, may be repeated")->allow_extra_args(false);
  app.add_option("--cell", line.name, "name in the result");
  app.add_flag("--data-parallel", line.data_parallel, "one model over the batches of all islands");
  app.add_option("--availability", line.world.availability,
                 "share of the time that an island is up");
  app.add_option("--away", line.world.away, "steps from a kill to the replacement, mean");
  app.add_option("--jitter", line.world.jitter, "of a step's time");
  app.add_option("--step-times", line.world.step_seconds, "one an island, relative")
      ->delimiter(',');
  app.add_option("--schedule-seed", line.world.seed, "of the simulated cluster");
  app.add_option("--threads", line.threads, "of each step")->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  const auto result = archipelago::quality::run(line);
  if (!result) {
    std::cerr << "quality_run: " << result.error().message << "\n";
    return 1;
  }
  std::cout << result->dump() << "\n";
  return 0;
}
