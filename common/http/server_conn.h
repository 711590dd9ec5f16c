#pragma once
// One connection of the server, the stream that httplib writes its reply to, and the reader of a
// body.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <httplib.h>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/http/head.h"
#include "common/http/server.h"

namespace archipelago::http {

struct Counters {
  std::atomic<std::uint64_t> connections{0}, open{0}, busy{0}, refused{0}, requests{0},
      replies_4xx{0}, replies_5xx{0}, timeouts{0}, bytes_in{0}, bytes_out{0};
};

struct Conn {
  UniqueFd fd;
  std::string remote;
  std::string in;            // bytes received and not yet consumed
  std::size_t searched = 0;  // of them, searched for the end of the head
  std::size_t head_end = 0;  // 0 until the head is complete
  TimePoint deadline{};      // of the present state
  bool draining =
      false;  // our side is shut; the rest is read and dropped so that the peer can read the reply
  std::uint64_t drained = 0;
};

// Waiting for a peer: bounded by a total deadline, by a minimum mean rate over the waited time, and
// by abort.
class PeerWait {
 public:
  PeerWait(int fd, TimePoint deadline, std::uint64_t min_rate, const std::atomic<bool>* abort)
      : fd_(fd), deadline_(deadline), min_rate_(min_rate), abort_(abort) {}
  // Until `events` (POLLIN or POLLOUT).
  [[nodiscard]] Status wait(short events);
  void moved(std::size_t bytes) { bytes_ += bytes; }
  [[nodiscard]] bool timed_out() const { return timed_out_; }

 private:
  int fd_;
  TimePoint deadline_;
  std::uint64_t min_rate_;
  const std::atomic<bool>* abort_;
  std::uint64_t bytes_ = 0;
  Duration waited_{};
  bool timed_out_ = false;
};

class ConnBody final : public BodyReader {
 public:
  ConnBody(Conn& conn, std::uint64_t size, PeerWait wait, Counters& counters);
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::uint64_t remaining() const override { return remaining_; }
  [[nodiscard]] Result<std::size_t> read(std::span<std::byte> into) override;

 private:
  Conn& conn_;
  std::uint64_t size_;
  std::uint64_t remaining_;
  PeerWait wait_;
  Counters& counters_;
};

// Hands httplib a head that we wrote ourselves and takes its reply.
class ConnStream final : public httplib::Stream {
 public:
  ConnStream(Conn& conn, std::string head, PeerWait wait, Counters& counters)
      : conn_(conn), head_(std::move(head)), wait_(wait), counters_(counters) {}
  [[nodiscard]] bool is_readable() const override { return at_ < head_.size(); }
  [[nodiscard]] bool is_writable() const override { return !failed_; }
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // httplib answers 500 for descriptors past FD_SETSIZE because it selects on them; it never
  // selects on ours.
  [[nodiscard]] socket_t socket() const override { return 0; }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  Conn& conn_;
  std::string head_;
  std::size_t at_ = 0;
  PeerWait wait_;
  Counters& counters_;
  bool failed_ = false;
};

// A whole short reply, for cases where no handler runs. Never blocks: what doesn't fit the socket's
// buffer is lost.
void send_short_reply(Conn& conn, const Reply& reply, Counters& counters);
void count_reply(int status, Counters& counters);

}  // namespace archipelago::http
