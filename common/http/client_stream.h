#pragma once
// The client's side of one connection for one request, plain or TLS: deadlines that httplib lacks,
// early answers, counts of the bytes of HTTP.
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <httplib.h>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace archipelago::http {

enum class Fault { kNone, kTimeout, kCancelled, kClosed, kStale, kTls };

// What survives of a request for judging its failure.
struct RequestState {
  TimePoint deadline{};
  Duration io_timeout{};
  Fault fault = Fault::kNone;
  std::optional<Error> tls;  // of kTls
  bool early = false;        // the server answered before it had read everything
  bool any_reply = false;    // a byte of the reply arrived
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> received{0};
};

class ClientStream final : public httplib::Stream {
 public:
  // `session` is nullptr for plain HTTP; `tls_name` the name its certificate is checked for.
  ClientStream(int fd, SSL* session, std::string tls_name, RequestState& state,
               const std::atomic<bool>& cancelled)
      : fd_(fd),
        session_(session),
        tls_name_(std::move(tls_name)),
        state_(state),
        cancelled_(cancelled),
        buffer_(64 * 1024) {}
  // Before the first request of a TLS connection; false with state.fault set.
  bool handshake(Duration limit);

  [[nodiscard]] bool is_readable() const override;
  [[nodiscard]] bool is_writable() const override { return state_.fault == Fault::kNone; }
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  [[nodiscard]] socket_t socket() const override { return fd_; }
  // Bytes beyond the reply: the connection can't be used again.
  [[nodiscard]] bool leftover() const;
  // The connection has bytes, or its end, before a request was sent on it.
  [[nodiscard]] bool stale();

 private:
  // What one try to move bytes came to.
  struct Try {
    enum class Kind { kMoved, kBlocked, kEnd, kFailed } kind;
    std::size_t bytes = 0;
    short waits_for = 0;  // of kBlocked: poll events
  };
  Try try_receive();
  Try try_send(const char* ptr, std::size_t size);
  Try tls_result(int returned);
  // Bytes of a reply, or the end of the connection, can be read now. Not the same as a readable
  // socket: TLS has records of its own.
  enum class Ahead { kNothing, kBytes, kEnd, kFailed };
  Ahead look_ahead();
  void failed();
  [[nodiscard]] bool ready(short events, int timeout_ms) const;
  // False with state_.fault set at the deadline, the idle limit, or cancel.
  bool wait(short events, short* got, TimePoint limit);
  bool wait(short events, short* got);

  int fd_;
  SSL* session_;
  std::string tls_name_;
  RequestState& state_;
  const std::atomic<bool>& cancelled_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace archipelago::http
