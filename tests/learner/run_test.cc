// Learner daemons with a FakeTrainer against the real outer optimizer, over loopback.
#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "common/config/parse.h"
#include "common/http/client.h"
#include "learner/daemon.h"
#include "learner/fake_trainer.h"
#include "outer-optimizer/daemon.h"

namespace archipelago::learner {
namespace {

constexpr int kTensors = 7;  // and one vector: 8 tensors

class Run {
 public:
  explicit Run(int steps, int units = 2, const std::string& uplink = "int4",
               const std::string& cycle = R"("fragments":4,"interval":4)") {
    const auto text = dir_.path() / "train.txt";
    std::ofstream(text) << std::string(20000, 'x');
    std::ofstream(dir_.path() / "val.txt") << std::string(2000, 'y');
    spec_ =
        R"({"apiVersion":"archipelago.training/v1alpha1","kind":"DecoupledTraining","metadata":{"name":"test"},"spec":{
      "model":{"hiddenSize":32,"layers":1,"heads":4,"kvHeads":2,"intermediateSize":48,"vocabSize":256,"contextLength":16},
      "data":{"train":{"path":")" +
        text.string() + R"(","format":"text"},
              "validation":[{"name":"main","path":")" +
        (dir_.path() / "val.txt").string() + R"(","everySteps":10,"sequences":16}]},
      "inner":{"batchSize":2,"learningRate":0.02,"warmupSteps":2},
      "sync":{)" +
        cycle + R"(,"overlap":2,"quorum":1,"uplink":")" + uplink + R"(","downlink":")" + uplink +
        R"(","startTimeoutSeconds":20},
      "budget":{"globalSteps":)" +
        std::to_string(steps) + R"(},
      "outerOptimizer":{"datacenter":"a","finishedLingerSeconds":30},
      "datacenters":[{"name":"a","learnerUnits":)" +
        std::to_string(units) + "}]}}";
    std::ofstream(dir_.path() / "spec.json") << spec_;
    start_outer();
  }
  ~Run() {
    if (outer_) outer_->stop();
  }

  void start_outer() {
    const auto training = config::parse_training(spec_);
    REQUIRE(training);
    outer::Flags flags;
    flags.config = dir_.path() / "spec.json";
    flags.data_dir = dir_.path() / "outer";
    flags.listen = {"127.0.0.1", port_};
    flags.admin = {"127.0.0.1", 0};
    flags.run_id = "5b0d2c6e-6f0a-4f5e-9d55-0d6f3c1c2a10";
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
    outer_->stop();
    outer_.reset();
  }

  Flags flags(int ordinal, std::int64_t incarnation = 1) const {
    Flags flags;
    flags.config = (dir_.path() / "spec.json").string();
    flags.unit = "a-" + std::to_string(ordinal);
    flags.incarnation = incarnation;
    flags.datacenter = "a";
    flags.outer = "http://127.0.0.1:" + std::to_string(port_);
    flags.admin = "127.0.0.1:0";
    flags.run_id = "5b0d2c6e-6f0a-4f5e-9d55-0d6f3c1c2a10";
    flags.termination_log =
        (dir_.path() / (flags.unit + "-" + std::to_string(incarnation) + ".last")).string();
    return flags;
  }
  DaemonHooks hooks(int tensors = kTensors) const {
    DaemonHooks hooks;
    hooks.shapes = [tensors](const config::ModelSpec&) { return fake_tensors(tensors); };
    hooks.trainer = [tensors](const config::ModelSpec& model,
                              const config::InnerSpec&) -> Result<std::unique_ptr<Trainer>> {
      FakeTrainerOptions options;
      options.tensors = fake_tensors(tensors);
      options.context_length = model.context_length;
      options.step_time = std::chrono::milliseconds(10);
      return std::make_unique<FakeTrainer>(std::move(options));
    };
    return hooks;
  }
  std::future<ExitCode> launch(const Flags& flags, const std::stop_token& stop,
                               const DaemonHooks& hooks, const Logger& log = Logger::null()) const {
    return std::async(std::launch::async, [=] { return run_daemon(flags, hooks, stop, log); });
  }
  Logger log_of(const Flags& flags) const {
    return Logger::to_file("learner", log_path(flags).string());
  }
  std::string log_text(const Flags& flags) const {
    auto text = read_file(log_path(flags));
    return text ? *text : "";
  }
  std::future<ExitCode> launch(const Flags& flags, const std::stop_token& stop) const {
    return launch(flags, stop, hooks());
  }
  std::string last_words(const Flags& flags) const {
    auto text = read_file(flags.termination_log);
    return text ? *text : "";
  }
  // Until the global step is reached; false after a minute.
  bool reach(std::int64_t step) const {
    for (int i = 0; i < 6000; ++i) {
      if (outer_->engine().committed() >= GlobalStep(step)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  outer::Daemon& outer() { return *outer_; }
  const std::filesystem::path& folder() const { return dir_.path(); }
  std::filesystem::path log_path(const Flags& flags) const {
    return flags.termination_log + ".log";
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

}  // namespace

TEST_CASE("two learners train to the end of the budget and the model is written") {
  const std::string codec = GENERATE("fp32", "int4");
  CAPTURE(codec);
  Run run(40, 2, codec);
  std::stop_source stop;
  auto a = run.launch(run.flags(0), stop.get_token());
  auto b = run.launch(run.flags(1), stop.get_token());
  REQUIRE(ends(a));
  REQUIRE(ends(b));
  CHECK(a.get() == ExitCode::kFinished);
  CHECK(b.get() == ExitCode::kFinished);
  CHECK(run.last_words(run.flags(0)) == "the run is finished");
  CHECK(std::filesystem::exists(run.folder() / "outer" / "model" / "model.safetensors"));
}

TEST_CASE("other settings of the exchange train to the end, too") {
  // 8 tensors: only cutting them gives 16 fragments.
  const std::string sync =
      GENERATE(R"("fragments":16,"interval":16,"fragmentation":"split","published":"bf16")",
               R"("fragments":4,"interval":4,"published":"bf16","blend":0.5)",
               R"("fragments":4,"interval":4,"embeddingMerge":"rda","merge":"mean")");
  CAPTURE(sync);
  Run run(40, 2, "int4", sync);
  std::stop_source stop;
  auto a = run.launch(run.flags(0), stop.get_token());
  auto b = run.launch(run.flags(1), stop.get_token());
  REQUIRE(ends(a));
  REQUIRE(ends(b));
  CHECK(a.get() == ExitCode::kFinished);
  CHECK(b.get() == ExitCode::kFinished);
  // The loss of the published copy starts at 0.0625 and falls only when both ends cut alike.
  const auto lines = read_file(run.folder() / "outer" / "metrics.jsonl");
  REQUIRE(lines);
  const std::string key = "\"validationLoss\":";
  const std::size_t at = lines->rfind(key);
  REQUIRE(at != std::string::npos);
  CHECK(std::strtod(lines->c_str() + at + key.size(), nullptr) < 0.055);
  CHECK(std::filesystem::exists(run.folder() / "outer" / "model" / "model.safetensors"));
}

TEST_CASE("a learner that is told to stop leaves with 10, and the run goes on without it") {
  Run run(60);
  std::stop_source first, second;
  auto a = run.launch(run.flags(0), first.get_token());
  auto b = run.launch(run.flags(1), second.get_token());
  REQUIRE(run.reach(10));
  first.request_stop();
  REQUIRE(ends(a));
  CHECK(a.get() == ExitCode::kLeft);
  REQUIRE(ends(b));
  CHECK(b.get() == ExitCode::kFinished);
}

TEST_CASE("a newer incarnation fences the older, takes inner state from its peer, and finishes") {
  Run run(120);
  std::stop_source stop;
  auto a = run.launch(run.flags(0), stop.get_token());
  auto b = run.launch(run.flags(1), stop.get_token());
  REQUIRE(run.reach(10));
  auto newer = run.launch(run.flags(0, 2), stop.get_token());
  REQUIRE(ends(a));
  CHECK(a.get() == ExitCode::kFenced);
  CHECK(run.last_words(run.flags(0)).find("fenced") == 0);
  REQUIRE(ends(newer));
  REQUIRE(ends(b));
  CHECK(newer.get() == ExitCode::kFinished);
  CHECK(b.get() == ExitCode::kFinished);
}

TEST_CASE(
    "suspend and resume: the last learner leaves its inner state, the next ones start from it") {
  Run run(5000);
  std::stop_source stop;
  std::vector<Flags> before{run.flags(0), run.flags(1)}, after{run.flags(0, 2), run.flags(1, 2)};
  std::vector<std::future<ExitCode>> learners;
  for (const Flags& flags : before)
    learners.push_back(run.launch(flags, stop.get_token(), run.hooks(), run.log_of(flags)));
  REQUIRE(run.reach(10));
  stop.request_stop();
  for (auto& learner : learners) {
    REQUIRE(ends(learner));
    CHECK(learner.get() == ExitCode::kLeft);
  }
  const std::string left = run.log_text(before[0]) + run.log_text(before[1]);
  CHECK(left.find("\"result\":\"kept\"") != std::string::npos);
  run.stop_outer();  // the whole run is away
  run.start_outer();
  std::stop_source again;
  learners.clear();
  const GlobalStep at = run.outer().engine().committed();
  for (const Flags& flags : after)
    learners.push_back(run.launch(flags, again.get_token(), run.hooks(), run.log_of(flags)));
  REQUIRE(run.reach(at.value + 10));
  again.request_stop();
  for (auto& learner : learners) {
    REQUIRE(ends(learner));
    CHECK(learner.get() == ExitCode::kLeft);
  }
  const std::string back = run.log_text(after[0]) + run.log_text(after[1]);
  INFO(back);
  CHECK(back.find("\"from\":\"state on disk\",\"donor\":\"a-") != std::string::npos);
  CHECK(back.find("fresh moments") == std::string::npos);
}

TEST_CASE("learners outlive the outer optimizer") {
  Run run(80);
  std::stop_source stop;
  auto a = run.launch(run.flags(0), stop.get_token());
  auto b = run.launch(run.flags(1), stop.get_token());
  REQUIRE(run.reach(15));
  run.stop_outer();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  run.start_outer();
  REQUIRE(ends(a));
  REQUIRE(ends(b));
  CHECK(a.get() == ExitCode::kFinished);
  CHECK(b.get() == ExitCode::kFinished);
}

TEST_CASE("a lost data folder is rebuilt from what the learners hold, and the run goes on") {
  Run run(80);
  std::stop_source stop;
  auto a = run.launch(run.flags(0), stop.get_token());
  auto b = run.launch(run.flags(1), stop.get_token());
  REQUIRE(run.reach(20));
  const GlobalStep at = run.outer().engine().committed();
  run.stop_outer();
  std::filesystem::remove_all(run.folder() / "outer");
  run.start_outer();
  REQUIRE(run.reach(at.value));
  const auto status = run.outer().engine().status_text();
  CHECK(status->find("\"Rebuilt\"") != std::string::npos);
  REQUIRE(ends(a));
  REQUIRE(ends(b));
  CHECK(a.get() == ExitCode::kFinished);
  CHECK(b.get() == ExitCode::kFinished);
}

TEST_CASE("the admin port shows what the learner does") {
  Run run(100000, 1);
  std::stop_source stop;
  std::promise<int> port;
  DaemonHooks hooks = run.hooks();
  hooks.admin_ready = [&](int number) { port.set_value(number); };
  auto a = run.launch(run.flags(0), stop.get_token(), hooks);
  http::ClientOptions options;
  options.server = {"127.0.0.1", port.get_future().get()};
  http::Client client(options);
  auto health = client.request("GET", "/healthz");
  REQUIRE(health);
  CHECK(health->status == 200);
  REQUIRE(run.reach(5));
  auto status = client.request("GET", "/statusz");
  REQUIRE(status);
  CHECK(status->body.find(R"("phase":"Stepping")") != std::string::npos);
  CHECK(status->body.find(R"("unit":"a-0")") != std::string::npos);
  auto metrics = client.request("GET", "/metrics");
  REQUIRE(metrics);
  CHECK(metrics->body.find("archipelago_learner_steps_total") != std::string::npos);
  stop.request_stop();
  REQUIRE(ends(a));
  CHECK(a.get() == ExitCode::kLeft);
}

TEST_CASE("bad configuration, bad data and another layout end with their own codes") {
  Run run(100000, 1);
  std::stop_source stop;
  Flags none = run.flags(0);
  none.config = "/nonexistent/spec.json";
  CHECK(run_daemon(none, run.hooks(), stop.get_token(), Logger::null()) ==
        ExitCode::kConfigRefused);
  auto a = run.launch(run.flags(0), stop.get_token());
  REQUIRE(run.reach(2));
  auto other = run.launch(run.flags(1), stop.get_token(), run.hooks(kTensors + 1));
  REQUIRE(ends(other));
  CHECK(other.get() == ExitCode::kConfigRefused);
  CHECK(run.last_words(run.flags(1)).find("layout") != std::string::npos);
  std::filesystem::remove(run.folder() / "train.txt");
  auto dataless = run.launch(run.flags(1, 2), stop.get_token());
  REQUIRE(ends(dataless));
  CHECK(dataless.get() == ExitCode::kDataUnreadable);
  CHECK(run.last_words(run.flags(1, 2)).find("does not exist") != std::string::npos);
  stop.request_stop();
  REQUIRE(ends(a));
  CHECK(a.get() == ExitCode::kLeft);
}

}  // namespace archipelago::learner
