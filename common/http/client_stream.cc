#include "common/http/client_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>

namespace archipelago::http {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(200);

TimePoint now() { return SystemClock().now(); }

}  // namespace

bool ClientStream::ready(short events, int timeout_ms) const {
  pollfd entry{fd_, static_cast<short>(events), 0};
  return ::poll(&entry, 1, timeout_ms) > 0;
}

bool ClientStream::wait(short events, short* got) {
  const TimePoint idle_end = now() + state_.io_timeout;
  while (true) {
    const TimePoint t = now();
    if (cancelled_.load(std::memory_order_relaxed)) {
      state_.fault = Fault::kCancelled;
      return false;
    }
    const TimePoint end = std::min(idle_end, state_.deadline);
    if (t >= end) {
      state_.fault = Fault::kTimeout;
      return false;
    }
    const Duration left = std::min<Duration>(kSlice, end - t);
    pollfd entry{fd_, events, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
    if (n > 0) {
      *got = entry.revents;
      return true;
    }
    if (n < 0 && errno != EINTR) {
      state_.fault = Fault::kClosed;
      return false;
    }
  }
}

ssize_t ClientStream::read(char* ptr, size_t size) {
  while (begin_ == end_) {
    if (now() >= state_.deadline) {
      state_.fault = Fault::kTimeout;
      return -1;
    }
    const ssize_t n = ::recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n > 0) {
      begin_ = 0;
      end_ = static_cast<std::size_t>(n);
      state_.any_reply = true;
      state_.received += static_cast<std::uint64_t>(n);
      break;
    }
    if (n == 0) return 0;
    if (errno == EINTR) continue;
    short got = 0;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      state_.fault = cancelled_ ? Fault::kCancelled : Fault::kClosed;
      return -1;
    }
    if (!wait(POLLIN, &got)) return -1;
  }
  const std::size_t n = std::min(size, end_ - begin_);
  std::memcpy(ptr, buffer_.data() + begin_, n);
  begin_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t ClientStream::write(const char* ptr, size_t size) {
  // After an early answer the rest is pretended away, so that httplib goes on to read it.
  if (state_.early) return static_cast<ssize_t>(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::send(fd_, ptr + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
      done += static_cast<std::size_t>(n);
      state_.sent += static_cast<std::uint64_t>(n);
      if (now() < state_.deadline) continue;
      state_.fault = Fault::kTimeout;
      return -1;
    }
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
    short got = 0;
    if (full && !wait(POLLIN | POLLOUT, &got)) return -1;
    // Readable while we send: an answer, or the end of the connection, which reading will tell.
    if (!full || (got & POLLIN) != 0) {
      if (!ready(POLLIN, 0)) {
        state_.fault = Fault::kClosed;
        return -1;
      }
      state_.early = true;
      return static_cast<ssize_t>(size);
    }
  }
  return static_cast<ssize_t>(size);
}

void ClientStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void ClientStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace archipelago::http
