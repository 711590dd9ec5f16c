// A pod's process for tests, without a shell: one mode a behaviour.
//   exit N | abort | sleep | ignore-term | spawn (a grandchild in its group) | env NAME | allocate
//   MIB | spin term-exit N (SIGTERM: exits N) | serve HOST PORT [N] (healthz; silent, but alive,
//   after N answers) | message FILE TEXT N
#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

extern char** environ;

namespace {

int exit_code = 0;
void leave(int) { _exit(exit_code); }

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

int serve(const char* host, int port, int answers) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, host, &address.sin_addr);
  sockaddr generic{};
  std::memcpy(&generic, &address, sizeof address);
  if (::bind(listener, &generic, sizeof address) != 0 || ::listen(listener, 16) != 0) {
    std::perror("serve");
    return 98;
  }
  for (int served = 0;; ++served) {
    const int connection = ::accept(listener, nullptr, nullptr);
    if (served >= answers) continue;  // accepted, never answered
    char request[4096];
    (void)!::read(connection, request, sizeof request);
    const std::string reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    (void)!::write(connection, reply.data(), reply.size());
    ::close(connection);
  }
}

int allocate(std::size_t mib) {
  std::vector<std::vector<char>> blocks;
  for (std::size_t i = 0; i < mib; ++i) {
    blocks.emplace_back(std::size_t{1} << 20, 'x');
    std::printf("%zu\n", blocks.size());
  }
  return 0;
}

int spawn_grandchild() {
  if (::fork() == 0) sleep_for_ever();
  sleep_for_ever();
}

int message(const char* file, const char* text, int code) {
  const int fd = ::open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  (void)!::write(fd, text, std::strlen(text));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::string mode = args.empty() ? "" : args[0];
  const auto number = [&](std::size_t i) {
    return args.size() > i ? std::atoi(args[i].c_str()) : 0;
  };
  std::printf("mode %s\n", mode.c_str());
  if (mode == "exit") return number(1);
  if (mode == "abort") std::abort();
  if (mode == "sleep") sleep_for_ever();
  if (mode == "ignore-term") {
    std::signal(SIGTERM, SIG_IGN);
    sleep_for_ever();
  }
  if (mode == "term-exit") {
    exit_code = number(1);
    std::signal(SIGTERM, leave);
    sleep_for_ever();
  }
  if (mode == "spin") {
    for (;;) ::getppid();
  }
  if (mode == "spawn") return spawn_grandchild();
  if (mode == "env") {
    for (char** e = environ; *e != nullptr; ++e) std::printf("%s\n", *e);
    for (const auto& a : args) std::printf("arg %s\n", a.c_str());
    return 0;
  }
  if (mode == "allocate") return allocate(static_cast<std::size_t>(number(1)));
  if (mode == "serve")
    return serve(args.at(1).c_str(), number(2), args.size() > 3 ? number(3) : 1 << 30);
  if (mode == "message") return message(args.at(1).c_str(), args.at(2).c_str(), number(3));
  return 64;
}
