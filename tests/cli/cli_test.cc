#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "cli/event_log.h"
#include "cli/run_folder.h"
#include "cli/spec_file.h"
#include "common/base/files.h"
#include "operator/local/process.h"

using namespace archipelago;
using namespace archipelago::cli;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const fs::path kExample = fs::path(ARCHIPELAGO_SOURCE_DIR) / "examples/one-island.yaml";

config::DecoupledTraining example(const std::vector<std::string>& sets = {}) {
  auto loaded = load_spec(kExample, sets);
  if (!loaded) FAIL(loaded.error().message);
  return *loaded;
}

struct Ran {
  int code = 0;
  std::string output;
};

Ran archipelago_program(const TempDir& dir, std::vector<std::string> args) {
  op::ProcessSpec spec;
  spec.executable = fs::path(ARCHIPELAGO_BIN_DIR) / "archipelago";
  spec.args = std::move(args);
  spec.log_path = dir.path() / "output.txt";
  fs::remove(spec.log_path);
  auto process = op::Process::spawn(spec);
  REQUIRE(process);
  const int code = process->wait().code;
  return {code, read_file(spec.log_path).value_or(std::string())};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("data that is missing or too short is named before anything starts") {
  TempDir dir;
  auto training = example();
  training.spec.data.train.path = (dir.path() / "absent.txt").string();
  training.spec.data.validation[0].path = (dir.path() / "short.txt").string();
  std::ofstream(dir.path() / "short.txt")
      << std::string(64, 'x');  // a sequence is contextLength + 1 = 65
  auto problems = check_machine(training, dir.path());
  REQUIRE(problems.size() == 2);
  CHECK(has(problems[0], "spec.data.train.path"));
  CHECK(has(problems[0], "absent.txt"));
  CHECK(has(problems[1], "64 tokens, shorter than one sequence of 65"));
  std::ofstream(dir.path() / "absent.txt") << std::string(65, 'x');
  std::ofstream(dir.path() / "short.txt") << std::string(65, 'x');
  CHECK(check_machine(training, dir.path()).empty());
  training.spec.model.hidden_size = 1 << 20;  // petabytes of state
  training.spec.model.layers = 1000;
  problems = check_machine(training, dir.path() / "not/yet/there");
  REQUIRE(problems.size() == 1);
  CHECK(has(problems[0], "no space"));
}

TEST_CASE("a run goes on only with the settings that it began with") {
  const auto before = example();
  CHECK(immutable_differences(before.spec, before.spec).empty());
  CHECK(immutable_differences(
            before.spec,
            example({"sync.quorum=1", "budget.globalSteps=100", "restart.stallSeconds=9"}).spec)
            .empty());
  CHECK(immutable_differences(before.spec, example({"inner.learningRate=0.1"}).spec) ==
        std::vector<std::string>{"spec.inner"});
  CHECK(immutable_differences(before.spec, example({"budget.globalSteps=10"}).spec).size() == 1);
}

TEST_CASE("a run's folder is locked, and remembers the resource") {
  TempDir dir;
  {
    auto folder = RunFolder::open(dir.path() / "run");
    REQUIRE(folder);
    CHECK_FALSE(folder->load_training()->has_value());
    CHECK(RunFolder::open(dir.path() / "run").error().kind == ErrorKind::kConflict);
    const json training = {{"metadata", {{"uid", "u1"}}}, {"status", {{"phase", "Running"}}}};
    REQUIRE(folder->save(training, {{"version", 1}}));
    fs::create_directories(folder->file("volumes/claim/model"));
    std::ofstream(folder->file("volumes/claim/model/config.json")) << "{}";
    folder->link_claim("claim");
    std::ofstream(folder->file("volumes/claim/metrics.jsonl")) << "line\n";
    CHECK(*read_file(folder->file("metrics.jsonl")) == "line\n");
    CHECK(folder->copy_model("claim"));
    CHECK(fs::exists(folder->file("model/config.json")));
    CHECK_FALSE(folder->copy_model("other"));
  }
  auto again = RunFolder::open(dir.path() / "run");
  REQUIRE(again);
  CHECK((*again->load_training())->at("status").at("phase") == "Running");
  std::ofstream(dir.path() / "run/cluster.json") << "{\"torn";
  CHECK(again->load_training().error().kind == ErrorKind::kCorrupt);
}

TEST_CASE("events are kept over sessions") {
  TempDir dir;
  const SystemClock clock;
  const std::string file = (dir.path() / "events.jsonl").string();
  {
    EventLog log(file, clock, 0, nullptr);
    op::EventRecord event;
    event.kind = op::Kind::kPod;
    event.name = "r-a-0-i1";
    event.unit = "a-0";
    event.reason = "Exited";
    event.message = "bad bytes \xff";
    log.add(event);
    log.chaos("a-0", "kill a-0");
  }
  EventLog log(file, clock, 100, nullptr);
  CHECK(log.now() >= 100);
  const auto all = log.all();
  REQUIRE(all.size() == 2);
  CHECK(all[1].chaos);
  CHECK(has(all[0].text, "r-a-0-i1: bad bytes"));
  CHECK(has(log.last(1)[0], "kill a-0"));
}

TEST_CASE("the program refuses bad input with one clear text and exit code 2") {
  TempDir dir;
  const std::string spec = kExample.string();
  CHECK(archipelago_program(dir, {"validate", spec}).code == 0);
  Ran bad = archipelago_program(
      dir, {"validate", spec, "--set", "sync.overlap=99", "--set", "model.layers=-1"});
  CHECK(bad.code == 2);
  CHECK(has(bad.output, "spec.sync.overlap"));
  CHECK(has(bad.output, "spec.model.layers"));
  CHECK(archipelago_program(dir, {"validate", "absent.yaml"}).code == 2);
  CHECK(archipelago_program(dir, {"frobnicate"}).code == 2);
  const fs::path chaos = dir.path() / "chaos.yaml";
  std::ofstream(chaos)
      << "events:\n- {atStep: 1, action: explode}\n- {atStep: -2, action: kill, target: local-0}\n";
  bad = archipelago_program(
      dir, {"run", spec, "--chaos", chaos.string(), "--output", (dir.path() / "out").string()});
  CHECK(bad.code == 2);
  CHECK(has(bad.output, "chaos.events[0].action"));
  CHECK(has(bad.output, "chaos.events[1].atStep"));
  bad = archipelago_program(dir, {"run", spec, "--set", "data.train.path=/nowhere/x", "--output",
                                  (dir.path() / "out").string()});
  CHECK(bad.code == 2);
  CHECK(has(bad.output, "/nowhere/x"));
  CHECK_FALSE(fs::exists(dir.path() / "out"));
}

TEST_CASE("plan prints the objects of a run") {
  TempDir dir;
  const Ran ran = archipelago_program(dir, {"plan", kExample.string()});
  REQUIRE(ran.code == 0);
  const json list = json::parse(ran.output, nullptr, false);
  REQUIRE(list.is_object());
  std::map<std::string, int> kinds;
  for (const auto& item : list["items"]) ++kinds[item["kind"].get<std::string>()];
  CHECK(kinds == std::map<std::string, int>{
                     {"ConfigMap", 1}, {"PersistentVolumeClaim", 1}, {"Pod", 2}, {"Service", 1}});
}
