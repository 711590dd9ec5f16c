#pragma once
// A peer that sends what it likes: plain bytes over a loopback socket, every wait bounded.
#include <arpa/inet.h>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/files.h"

namespace archipelago::http {

class RawSocket {
 public:
  explicit RawSocket(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  [[nodiscard]] bool connected() const { return connected_; }

  // False when the peer no longer takes bytes (closed, reset, or full for a second).
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(n));
      } else if (errno == EAGAIN) {
        pollfd entry{fd_.get(), POLLOUT, 0};
        if (::poll(&entry, 1, 1000) <= 0) return false;
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  // Everything until the peer closes, `until` appears, or the time is over.
  std::string receive(double limit_seconds = 20, std::string_view until = {}) {
    const TimePoint end = SystemClock().now() + seconds(limit_seconds);
    std::string out;
    char piece[4096];
    while (SystemClock().now() < end) {
      pollfd entry{fd_.get(), POLLIN, 0};
      if (::poll(&entry, 1, 50) <= 0) continue;
      const ssize_t n = ::recv(fd_.get(), piece, sizeof piece, MSG_DONTWAIT);
      if (n == 0) break;
      if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) continue;
        reset_ = true;
        break;
      }
      out.append(piece, static_cast<std::size_t>(n));
      if (!until.empty() && out.find(until) != std::string::npos) return out;
    }
    closed_ = SystemClock().now() < end;
    return out;
  }
  [[nodiscard]] bool closed() const { return closed_; }  // the last receive saw the end

  void reset() {  // RST instead of FIN
    const linger hard{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    fd_ = UniqueFd();
  }

 private:
  UniqueFd fd_;
  bool connected_ = false;
  bool closed_ = false;
  bool reset_ = false;
};

inline int status_in(std::string_view reply) {
  if (reply.size() < 12 || !reply.starts_with("HTTP/1.")) return 0;
  return (reply[9] - '0') * 100 + (reply[10] - '0') * 10 + (reply[11] - '0');
}

}  // namespace archipelago::http
