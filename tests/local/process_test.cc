#include "operator/local/process.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "operator/local/cgroup.h"

using namespace archipelago;
using namespace archipelago::op;

namespace {

const std::string kBin = ARCHIPELAGO_BIN_DIR;

ProcessSpec child(const TempDir& dir, std::vector<std::string> args) {
  ProcessSpec spec;
  spec.executable = kBin + "/archipelago_test_child";
  spec.launcher = kBin + "/archipelago-launch";
  spec.args = std::move(args);
  spec.log_path = dir.path() / "log";
  return spec;
}

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool log_has(const TempDir& dir, const std::string& text) {
  return eventually([&] {
    auto log = read_file(dir.path() / "log");
    return log && log->find(text) != std::string::npos;
  });
}

// 'Z' once it ended and waits for its parent, ' ' when there is no such process.
char state_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const auto end = text.rfind(')');
  return end == std::string::npos ? ' ' : text[end + 2];
}

pid_t child_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                   "/children");
  pid_t found = 0;
  in >> found;
  return found;
}

}  // namespace

TEST_CASE("exit codes and signals are told apart") {
  TempDir dir;
  auto ended = Process::spawn(child(dir, {"exit", "13"}));
  REQUIRE(ended);
  ExitStatus status = ended->wait();
  CHECK(status.code == 13);
  CHECK(status.signal == 0);
  auto aborted = Process::spawn(child(dir, {"abort"}));
  REQUIRE(aborted);
  status = aborted->wait();
  CHECK(status.code == 128 + SIGABRT);
  CHECK(status.signal == SIGABRT);
  CHECK(log_has(dir, "mode exit"));
}

TEST_CASE("a child of a thread with blocked and ignored signals still gets them") {
  TempDir dir;
  sigset_t set;
  sigset_t old;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  std::signal(SIGPIPE, SIG_IGN);
  auto process = Process::spawn(child(dir, {"sleep"}));
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  REQUIRE(process);
  REQUIRE(log_has(dir, "mode sleep"));
  std::ifstream in("/proc/" + std::to_string(process->pid()) + "/status");
  std::string line;
  int seen = 0;
  while (std::getline(in, line)) {
    if (!line.starts_with("SigBlk:") && !line.starts_with("SigIgn:")) continue;
    ++seen;
    // Signals 32 and 33 are the C library's own.
    CHECK((std::stoull(line.substr(8), nullptr, 16) & 0x7fffffffULL) == 0);
  }
  CHECK(seen == 2);
  process->signal(SIGTERM);
  CHECK(process->wait().signal == SIGTERM);
}

TEST_CASE("the whole group ends with its first process, and with its owner") {
  TempDir dir;
  pid_t grandchild = 0;
  {
    auto process = Process::spawn(child(dir, {"spawn"}));
    REQUIRE(process);
    REQUIRE(eventually([&] { return (grandchild = child_of(process->pid())) > 0; }));
    SECTION("first process killed") {
      ::kill(process->pid(), SIGKILL);
      CHECK(process->wait().signal == SIGKILL);
    }
    SECTION("owner goes") {}
  }
  CHECK(eventually([&] { return state_of(grandchild) == ' ' || state_of(grandchild) == 'Z'; }));
}

TEST_CASE("a child dies with the thread that spawned it") {
  TempDir dir;
  pid_t pid = 0;
  std::optional<Process> kept;
  std::thread([&] {
    auto process = Process::spawn(child(dir, {"ignore-term"}));
    if (!process) return;
    kept.emplace(std::move(*process));
    pid = kept->pid();
    (void)log_has(dir, "mode ignore-term");
  }).join();
  REQUIRE(kept);
  CHECK(kept->wait().signal == SIGKILL);
}

TEST_CASE("stop and continue reach the group") {
  TempDir dir;
  auto process = Process::spawn(child(dir, {"sleep"}));
  REQUIRE(process);
  REQUIRE(log_has(dir, "mode sleep"));
  process->signal(SIGSTOP);
  CHECK(eventually([&] { return state_of(process->pid()) == 'T'; }));
  process->signal(SIGCONT);
  CHECK(eventually([&] { return state_of(process->pid()) == 'S'; }));
  CHECK_FALSE(process->poll());
}

TEST_CASE("a missing program and a missing group are errors with a name") {
  TempDir dir;
  ProcessSpec spec = child(dir, {});
  spec.executable = "/nonexistent/program";
  auto missing = Process::spawn(spec);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message.find("/nonexistent/program") != std::string::npos);
  spec = child(dir, {"exit", "0"});
  spec.cgroups = {"/nonexistent/group"};
  auto outside = Process::spawn(spec);
  REQUIRE(outside);
  CHECK(outside->wait().code == kExitCannotExecute);
  CHECK(log_has(dir, "/nonexistent/group"));
}

TEST_CASE("a CPU quota holds its process", "[cgroup]") {
  CgroupManager manager;
  if (!manager.has_cpu()) {
    WARN("skipped: no CPU quota here: " << manager.complaint());
    return;
  }
  TempDir dir;
  auto group = manager.create("quota", {.cpu = 0.2, .memory_bytes = 0});
  REQUIRE(group);
  ProcessSpec spec = child(dir, {"spin"});
  spec.cgroups = group->folders();
  auto process = Process::spawn(spec);
  REQUIRE(process);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  std::ifstream in("/proc/" + std::to_string(process->pid()) + "/stat");
  std::string text;
  std::getline(in, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skip;
  for (int i = 0; i < 11; ++i) fields >> skip;
  double user_ticks = 0;
  fields >> user_ticks;
  // An upper bound holds however busy the machine is.
  CHECK(user_ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) < 0.5);
  CHECK(group->set_cpu(0.05));
  const auto folder = group->folders().front();
  process->signal(SIGKILL);
  (void)process->wait();
  *group = Cgroup();
}

TEST_CASE("a process above its memory limit is seen as killed for memory", "[cgroup]") {
  CgroupManager manager;
  if (!manager.has_memory()) {
    WARN("skipped: no memory limit here: " << manager.complaint());
    return;
  }
  TempDir dir;
  auto group = manager.create("memory", {.cpu = 0, .memory_bytes = 32 << 20});
  REQUIRE(group);
  ProcessSpec spec = child(dir, {"allocate", "256"});
  spec.cgroups = group->folders();
  auto process = Process::spawn(spec);
  REQUIRE(process);
  CHECK(process->wait().signal == SIGKILL);
  CHECK(group->oom_killed());
}

TEST_CASE("version 2 groups are written as the kernel reads them") {
  TempDir dir;
  std::ofstream(dir.path() / "cgroup.controllers") << "cpu memory";
  CgroupManager manager(dir.path());
  // The probe can't succeed in a plain folder: there is no cpu.max in a new one.
  CHECK_FALSE(manager.has_cpu());
  CHECK(manager.complaint().find("cpu.max") != std::string::npos);
  CgroupManager none(dir.path() / "absent");
  CHECK_FALSE(none.complaint().empty());
  auto group = none.create("a", {.cpu = 1, .memory_bytes = 1 << 20});
  REQUIRE(group);
  CHECK(group->folders().empty());
  CHECK(group->set_cpu(1).error().kind == ErrorKind::kUnsupported);
}
