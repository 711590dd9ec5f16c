#include "common/http/server_conn.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>

namespace archipelago::http {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(200);  // how soon an abort is seen
constexpr Duration kRateGrace = std::chrono::seconds(5);

TimePoint now() { return SystemClock().now(); }

}  // namespace

Status PeerWait::wait(short events) {
  while (true) {
    if (abort_->load(std::memory_order_relaxed))
      return fail(ErrorKind::kCancelled, "server is stopping");
    const TimePoint start = now();
    if (start >= deadline_) {
      timed_out_ = true;
      return fail(ErrorKind::kTimeout, "the request's total time is over");
    }
    const double needed = static_cast<double>(min_rate_) * to_seconds(waited_ - kRateGrace);
    if (waited_ > kRateGrace && static_cast<double>(bytes_) < needed) {
      timed_out_ = true;
      return fail(ErrorKind::kTimeout,
                  "slower than " + std::to_string(min_rate_) + " bytes a second");
    }
    const Duration left = std::min<Duration>(kSlice, deadline_ - start);
    pollfd entry{fd_, events, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
    waited_ += now() - start;
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return fail(errno_error("poll", errno));
  }
}

ConnBody::ConnBody(Conn& conn, std::uint64_t size, PeerWait wait, Counters& counters)
    : conn_(conn), size_(size), remaining_(size), wait_(wait), counters_(counters) {}

Result<std::size_t> ConnBody::read(std::span<std::byte> into) {
  const std::size_t want =
      static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), remaining_));
  if (want == 0) return std::size_t{0};
  if (!conn_.in.empty()) {
    const std::size_t n = std::min(want, conn_.in.size());
    std::memcpy(into.data(), conn_.in.data(), n);
    conn_.in.erase(0, n);
    remaining_ -= n;
    return n;
  }
  while (true) {
    const ssize_t n = ::recv(conn_.fd.get(), into.data(), want, MSG_DONTWAIT);
    if (n > 0) {
      const auto got = static_cast<std::size_t>(n);
      remaining_ -= got;
      wait_.moved(got);
      counters_.bytes_in += got;
      return got;
    }
    if (n == 0) return fail(ErrorKind::kUnavailable, "the peer closed the connection in mid-body");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(errno_error("recv", errno));
    if (auto waited = wait_.wait(POLLIN); !waited) {
      if (wait_.timed_out()) ++counters_.timeouts;
      return fail(waited.error());
    }
  }
}

ssize_t ConnStream::read(char* ptr, size_t size) {
  const std::size_t n = std::min(size, head_.size() - at_);
  if (n == 0) return -1;
  std::memcpy(ptr, head_.data() + at_, n);
  at_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t ConnStream::write(const char* ptr, size_t size) {
  std::size_t done = 0;
  while (done < size && !failed_) {
    const ssize_t n = ::send(conn_.fd.get(), ptr + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
      wait_.moved(static_cast<std::size_t>(n));
      counters_.bytes_out += static_cast<std::uint64_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_.wait(POLLOUT)) failed_ = true;
    } else if (errno != EINTR) {
      failed_ = true;
    }
  }
  if (failed_ && wait_.timed_out()) ++counters_.timeouts;
  return failed_ ? -1 : static_cast<ssize_t>(size);
}

void ConnStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = conn_.remote;
  port = 0;
}

void ConnStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void count_reply(int status, Counters& counters) {
  if (status >= 500) {
    ++counters.replies_5xx;
  } else if (status >= 400) {
    ++counters.replies_4xx;
  }
}

void send_short_reply(Conn& conn, const Reply& reply, Counters& counters) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) +
                     " Refused\r\nContent-Type: " + reply.content_type +
                     "\r\nContent-Length: " + std::to_string(reply.body.size()) +
                     "\r\nConnection: close\r\n";
  for (const auto& [name, value] : reply.headers) text += name + ": " + value + "\r\n";
  text += "\r\n" + reply.body;
  const ssize_t n = ::send(conn.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n > 0) counters.bytes_out += static_cast<std::uint64_t>(n);
  count_reply(reply.status, counters);
}

}  // namespace archipelago::http
