// archipelago-launch --parent PID [--cgroup FOLDER]... -- COMMAND [ARGS]: what must happen in the
// child between spawn and its first instruction, where posix_spawn has no hook: die with the
// parent, enter cgroups, then become the command.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>

namespace {

// A pod outside its quota would be worse than none: its speed would be nobody's figure.
void enter_cgroup(const char* folder) {
  const std::string file = std::string(folder) + "/cgroup.procs";
  const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, "0", 1) != 1) {
    std::fprintf(stderr, "archipelago-launch: enter cgroup %s: %s\n", folder, std::strerror(errno));
    std::exit(126);
  }
  ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  int i = 1;
  for (; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
    const bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--parent") == 0) {
      const pid_t parent = static_cast<pid_t>(std::strtol(argv[++i], nullptr, 10));
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) return 126;  // it died before the request took effect
    } else if (has_value && std::strcmp(argv[i], "--cgroup") == 0) {
      enter_cgroup(argv[++i]);
    } else {
      std::fprintf(stderr, "archipelago-launch: unknown argument %s\n", argv[i]);
      return 126;
    }
  }
  if (i + 1 >= argc) {
    std::fprintf(stderr,
                 "usage: archipelago-launch --parent PID [--cgroup FOLDER]... -- COMMAND [ARGS]\n");
    return 126;
  }
  ::execv(argv[i + 1], argv + i + 1);
  const int error = errno;
  std::fprintf(stderr, "archipelago-launch: execute %s: %s\n", argv[i + 1], std::strerror(error));
  return error == ENOENT ? 127 : 126;
}
