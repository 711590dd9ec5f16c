#pragma once
// A child process with an owner: own process group, clean signal state, closed descriptors, killed
// with its owner.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "common/base/result.h"

namespace archipelago::op {

struct ProcessSpec {
  std::filesystem::path executable;
  std::vector<std::string> args;           // without argv[0]
  std::map<std::string, std::string> env;  // the whole environment of the child
  std::filesystem::path log_path;          // stdout and stderr, appended
  std::vector<std::filesystem::path>
      cgroups;  // folders that the child enters before its first instruction
  // The launcher (launch_main.cc) enters cgroups and asks the kernel for SIGKILL when the spawning
  // thread ends. Empty: started directly; then cgroups must be empty and an orphan lives on.
  std::filesystem::path launcher;
};

struct ExitStatus {
  int code =
      0;  // exit code, 128 + signal where a signal ended it (as a container runtime reports it)
  int signal = 0;  // 0 where it exited by itself
};

// Exit codes of the launcher itself, as shells have them.
inline constexpr int kExitCannotExecute = 126;
inline constexpr int kExitNotFound = 127;

// Not thread-safe. The thread that spawns must live as long as the child should: the parent-death
// signal of Linux belongs to the thread.
class Process {
 public:
  [[nodiscard]] static Result<Process> spawn(const ProcessSpec& spec);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();  // SIGKILL to the group, then reaps

  [[nodiscard]] pid_t pid() const { return pid_; }
  // The status once it ended, without waiting; what is left of its group is killed first.
  [[nodiscard]] std::optional<ExitStatus> poll();
  [[nodiscard]] ExitStatus wait();
  // To the whole group; no effect after the end.
  void signal(int number);

 private:
  Process(pid_t pid) : pid_(pid) {}
  std::optional<ExitStatus> reap(bool block);

  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
};

}  // namespace archipelago::op
