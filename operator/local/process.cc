#include "operator/local/process.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace archipelago::op {

namespace {

class SpawnActions {
 public:
  SpawnActions() { posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// A child inherits the blocked mask and ignored signals of the spawning thread: without this it
// never sees SIGTERM.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  posix_spawnattr_t* get() { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (auto& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> command_line(const ProcessSpec& spec) {
  std::vector<std::string> argv;
  if (!spec.launcher.empty()) {
    argv = {spec.launcher.string(), "--parent", std::to_string(::getpid())};
    for (const auto& folder : spec.cgroups) {
      argv.emplace_back("--cgroup");
      argv.push_back(folder.string());
    }
    argv.emplace_back("--");
  }
  argv.push_back(spec.executable.string());
  argv.insert(argv.end(), spec.args.begin(), spec.args.end());
  return argv;
}

}  // namespace

Result<Process> Process::spawn(const ProcessSpec& spec) {
  if (::access(spec.executable.c_str(), X_OK) != 0) {
    Error error = errno_error("execute " + spec.executable.string(), errno);
    error.kind = ErrorKind::kNotFound;
    return fail(error);
  }
  SpawnActions actions;
  SpawnAttributes attributes;
  const std::string log = spec.log_path.empty() ? "/dev/null" : spec.log_path.string();
  posix_spawn_file_actions_addopen(actions.get(), 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(actions.get(), 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0644);
  posix_spawn_file_actions_adddup2(actions.get(), 1, 2);
  // Not every library opens its descriptors close-on-exec.
  posix_spawn_file_actions_addclosefrom_np(actions.get(), 3);

  std::vector<std::string> argv = command_line(spec);
  std::vector<std::string> environment;
  environment.reserve(spec.env.size());
  for (const auto& [name, value] : spec.env) environment.push_back(name + "=" + value);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv.front().c_str(), actions.get(), attributes.get(),
                                pointers(argv).data(), pointers(environment).data());
  if (error != 0) return fail(errno_error("start " + argv.front(), error));
  return Process(pid);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), status_(std::exchange(other.status_, std::nullopt)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(status_, other.status_);
  return *this;
}

Process::~Process() {
  if (pid_ <= 0 || status_) return;
  signal(SIGKILL);
  (void)reap(true);
}

std::optional<ExitStatus> Process::reap(bool block) {
  if (status_ || pid_ <= 0) return status_;
  siginfo_t info{};
  for (;;) {
    // WNOWAIT keeps the pid reserved while the rest of the group is killed.
    const int rc =
        ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | (block ? 0 : WNOHANG));
    if (rc != 0 && errno == EINTR) continue;
    if (rc != 0) return status_ = ExitStatus{255, 0};  // not our child: nothing more can be learned
    break;
  }
  if (info.si_pid == 0) return std::nullopt;
  ::kill(-pid_, SIGKILL);
  int raw = 0;
  while (::waitpid(pid_, &raw, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(raw)) return status_ = ExitStatus{128 + WTERMSIG(raw), WTERMSIG(raw)};
  return status_ = ExitStatus{WEXITSTATUS(raw), 0};
}

std::optional<ExitStatus> Process::poll() { return reap(false); }

ExitStatus Process::wait() { return reap(true).value_or(ExitStatus{255, 0}); }

void Process::signal(int number) {
  if (pid_ > 0 && !status_) ::kill(-pid_, number);
}

}  // namespace archipelago::op
