#include "common/http/client_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/http/tls.h"

namespace archipelago::http {
namespace {

constexpr Duration kSlice = std::chrono::milliseconds(200);
constexpr std::size_t kPiece = std::size_t{1} << 20;  // of one SSL_write

TimePoint now() { return SystemClock().now(); }

}  // namespace

bool ClientStream::ready(short events, int timeout_ms) const {
  pollfd entry{fd_, static_cast<short>(events), 0};
  return ::poll(&entry, 1, timeout_ms) > 0;
}

bool ClientStream::wait(short events, short* got) {
  return wait(events, got, now() + state_.io_timeout);
}

bool ClientStream::wait(short events, short* got, TimePoint limit) {
  while (true) {
    const TimePoint t = now();
    if (cancelled_.load(std::memory_order_relaxed)) {
      state_.fault = Fault::kCancelled;
      return false;
    }
    const TimePoint end = std::min(limit, state_.deadline);
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

void ClientStream::failed() {
  if (cancelled_) {
    state_.fault = Fault::kCancelled;
  } else if (session_ != nullptr && ERR_peek_error() != 0) {
    state_.fault = Fault::kTls;
    state_.tls = tls_error(session_, tls_name_);
  } else if (state_.fault == Fault::kNone) {
    state_.fault = Fault::kClosed;
  }
}

ClientStream::Try ClientStream::tls_result(int returned) {
  if (returned > 0) return {Try::Kind::kMoved, static_cast<std::size_t>(returned)};
  switch (SSL_get_error(session_, returned)) {
    case SSL_ERROR_WANT_READ:
      return {Try::Kind::kBlocked, 0, POLLIN};
    case SSL_ERROR_WANT_WRITE:
      return {Try::Kind::kBlocked, 0, POLLOUT};
    case SSL_ERROR_ZERO_RETURN:
      return {Try::Kind::kEnd};
    default:
      return {Try::Kind::kFailed};
  }
}

ClientStream::Try ClientStream::try_receive() {
  if (session_ != nullptr) {
    ERR_clear_error();
    return tls_result(SSL_read(session_, buffer_.data(), static_cast<int>(buffer_.size())));
  }
  const ssize_t n = ::recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (n > 0) return {Try::Kind::kMoved, static_cast<std::size_t>(n)};
  if (n == 0) return {Try::Kind::kEnd};
  if (errno == EINTR) return {Try::Kind::kMoved};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {Try::Kind::kBlocked, 0, POLLIN};
  return {Try::Kind::kFailed};
}

ClientStream::Try ClientStream::try_send(const char* ptr, std::size_t size) {
  if (session_ != nullptr) {
    ERR_clear_error();
    return tls_result(SSL_write(session_, ptr, static_cast<int>(std::min(size, kPiece))));
  }
  const ssize_t n = ::send(fd_, ptr, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) return {Try::Kind::kMoved, static_cast<std::size_t>(n)};
  if (errno == EINTR) return {Try::Kind::kMoved};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {Try::Kind::kBlocked, 0, POLLOUT};
  return {Try::Kind::kFailed};
}

ClientStream::Ahead ClientStream::look_ahead() {
  if (session_ == nullptr) return ready(POLLIN, 0) ? Ahead::kBytes : Ahead::kNothing;
  ERR_clear_error();
  char byte = 0;
  switch (tls_result(SSL_peek(session_, &byte, 1)).kind) {
    case Try::Kind::kMoved:
      return Ahead::kBytes;
    case Try::Kind::kBlocked:
      return Ahead::kNothing;
    case Try::Kind::kEnd:
      return Ahead::kEnd;
    case Try::Kind::kFailed:
      break;
  }
  return Ahead::kFailed;
}

bool ClientStream::handshake(Duration limit) {
  const TimePoint end = now() + limit;
  while (true) {
    ERR_clear_error();
    const Try step = tls_result(SSL_connect(session_));
    if (step.kind == Try::Kind::kMoved) return true;
    if (step.kind != Try::Kind::kBlocked) {
      failed();
      if (state_.fault == Fault::kClosed) {
        state_.fault = Fault::kTls;
        state_.tls = Error{ErrorKind::kUnavailable, "connection lost in the TLS handshake"};
      }
      return false;
    }
    short got = 0;
    if (!wait(step.waits_for, &got, end)) return false;
  }
}

bool ClientStream::is_readable() const {
  return begin_ < end_ || (session_ != nullptr && SSL_pending(session_) > 0) || ready(POLLIN, 0);
}

bool ClientStream::leftover() const {
  return begin_ < end_ || (session_ != nullptr && SSL_pending(session_) > 0);
}

bool ClientStream::stale() { return look_ahead() != Ahead::kNothing; }

ssize_t ClientStream::read(char* ptr, size_t size) {
  while (begin_ == end_) {
    if (now() >= state_.deadline) {
      state_.fault = Fault::kTimeout;
      return -1;
    }
    const Try step = try_receive();
    short got = 0;
    switch (step.kind) {
      case Try::Kind::kMoved:
        begin_ = 0;
        end_ = step.bytes;
        state_.any_reply = state_.any_reply || step.bytes > 0;
        state_.received += step.bytes;
        break;
      case Try::Kind::kBlocked:
        if (!wait(step.waits_for, &got)) return -1;
        break;
      case Try::Kind::kEnd:
        return 0;
      case Try::Kind::kFailed:
        failed();
        return -1;
    }
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
  // A process that was stopped (SIGSTOP) since the request began: nobody expects it any more.
  if (now() >= state_.deadline) {
    state_.fault = Fault::kTimeout;
    return -1;
  }
  while (done < size) {
    const Try step = try_send(ptr + done, size - done);
    if (step.kind == Try::Kind::kMoved) {
      done += step.bytes;
      state_.sent += step.bytes;
      if (now() < state_.deadline) continue;
      state_.fault = Fault::kTimeout;
      return -1;
    }
    const bool full = step.kind == Try::Kind::kBlocked;
    short got = 0;
    if (full && !wait(static_cast<short>(POLLIN | step.waits_for), &got)) return -1;
    if (full && (got & POLLIN) == 0) continue;
    // Readable while we send: an answer, or the end of the connection, which reading will tell.
    const Ahead ahead = look_ahead();
    if (ahead == Ahead::kBytes || (full && ahead == Ahead::kEnd)) {
      state_.early = true;
      return static_cast<ssize_t>(size);
    }
    if (full && ahead == Ahead::kNothing) continue;
    failed();
    return -1;
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
