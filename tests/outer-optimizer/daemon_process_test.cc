// The program itself: exit codes, termination message, SIGKILL in the middle of a run.
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/outer-optimizer/daemon_fixture.h"

extern char** environ;

namespace archipelago::outer {
namespace {

constexpr const char* kSpec = R"(
apiVersion: archipelago.training/v1alpha1
kind: DecoupledTraining
metadata: {name: daemon-test}
spec:
  data: {train: {path: train.txt, format: text}}
  inner: {warmupSteps: 1}
  sync: {fragments: 2, interval: 2, overlap: 1, quorum: 1, startUnits: 1}
  budget: {globalSteps: 100}
  outerOptimizer: {checkpoint: {everySteps: 3, keep: 2}, finishedLingerSeconds: 0}
  datacenters: [{name: dc, learnerUnits: 2}]
)";

// The program with its output in a file; killed when its owner goes.
class Process {
 public:
  Process(const std::filesystem::path& folder, std::vector<std::string> extra,
          const std::string& spec = kSpec)
      : log_(folder / "log"), termination_(folder / "termination") {
    std::ofstream(folder / "spec.yaml") << spec;
    std::filesystem::remove(log_);
    std::vector<std::string> args{std::string(ARCHIPELAGO_BIN_DIR) + "/archipelago-outer-optimizer",
                                  "--config",
                                  (folder / "spec.yaml").string(),
                                  "--data-dir",
                                  (folder / "data").string(),
                                  "--run-id",
                                  kRunId,
                                  "--admin",
                                  "127.0.0.1:0"};
    // A flag goes before the environment, which one test is about.
    if (std::getenv("ARCHIPELAGO_TERMINATION_LOG") == nullptr)
      args.insert(args.end(), {"--termination-log", termination_.string()});
    args.insert(args.end(), extra.begin(), extra.end());
    std::vector<char*> argv;
    for (auto& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    if (::posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), environ) != 0) pid_ = -1;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Process() {
    if (pid_ > 0) end(SIGKILL);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int end(int signal) {
    ::kill(pid_, signal);
    return wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // From the line that says so.
  int port(const char* which = "port") {
    const TimePoint limit = SystemClock().now() + seconds(60);
    while (SystemClock().now() < limit) {
      std::ifstream in(log_);
      for (std::string line; std::getline(in, line);) {
        const auto json = nlohmann::json::parse(line, nullptr, false);
        if (json.is_object() && json.value("msg", "") == "serving") return json.value(which, -1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return -1;
  }
  [[nodiscard]] std::string last_words() const { return read_file(termination_).value_or(""); }

 private:
  std::filesystem::path log_;
  std::filesystem::path termination_;
  pid_t pid_ = -1;
};

TEST_CASE("exit codes and last words") {
  const TempDir folder;
  {
    Process process(folder.path(), {"--listen", "127.0.0.1:0"},
                    std::string(kSpec) + "  surprise: 1\n");
    CHECK(process.wait() == 12);
    CHECK(process.last_words().find("surprise") != std::string::npos);
  }
  {
    Process process(folder.path(), {"--listen", "nonsense"});
    CHECK(process.wait() == 12);
    CHECK(process.last_words().find("nonsense") != std::string::npos);
  }
  {
    const auto path = folder.path() / "from-environment";
    ::setenv("ARCHIPELAGO_TERMINATION_LOG", path.c_str(), 1);
    Process process(folder.path(), {"--listen", "nonsense"});
    ::unsetenv("ARCHIPELAGO_TERMINATION_LOG");
    CHECK(process.wait() == 12);
    CHECK(read_file(path).value_or("").find("nonsense") != std::string::npos);
  }
  {
    Process process(folder.path(), {"--unknown-flag"});
    CHECK(process.wait() == 12);
  }
  Process process(folder.path(), {"--listen", "127.0.0.1:0"});
  const int port = process.port();
  REQUIRE(port > 0);
  {
    const TempDir other;
    Process second(other.path(), {"--listen", "127.0.0.1:" + std::to_string(port)});
    CHECK(second.wait() == 1);
    CHECK(second.last_words().find(std::to_string(port)) != std::string::npos);
  }
  CHECK(process.end(SIGTERM) == 10);
}

TEST_CASE("killed again and again in mid-run, it comes back with what was published") {
  const TempDir folder;
  std::int64_t committed = 0;
  std::vector<std::byte> published[2];
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    Process process(folder.path(), {"--listen", "127.0.0.1:0"});
    const int port = process.port();
    REQUIRE(port > 0);
    FakeLearner learner(port, "dc-0");
    if (round == 0) {
      REQUIRE(learner.hello());
      REQUIRE(learner.seed());
    } else {
      for (std::int32_t p = 0; p < 2; ++p) CHECK(learner.fetch(p)->payload == published[p]);
      REQUIRE(learner.progress());
      CHECK(learner.last.committed == GlobalStep(committed));
      CHECK(learner.last.epoch == round + 1);
    }
    learner.run_until(committed + 3 + round);
    committed = learner.last.committed.value;
    for (std::int32_t p = 0; p < 2; ++p) published[p] = learner.fetch(p)->payload;
    CHECK(process.end(SIGKILL) == 128 + SIGKILL);
  }
}

TEST_CASE("quorum and budget change in a live process, and SIGKILL forgets neither") {
  const TempDir folder;
  std::string spec = kSpec;
  const auto set = [&](const std::string& from, const std::string& to) {
    spec.replace(spec.find(from), from.size(), to);
  };
  set("quorum: 1", "quorum: 2");
  set("globalSteps: 100", "globalSteps: 3");
  std::vector<std::byte> published[2];
  {
    Process process(folder.path(), {"--listen", "127.0.0.1:0"}, spec);
    const int port = process.port();
    REQUIRE(port > 0);
    FakeLearner learner(port, "dc-0");
    REQUIRE(learner.hello());
    REQUIRE(learner.seed());
    const std::string body =
        R"({"generation":2,"quorum":1,"grace":{"rule":"steps","steps":1.5,"fraction":0.8},)"
        R"("budget":{"globalSteps":7}})";
    REQUIRE(learner.client().request("PUT", "/v1/settings", body)->status == 200);
    learner.run_until(5);  // beyond the budget of its spec, with one unit of two
    for (std::int32_t p = 0; p < 2; ++p) published[p] = learner.fetch(p)->payload;
    CHECK(process.end(SIGKILL) == 128 + SIGKILL);
  }
  Process process(folder.path(), {"--listen", "127.0.0.1:0"}, spec);
  const int port = process.port();
  REQUIRE(port > 0);
  FakeLearner learner(port, "dc-0");
  for (std::int32_t p = 0; p < 2; ++p) CHECK(learner.fetch(p)->payload == published[p]);
  REQUIRE(learner.progress());
  CHECK(learner.last.committed == GlobalStep(5));
  CHECK(learner.last.budget == GlobalStep(7));
  const auto status = nlohmann::json::parse(learner.client().request("GET", "/v1/status")->body);
  CHECK(status["settingsGeneration"] == 2);
  CHECK(status["settings"]["quorum"] == 1);
  learner.run_until(7);
  CHECK(process.wait() == 0);
}

TEST_CASE("serve-model needs a folder with a model, nothing else, and ends on SIGTERM") {
  const TempDir folder;
  {
    Process process(folder.path(), {"--serve-model"});
    CHECK(process.wait() == 12);
    CHECK(process.last_words().find("neither a model nor a checkpoint") != std::string::npos);
  }
  {
    Process process(folder.path(), {"--listen", "127.0.0.1:0"});
    const int port = process.port();
    REQUIRE(port > 0);
    FakeLearner learner(port, "dc-0");
    REQUIRE(learner.hello());
    REQUIRE(learner.seed());
    REQUIRE(learner.progress());
    CHECK(process.end(SIGTERM) == 10);
  }
  Process process(folder.path(), {"--serve-model"});
  const int port = process.port("admin_port");
  REQUIRE(port > 0);
  FakeLearner reader(port, "reader");
  const auto reply = reader.client().request("GET", "/v1/model/model.safetensors?step=0");
  REQUIRE(reply);
  CHECK(reply->status == 200);
  CHECK(reply->body.size() > 4 * 2570);
  CHECK(process.end(SIGTERM) == 10);
}

}  // namespace
}  // namespace archipelago::outer
