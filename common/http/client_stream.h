#pragma once
// The client's side of one connection for one request: deadlines that httplib lacks, early answers,
// byte counts.
#include <atomic>
#include <cstdint>
#include <vector>

#include <httplib.h>

#include "common/base/clock.h"

namespace archipelago::http {

enum class Fault { kNone, kTimeout, kCancelled, kClosed, kStale };

// What survives of a request for judging its failure.
struct RequestState {
  TimePoint deadline{};
  Duration io_timeout{};
  Fault fault = Fault::kNone;
  bool early = false;      // the server answered before it had read everything
  bool any_reply = false;  // a byte of the reply arrived
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> received{0};
};

class ClientStream final : public httplib::Stream {
 public:
  ClientStream(int fd, RequestState& state, const std::atomic<bool>& cancelled)
      : fd_(fd), state_(state), cancelled_(cancelled), buffer_(64 * 1024) {}
  [[nodiscard]] bool is_readable() const override { return begin_ < end_ || ready(1, 0); }
  [[nodiscard]] bool is_writable() const override { return state_.fault == Fault::kNone; }
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  [[nodiscard]] socket_t socket() const override { return fd_; }
  // Bytes beyond the reply: the connection can't be used again.
  [[nodiscard]] bool leftover() const { return begin_ < end_; }
  // The socket has bytes, or its end, before a request was sent on it.
  [[nodiscard]] bool stale() const { return ready(1, 0); }

 private:
  [[nodiscard]] bool ready(short events, int timeout_ms) const;
  // False with state_.fault set at the deadline, the idle limit, or cancel.
  bool wait(short events, short* got);

  int fd_;
  RequestState& state_;
  const std::atomic<bool>& cancelled_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace archipelago::http
