#include "common/http/server_poller.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace archipelago::http {
namespace {

constexpr std::uint64_t kDrainBytes = 64ULL << 20;
constexpr Duration kDrainTime = std::chrono::seconds(2);

TimePoint now() { return SystemClock().now(); }

std::string address_text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* raw = nullptr;
  if (address.ss_family == AF_INET) raw = &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr;
  if (address.ss_family == AF_INET6)
    raw = &reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
  if (raw == nullptr || ::inet_ntop(address.ss_family, raw, text.data(), text.size()) == nullptr)
    return "?";
  return text.data();
}

}  // namespace

Poller::Poller(const ServerOptions& options, Counters& counters, Logger log, Dispatch dispatch)
    : options_(options),
      counters_(counters),
      log_(std::move(log)),
      dispatch_(std::move(dispatch)) {}

Poller::~Poller() { stop(); }

Status Poller::start(int listen_fd) {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return fail(errno_error("epoll_create1", errno));
  event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return fail(errno_error("eventfd", errno));
  listen_fd_ = listen_fd;
  for (const int fd : {event_.get(), listen_fd}) {
    epoll_event entry{};
    entry.events = EPOLLIN;
    entry.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &entry) != 0)
      return fail(errno_error("epoll_ctl", errno));
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  return {};
}

void Poller::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  wake();
  thread_.join();
  std::lock_guard lock(mutex_);
  closed_ = true;
  counters_.open -= returned_.size();
  returned_.clear();
}

void Poller::give_back(std::unique_ptr<Conn> conn, bool drain) {
  if (drain) ::shutdown(conn->fd.get(), SHUT_WR);
  conn->draining = drain;
  conn->head_end = 0;
  conn->searched = 0;
  conn->deadline = now() + (drain              ? kDrainTime
                            : conn->in.empty() ? options_.idle_timeout
                                               : options_.head_timeout);
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      --counters_.open;
      return;
    }
    returned_.push_back(std::move(conn));
  }
  wake();
}

void Poller::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
}

void Poller::run(const std::stop_token& stop) {
  std::array<epoll_event, 64> events{};
  TimePoint next_expiry = now();
  while (!stop.stop_requested()) {
    const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 100);
    if (n < 0 && errno != EINTR) {
      log_.error("epoll_wait failed", {{"errno", errno}});
      break;
    }
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == event_.get()) {
        std::uint64_t value = 0;
        [[maybe_unused]] const ssize_t got = ::read(fd, &value, sizeof value);
        take_returned();
      } else if (fd == listen_fd_) {
        if (!accept_paused_) accept_all();
      } else {
        on_readable(fd);
      }
    }
    if (now() >= next_expiry) {
      expire();
      accept_paused_ = false;
      next_expiry = now() + std::chrono::milliseconds(100);
    }
  }
  counters_.open -= conns_.size();
  conns_.clear();
}

void Poller::accept_all() {
  for (int i = 0; i < 64; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const int fd = ::accept4(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Out of descriptors: the level-triggered event would spin, so look again at the next tick.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        log_.warn("cannot accept connections", {{"errno", errno}});
        accept_paused_ = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return;  // EAGAIN; the aborted ones (ECONNABORTED, ...) are nobody's loss
    }
    auto conn = std::make_unique<Conn>();
    conn->fd = UniqueFd(fd);
    conn->remote = address_text(address);
    ++counters_.connections;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (counters_.open >= options_.max_connections) {
      ++counters_.refused;
      send_short_reply(*conn, error_reply(503, "unavailable", "too many connections"), counters_);
      continue;
    }
    ++counters_.open;
    conn->deadline = now() + options_.head_timeout;
    adopt(std::move(conn));
  }
}

void Poller::adopt(std::unique_ptr<Conn> conn) {
  const int fd = conn->fd.get();
  epoll_event entry{};
  entry.events = EPOLLIN;
  entry.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &entry) != 0) {
    --counters_.open;
    return;
  }
  conns_[fd] = std::move(conn);
}

void Poller::drop(std::unordered_map<int, std::unique_ptr<Conn>>::iterator it) {
  conns_.erase(it);  // closing takes it out of the epoll set
  --counters_.open;
}

// False when the connection is over. Bounded: never more than one request's head and small body is
// held.
bool Poller::receive(Conn& conn, bool* closed) {
  std::array<char, 16 * 1024> piece{};
  const ssize_t n = ::recv(conn.fd.get(), piece.data(), piece.size(), MSG_DONTWAIT);
  if (n == 0) *closed = true;
  if (n < 0) *closed = errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
  if (n <= 0) return false;
  const auto got = static_cast<std::size_t>(n);
  counters_.bytes_in += got;
  if (conn.draining) {
    conn.drained += got;
    if (conn.drained > kDrainBytes) *closed = true;
    return false;
  }
  if (conn.in.empty()) conn.deadline = now() + options_.head_timeout;
  conn.in.append(piece.data(), got);
  return true;
}

void Poller::on_readable(int fd) {
  const auto it = conns_.find(fd);
  if (it == conns_.end()) return;
  bool closed = false;
  const bool more = receive(*it->second, &closed);
  if (closed) {
    drop(it);
    return;
  }
  if (more) advance(it);
}

Poller::Next Poller::advance(std::unordered_map<int, std::unique_ptr<Conn>>::iterator it) {
  Conn& conn = *it->second;
  if (conn.head_end == 0) {
    const std::size_t end = find_head_end(conn.in, conn.searched);
    conn.searched = conn.in.size();
    if (end == std::string_view::npos || end > options_.max_head_bytes) {
      if (conn.in.size() <= options_.max_head_bytes) return Next::kWait;
      refuse(it, 431, "head longer than " + std::to_string(options_.max_head_bytes) + " bytes");
      return Next::kGone;
    }
    conn.head_end = end;
  }
  Head head;
  const HeadLimits limits{options_.max_head_fields};
  const auto error = parse_head(std::string_view(conn.in).substr(0, conn.head_end), limits, &head);
  if (error) {
    refuse(it, error->status, error->message);
    return Next::kGone;
  }
  const std::uint64_t body = head.content_length.value_or(0);
  const bool gather = body <= options_.max_small_body && !head.expect_continue;
  if (gather && conn.in.size() - conn.head_end < body) return Next::kWait;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, conn.fd.get(), nullptr);
  std::unique_ptr<Conn> ready = std::move(it->second);
  conns_.erase(it);
  dispatch_(std::move(ready));
  return Next::kGone;
}

void Poller::refuse(std::unordered_map<int, std::unique_ptr<Conn>>::iterator it, int status,
                    const std::string& message) {
  Conn& conn = *it->second;
  send_short_reply(conn, error_reply(status, "invalid", message), counters_);
  ::shutdown(conn.fd.get(), SHUT_WR);
  conn.draining = true;
  conn.in = std::string();
  conn.deadline = now() + kDrainTime;
}

void Poller::take_returned() {
  std::vector<std::unique_ptr<Conn>> list;
  {
    std::lock_guard lock(mutex_);
    list.swap(returned_);
  }
  for (auto& conn : list) {
    const int fd = conn->fd.get();
    const bool buffered = !conn->draining && !conn->in.empty();
    adopt(std::move(conn));
    if (!buffered) continue;
    if (const auto it = conns_.find(fd); it != conns_.end()) advance(it);
  }
}

void Poller::expire() {
  const TimePoint t = now();
  std::vector<int> late;
  for (const auto& [fd, conn] : conns_) {
    if (t >= conn->deadline) late.push_back(fd);
  }
  for (const int fd : late) {
    const auto it = conns_.find(fd);
    Conn& conn = *it->second;
    if (!conn.draining && !conn.in.empty()) {
      ++counters_.timeouts;
      send_short_reply(conn, error_reply(408, "timeout", "the request did not arrive in time"),
                       counters_);
    }
    drop(it);
  }
}

}  // namespace archipelago::http
