// `archipelago run` as a user has it: real daemons, real faults. Needs archipelago-learner
// (libtorch).
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/base/rng.h"
#include "operator/local/process.h"

using namespace archipelago;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

const fs::path kBin = ARCHIPELAGO_BIN_DIR;

class Runner {
 public:
  Runner() {
    Rng rng(1);
    const char* words[] = {"island ", "ocean ", "never ", "waits ", "for ", "another. "};
    for (const char* name : {"train.txt", "val.txt"}) {
      std::ofstream out(dir_.path() / name);
      for (int i = 0; i < 20'000; ++i) out << words[rng.below(6)];
    }
  }

  op::Process start(const std::string& budget, std::vector<std::string> more = {}) {
    op::ProcessSpec spec;
    spec.executable = kBin / "archipelago";
    spec.env = {{"PATH", "/usr/bin:/bin"}};
    spec.args = {"run",
                 (fs::path(ARCHIPELAGO_SOURCE_DIR) / "examples/one-island.yaml").string(),
                 "--plain",
                 "--output",
                 out().string(),
                 "--set",
                 "data.train.path=" + (dir_.path() / "train.txt").string(),
                 "--set",
                 "data.validation.main.path=" + (dir_.path() / "val.txt").string(),
                 "--set",
                 "budget.globalSteps=" + budget};
    spec.args.insert(spec.args.end(), more.begin(), more.end());
    spec.log_path = dir_.path() / "console.txt";
    auto process = op::Process::spawn(spec);
    REQUIRE(process);
    return std::move(*process);
  }

  [[nodiscard]] fs::path out() const { return dir_.path() / "out"; }
  [[nodiscard]] std::string console() const {
    return read_file(dir_.path() / "console.txt").value_or(std::string());
  }
  [[nodiscard]] json summary() const {
    return json::parse(read_file(out() / "summary.json").value_or(std::string()), nullptr, false);
  }
  [[nodiscard]] bool reaches(int steps) const {
    for (int i = 0; i < 600; ++i) {
      const std::string tape = read_file(out() / "metrics.jsonl").value_or(std::string());
      if (std::count(tape.begin(), tape.end(), '\n') >= steps) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }

  TempDir dir_;
};

// The pids that the events name.
std::vector<pid_t> started(const std::string& console) {
  std::vector<pid_t> out;
  const std::regex pattern("\\(process ([0-9]+)\\)");
  for (std::sregex_iterator i(console.begin(), console.end(), pattern), end; i != end; ++i)
    out.push_back(std::stoi((*i)[1]));
  return out;
}

// A line of metrics.jsonl each.
std::vector<json> rounds_of(const fs::path& folder) {
  std::vector<json> out;
  std::istringstream lines(read_file(folder / "metrics.jsonl").value_or(std::string()));
  for (std::string line; std::getline(lines, line);)
    if (auto round = json::parse(line, nullptr, false); round.is_object())
      out.push_back(std::move(round));
  return out;
}

bool stopped(pid_t pid) {
  for (int i = 0; i < 500; ++i) {
    const std::string stat =
        read_file("/proc/" + std::to_string(pid) + "/stat").value_or(std::string());
    const auto name_end = stat.rfind(") ");
    if (name_end != std::string::npos && stat.compare(name_end + 2, 1, "T") == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool all_gone(const std::vector<pid_t>& pids) {
  for (int i = 0; i < 500; ++i) {
    if (std::all_of(pids.begin(), pids.end(), [](pid_t pid) { return ::kill(pid, 0) != 0; }))
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("a run succeeds although an island and the outer optimizer are killed") {
  Runner runner;
  const fs::path chaos = runner.dir_.path() / "chaos.yaml";
  std::ofstream(chaos) << "events:\n"
                          "- {atStep: 20, action: kill, target: local-1}\n"
                          "- {atStep: 60, action: kill, target: outer-optimizer}\n";
  const std::vector<std::string> more{
      "--chaos", chaos.string(), "--set", "datacenters[0].learnerUnits=2", "--cpus", "2"};
  auto process = runner.start("200", more);
  const int code = process.wait().code;
  CAPTURE(runner.console());
  REQUIRE(code == 0);
  const json summary = runner.summary();
  CHECK(summary["phase"] == "Succeeded");
  CHECK(summary["globalStep"] == 200);
  CHECK(summary["outerOptimizer"]["incarnations"] == 2);
  CHECK(summary["goodput"].get<double>() > 0);
  REQUIRE(summary["learners"].size() == 2);
  CHECK(summary["learners"][1]["name"] == "local-1");
  CHECK(summary["learners"][1]["incarnations"] == 2);
  CHECK(summary["learners"][1]["restarts"] == 1);
  CHECK(summary["validationLoss"].get<double>() < 4);
  for (const char* file : {"report.html", "events.jsonl", "metrics.jsonl", "model/config.json",
                           "model/model.safetensors", "checkpoints"}) {
    CAPTURE(file);
    CHECK(fs::exists(runner.out() / file));
  }
  CHECK(runner.console().find("A sample of the model:") != std::string::npos);
  CHECK(all_gone(started(runner.console())));
  auto again = runner.start("200", more);
  CHECK(again.wait().code == 0);
  CHECK(runner.console().find("has ended already: Succeeded") != std::string::npos);
}

TEST_CASE("the outer optimizer's data folder is lost: the run goes on from what the islands hold") {
  Runner runner;
  auto process = runner.start("400", {"--set", "datacenters[0].learnerUnits=2", "--set",
                                      "outerOptimizer.checkpoint.everySteps=50", "--cpus", "2"});
  REQUIRE(runner.reaches(120));
  const std::regex outer_start("-outer-i1 \\(process ([0-9]+)\\)");
  const std::string console = runner.console();
  std::smatch found;
  REQUIRE(std::regex_search(console, found, outer_start));
  const pid_t outer = std::stoi(found[1]);
  fs::path data;
  for (const auto& entry : fs::directory_iterator(runner.out() / "volumes"))
    if (entry.path().filename().string().find("-outer-") != std::string::npos) data = entry.path();
  REQUIRE_FALSE(data.empty());
  // Stopped first: it does nothing more, and its next process isn't there yet.
  REQUIRE(::kill(outer, SIGSTOP) == 0);
  REQUIRE(stopped(outer));
  const auto before = rounds_of(data);
  for (const auto& entry : fs::directory_iterator(data)) fs::remove_all(entry.path());
  REQUIRE(::kill(outer, SIGKILL) == 0);

  const int code = process.wait().code;
  CAPTURE(runner.console());
  REQUIRE(code == 0);
  const json summary = runner.summary();
  CHECK(summary["phase"] == "Succeeded");
  CHECK(summary["globalStep"] == 400);
  json rebuilt;
  const json cluster =
      json::parse(read_file(runner.out() / "cluster.json").value_or(std::string()));
  for (const json& condition : cluster["training"]["status"]["conditions"])
    if (condition["type"] == "Rebuilt") rebuilt = condition;
  CAPTURE(rebuilt.dump());
  REQUIRE(rebuilt.is_object());
  CHECK(rebuilt["status"] == "True");
  CHECK(rebuilt["reason"] == "DiskLost");
  const auto after = rounds_of(data);
  REQUIRE(before.size() >= 100);
  REQUIRE(after.size() >= 100);
  // The last round may have been committed with nobody told of it yet, within one cycle.
  const auto last = before.back()["t"].get<std::int64_t>(),
             next = after[0]["t"].get<std::int64_t>();
  CAPTURE(last, next);
  CHECK(next > last - 4);
  CHECK(rebuilt["message"].get<std::string>().find("global step " + std::to_string(next - 1)) !=
        std::string::npos);
  CHECK(next <= last + 1);
  CHECK(after.back()["t"] == 400);
  // Of byte tokens, 5.5 at the start. A run that began anew, or masters put together wrongly, show.
  const auto loss = [](const json& round) { return round["loss"].get<double>(); };
  CHECK(loss(before.front()) > loss(before.back()) + 1);
  for (std::size_t i = 0; i < 40; ++i) {
    CAPTURE(i, loss(after[i]));
    CHECK(loss(after[i]) < loss(before.back()) + 0.5);
  }
  CHECK(loss(after.back()) < loss(before.back()));
  CHECK(all_gone(started(runner.console())));
}

TEST_CASE("a run starts from another's exported model, and replays") {
  Runner first;
  REQUIRE(first.start("60").wait().code == 0);
  const double trained = first.summary()["validationLoss"].get<double>();
  CHECK(trained < 4.5);  // of 5.5 at the start
  const std::string model = (first.out() / "model").string();
  const std::string command = (kBin / "archipelago").string() + " model-spec " + model + " >" +
                              (first.dir_.path() / "model.yaml").string();
  REQUIRE(std::system(command.c_str()) == 0);
  const std::string part = read_file(first.dir_.path() / "model.yaml").value_or("");
  CHECK(part.find("  hiddenSize: 64\n") != std::string::npos);
  CHECK(part.find("  initFrom: {path: " + model + "}\n") != std::string::npos);

  Runner second;
  auto process = second.start("8", {"--set", "model.initFrom={path: " + model + "}", "--set",
                                    "inner.warmupSteps=2", "--set", "inner.learningRate=1e-5"});
  const int code = process.wait().code;
  CAPTURE(second.console());
  REQUIRE(code == 0);
  CHECK(second.summary()["validationLoss"].get<double>() == Approx(trained).epsilon(0.02));
  const std::string replay = (kBin / "archipelago").string() + " replay --quiet " +
                             second.out().string() + " >" +
                             (second.dir_.path() / "replay.txt").string() + " 2>&1";
  CHECK(std::system(replay.c_str()) == 0);
  const std::string replayed = read_file(second.dir_.path() / "replay.txt").value_or("");
  CAPTURE(replayed);
  CHECK(replayed.find("every one has the tape's bytes") != std::string::npos);
}

TEST_CASE("weights of another model are refused before anything trains") {
  Runner runner;
  const std::string folder = (runner.dir_.path() / "other").string();
  auto none = runner.start("8", {"--set", "model.initFrom={path: " + folder + "}"});
  CHECK(none.wait().code == 2);
  CHECK(runner.console().find("spec.model.initFrom.path: " + folder + " is not a folder") !=
        std::string::npos);
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << R"({"model_type": "gemma"})";
  auto other = runner.start("8", {"--set", "model.initFrom={path: " + folder + "}"});
  CHECK(other.wait().code == 1);
  CHECK(runner.console().find("model_type is \"gemma\"") != std::string::npos);
}

TEST_CASE("a run that was stopped, or killed, goes on where it was") {
  Runner runner;
  auto first = runner.start("3000");
  REQUIRE(runner.reaches(30));
  first.signal(SIGINT);
  CHECK(first.wait().code == 130);
  CHECK(all_gone(started(runner.console())));
  const auto at_stop = runner.summary()["globalStep"].get<std::int64_t>();
  CHECK(at_stop >= 30);

  auto second = runner.start("3000");
  REQUIRE(runner.reaches(static_cast<int>(at_stop) + 30));
  ::kill(second.pid(), SIGKILL);
  CHECK(second.wait().signal == SIGKILL);
  CHECK(all_gone(started(runner.console())));  // nobody outlives the process that counts them

  const int budget = static_cast<int>(at_stop) + 100;
  auto refused = runner.start(std::to_string(budget));
  CHECK(refused.wait().code == 2);
  CHECK(runner.console().find("spec.budget (it may only rise)") != std::string::npos);
  auto third = runner.start("3000", {"--set", "inner.learningRate=1e-4"});
  CHECK(third.wait().code == 2);
  CHECK(runner.console().find("spec.inner") != std::string::npos);
  auto last = runner.start("3001");
  REQUIRE(runner.reaches(static_cast<int>(at_stop) + 80));
  last.signal(SIGINT);
  CHECK(last.wait().code == 130);
  CHECK(runner.summary()["globalStep"].get<std::int64_t>() > at_stop + 40);
}
