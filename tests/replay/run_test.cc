// Real daemons with a FakeTrainer write a tape through faults; replay makes the same bytes of it.
#include <fstream>
#include <future>
#include <thread>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "common/base/rng.h"
#include "common/config/parse.h"
#include "learner/daemon.h"
#include "learner/fake_trainer.h"
#include "outer-optimizer/daemon.h"
#include "replay/replayer.h"

namespace archipelago::replay {
namespace {

namespace tape = diloco::tape;
using learner::ExitCode;

constexpr int kTensors = 7;
constexpr const char* kRunId = "5b0d2c6e-6f0a-4f5e-9d55-0d6f3c1c2a10";

class Run {
 public:
  Run(int steps, int units, const std::string& sync) {
    Rng rng(7);
    std::string text;
    for (int i = 0; i < 60000; ++i)
      text.push_back(static_cast<char>('a' + static_cast<int>(rng.below(26))));
    std::ofstream(dir_.path() / "train.txt") << text;
    spec_ =
        R"({"apiVersion":"archipelago.training/v1alpha1","kind":"DecoupledTraining","metadata":{"name":"test"},"spec":{
      "model":{"hiddenSize":32,"layers":1,"heads":4,"kvHeads":2,"intermediateSize":48,"vocabSize":256,"contextLength":16},
      "data":{"train":{"path":")" +
        (dir_.path() / "train.txt").string() + R"(","format":"text"}},
      "inner":{"batchSize":2,"learningRate":0.02,"warmupSteps":2},
      "sync":{)" +
        // 8 tensors: 16 fragments are cut ones.
        (sync.find("split") == std::string::npos ? R"("fragments":4,"interval":4)"
                                                 : R"("fragments":16,"interval":16)") +
        R"(,"overlap":2,"quorum":1,"startTimeoutSeconds":20)" + sync +
        R"(},"budget":{"globalSteps":)" + std::to_string(steps) + R"(},
      "outerOptimizer":{"datacenter":"a","finishedLingerSeconds":30,"checkpoint":{"everySteps":10}},
      "datacenters":[{"name":"a","learnerUnits":)" +
        std::to_string(units) + "}]}}";
    std::ofstream(dir_.path() / "spec.json") << spec_;
    start_outer();
  }
  ~Run() { stop_outer(); }

  void start_outer() {
    const auto training = config::parse_training(spec_);
    if (!training) FAIL(config::format_errors(training.error()));
    outer::Flags flags;
    flags.config = dir_.path() / "spec.json";
    flags.data_dir = dir_.path() / "outer";
    flags.listen = {"127.0.0.1", port_};
    flags.admin = {"127.0.0.1", 0};
    flags.run_id = kRunId;
    std::filesystem::create_directories(flags.data_dir);
    auto options = outer::make_options(flags, *training);
    if (!options) FAIL(options.error().describe());
    options_ = std::move(*options);
    auto started = outer::Daemon::start(options_, Logger::null());
    if (!started) FAIL(started.error().describe());
    outer_ = std::move(*started);
    port_ = outer_->port();
  }
  void stop_outer() {
    if (outer_) outer_->stop();
    outer_.reset();
  }
  std::future<ExitCode> launch(int ordinal, std::int64_t incarnation, const std::stop_token& stop) {
    learner::Flags flags;
    flags.config = (dir_.path() / "spec.json").string();
    flags.unit = "a-" + std::to_string(ordinal);
    flags.incarnation = incarnation;
    flags.datacenter = "a";
    flags.outer = "http://127.0.0.1:" + std::to_string(port_);
    flags.admin = "127.0.0.1:0";
    flags.run_id = kRunId;
    flags.termination_log = (dir_.path() / (flags.unit + ".last")).string();
    learner::DaemonHooks daemon;
    daemon.shapes = hooks().shapes;
    daemon.trainer = [](const config::ModelSpec& model, const config::InnerSpec&) {
      return fake(model, std::chrono::milliseconds(5));
    };
    return std::async(std::launch::async,
                      [=] { return run_daemon(flags, daemon, stop, Logger::null()); });
  }
  bool reach(std::int64_t step) const {
    for (int i = 0; i < 6000; ++i) {
      if (outer_->engine().committed() >= GlobalStep(step)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::filesystem::path folder() const { return dir_.path(); }

  static Result<std::unique_ptr<learner::Trainer>> fake(const config::ModelSpec& model,
                                                        Duration step_time) {
    learner::FakeTrainerOptions options;
    options.tensors = learner::fake_tensors(kTensors);
    options.context_length = model.context_length;
    options.step_time = step_time;
    return std::make_unique<learner::FakeTrainer>(std::move(options));
  }
  static ReplayHooks hooks() {
    ReplayHooks hooks;
    hooks.shapes = [](const config::ModelSpec&) { return learner::fake_tensors(kTensors); };
    hooks.trainer = [](const config::ModelSpec& model, const config::InnerSpec&, int) {
      return fake(model, Duration{});
    };
    return hooks;
  }

 private:
  TempDir dir_;
  std::string spec_;
  int port_ = 0;
  outer::DaemonOptions options_;
  std::unique_ptr<outer::Daemon> outer_;
};

bool ends(std::future<ExitCode>& process) {
  return process.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
}

// The tape with one record changed by `change`, which says when it has.
TapeContent mutated(const std::filesystem::path& path,
                    const std::function<bool(tape::Record&)>& change) {
  TapeCollector collector;
  bool done = false;
  const auto scan = wire::scan_tape(path, [&](tape::Record record) -> Status {
    done = done || change(record);
    collector.add(std::move(record));
    return {};
  });
  REQUIRE(scan);
  REQUIRE(done);
  return collector.take();
}

std::int64_t count_restores(const TapeContent& content) {
  std::int64_t count = 0;
  for (const auto& [key, learner] : content.learners)
    for (const auto& event : learner.events)
      count += std::holds_alternative<tape::Restore>(event) ? 1 : 0;
  return count;
}

void whole(const TapeContent& content, std::int64_t steps, std::int64_t fragments = 4) {
  const auto report = replay(content, {}, Run::hooks());
  if (!report) FAIL(report.error().describe());
  INFO(report->divergence);
  INFO(report->stopped);
  CHECK(report->divergence.empty());
  CHECK(report->stopped.empty());
  CHECK(report->warnings.empty());
  CHECK(report->reached == GlobalStep(steps));
  CHECK(report->compared == steps + 2 * fragments);  // and the seed's and the final fragments
}

}  // namespace

TEST_CASE(
    "a run's tape, with an island lost and the outer optimizer restarted, replays bit for bit") {
  const std::string sync = GENERATE(
      "", R"(,"uplink":"fp32","downlink":"bf16","merge":"mean")",
      R"(,"fragmentation":"split","published":"bf16","blend":0.25,"embeddingMerge":"rda")");
  CAPTURE(sync);
  constexpr int kSteps = 90;
  Run run(kSteps, 3, sync);
  std::stop_source stop;
  auto a = run.launch(0, 1, stop.get_token());
  auto b = run.launch(1, 1, stop.get_token());
  auto c = run.launch(2, 1, stop.get_token());
  REQUIRE(run.reach(15));
  auto newer = run.launch(0, 2, stop.get_token());  // fences the first, recovers from a peer
  REQUIRE(ends(a));
  CHECK(a.get() == ExitCode::kFenced);
  REQUIRE(run.reach(40));
  run.stop_outer();
  run.start_outer();
  for (auto* learner : {&b, &c, &newer}) {
    REQUIRE(ends(*learner));
    CHECK(learner->get() == ExitCode::kFinished);
  }
  run.stop_outer();
  const auto path = run.folder() / "outer" / "tape" / "events.tape";
  const auto content = load_tape(run.folder() / "outer");
  REQUIRE(content);
  CHECK(content->scan.run_id == kRunId);
  CHECK(content->opened.size() == 2);
  CHECK(count_restores(*content) == 1);
  whole(*content, kSteps, sync.find("split") == std::string::npos ? 4 : 16);

  // One member's weight: the first step whose bytes it decides is the first that differs.
  GlobalStep changed;
  const auto weight = mutated(path, [&](tape::Record& record) {
    auto* round = std::get_if<tape::Round>(&record);
    if (round == nullptr || round->t < GlobalStep(20) || round->members.size() < 2) return false;
    round->members[0].tokens *= 3;
    changed = round->t;
    return true;
  });
  const auto diverged = replay(weight, {}, Run::hooks());
  REQUIRE(diverged);
  const std::string at = "first divergence: global step " + std::to_string(changed.value) + ",";
  CHECK(diverged->divergence.find(at) == 0);
  CHECK(diverged->divergence.find("tokens in") != std::string::npos);
  CHECK(diverged->reached == changed);
  ReplayOptions before;
  before.until = GlobalStep(changed.value - 1);
  const auto fine = replay(weight, before, Run::hooks());
  REQUIRE(fine);
  CHECK(fine->divergence.empty());
  CHECK(differences(*content, weight).size() == 1);

  // One step's learning rate, and another's loss, which decides nothing.
  const auto change_step = [&](const std::function<void(tape::Step&)>& change) {
    return mutated(path, [&](tape::Record& record) {
      auto* batch = std::get_if<tape::Batch>(&record);
      if (batch == nullptr || batch->unit != "a-1") return false;
      for (auto& event : batch->events) {
        auto* step = std::get_if<tape::Step>(&event);
        if (step == nullptr || step->schedule_step < GlobalStep(30)) continue;
        change(*step);
        return true;
      }
      return false;
    });
  };
  const auto rate = replay(change_step([](auto& step) { step.rate_scale = 2; }), {}, Run::hooks());
  REQUIRE(rate);
  CHECK(rate->divergence.find("first divergence: global step 3") == 0);
  CHECK(rate->divergence.find("a-1 (incarnation 1") != std::string::npos);
  const auto loss = replay(change_step([](auto& step) { step.loss += 1; }), {}, Run::hooks());
  REQUIRE(loss);
  CHECK(loss->reached == GlobalStep(kSteps));
  CHECK(loss->divergence.find("the published bytes are the same, but a-1 (incarnation 1), local") ==
        0);
}

TEST_CASE("suspended and resumed, the tape goes on, and inner state left behind is on it") {
  constexpr int kSteps = 60;
  Run run(kSteps, 2, "");
  std::vector<std::future<ExitCode>> learners;
  std::stop_source stop;
  for (int i = 0; i < 2; ++i) learners.push_back(run.launch(i, 1, stop.get_token()));
  REQUIRE(run.reach(20));
  stop.request_stop();
  for (auto& learner : learners) REQUIRE(ends(learner));
  run.stop_outer();
  run.start_outer();
  std::stop_source again;
  learners.clear();
  for (int i = 0; i < 2; ++i) learners.push_back(run.launch(i, 2, again.get_token()));
  for (auto& learner : learners) {
    REQUIRE(ends(learner));
    CHECK(learner.get() == ExitCode::kFinished);
  }
  run.stop_outer();
  const auto content = load_tape(run.folder() / "outer");
  REQUIRE(content);
  CHECK(count_restores(*content) == 2);
  whole(*content, kSteps);
  const std::uint64_t steps = 2 * kSteps;
  INFO(content->scan.end);
  CHECK(content->scan.end / steps < 200);  // bytes of a learner step, settings included
}

TEST_CASE("a tape of other data or another model is refused by name") {
  Run run(12, 1, "");
  std::stop_source stop;
  auto a = run.launch(0, 1, stop.get_token());
  REQUIRE(ends(a));
  run.stop_outer();
  const auto content = load_tape(run.folder());
  CHECK_FALSE(content);  // no tape there
  const auto right = load_tape(run.folder() / "outer");
  REQUIRE(right);
  ReplayOptions other;
  other.train = (run.folder() / "other.txt").string();
  std::ofstream(other.train) << std::string(5000, 'z');
  const auto data = replay(*right, other, Run::hooks());
  REQUIRE_FALSE(data);
  CHECK(data.error().message.find("trained on data") != std::string::npos);
  const auto block =
      mutated(run.folder() / "outer" / "tape" / "events.tape", [](tape::Record& record) {
        auto* batch = std::get_if<tape::Batch>(&record);
        if (batch == nullptr) return false;
        for (auto& event : batch->events) {
          auto* step = std::get_if<tape::Step>(&event);
          if (step == nullptr) continue;
          step->runs.front().first = 256;
          return true;
        }
        return false;
      });
  const auto beyond = replay(block, {}, Run::hooks());
  REQUIRE_FALSE(beyond);
  CHECK(beyond.error().message.find("of block 0, which has 256") != std::string::npos);
  ReplayHooks hooks = Run::hooks();
  hooks.shapes = [](const config::ModelSpec&) { return learner::fake_tensors(kTensors + 1); };
  const auto model = replay(*right, {}, hooks);
  REQUIRE_FALSE(model);
  CHECK(model.error().message.find("layout") != std::string::npos);
}

}  // namespace archipelago::replay
