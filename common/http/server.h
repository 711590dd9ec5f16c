#pragma once
// HTTP/1.1 server with our limits around cpp-httplib (which parses heads and writes replies; no
// header of it shows here).
//
// One poller thread owns every connection that is idle or still sending its head or a small body,
// so slow or idle peers cost no worker; a worker is taken only by a complete request. Bodies are
// read by us, by Content-Length alone: chunked, compressed, multipart and length-less bodies are
// refused before anything is read. Handlers run on worker threads: parse, post to a mailbox, wait
// boundedly, answer.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/result.h"
#include "common/http/endpoint.h"

namespace archipelago::http {

inline constexpr std::string_view kJson = "application/json";
inline constexpr std::string_view kBytes = "application/octet-stream";

struct Request {
  std::string method;
  std::string path;  // percent-decoded, without the query
  std::vector<std::string>
      args;  // values of the pattern's {}, in order: [A-Za-z0-9._-]{1,128}, no ".", ".."
  std::multimap<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case; of repeated ones the first
  std::string body;                            // whole body of `route`, empty for `route_upload`
  std::string remote;                          // peer address without port

  [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;  // "" when absent
  [[nodiscard]] std::optional<std::string> param(const std::string& name) const;
  // Query parameter or path argument as an integer in [min, max]; kInvalid names it.
  [[nodiscard]] Result<std::int64_t> int_param(const std::string& name, std::int64_t min,
                                               std::int64_t max) const;
  [[nodiscard]] Result<std::int64_t> int_arg(std::size_t index, std::int64_t min,
                                             std::int64_t max) const;
};

// Bytes that outlive the reply because `owner` does: published fragments leave the process without
// a copy.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

struct Reply {
  int status = 200;
  std::string content_type{kJson};
  std::string body;
  std::vector<SharedBytes> parts;  // sent after body, in order
  std::vector<std::pair<std::string, std::string>> headers;

  [[nodiscard]] static Reply json(std::string text, int status = 200);
  [[nodiscard]] static Reply text(std::string text, int status = 200);
  [[nodiscard]] static Reply bytes(std::vector<SharedBytes> parts);
};

// {error, message, expected, current}: protocol.md §11. `expected` and `current` may be empty (then
// null).
[[nodiscard]] Reply error_reply(int status, std::string_view error, std::string_view message,
                                std::string_view expected = {}, std::string_view current = {});
// Status of the kind: kInvalid 400, kNotFound 404, kConflict 409, kFenced 410, kTooLarge 413,
// kUnsupported 415, kRefused 422, kUnavailable 429 with Retry-After: 1, kTimeout 408, kNoSpace 507,
// kCorrupt 400, else 500 (text withheld).
[[nodiscard]] Reply error_reply(const Error& error, std::string_view expected = {},
                                std::string_view current = {});

// The body of an upload, as it arrives. A body that is not read to its end closes the connection
// after the reply.
class BodyReader {
 public:
  virtual ~BodyReader() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;  // Content-Length, within the route's limit
  [[nodiscard]] virtual std::uint64_t remaining() const = 0;
  // Up to into.size() bytes; 0 only at the end. kTimeout at the total deadline or below the minimum
  // rate, kUnavailable when the peer went away, kCancelled when the server stops.
  [[nodiscard]] virtual Result<std::size_t> read(std::span<std::byte> into) = 0;
  // Exactly into.size() bytes (kInvalid when fewer remain), in pieces of at most `piece`; on_piece
  // gets each.
  [[nodiscard]] Status read_exact(
      std::span<std::byte> into, std::size_t piece = std::size_t{1} << 20,
      const std::function<Status(std::span<const std::byte>)>& on_piece = {});
};

struct ServerOptions {
  Endpoint listen;           // host "::": every address, IPv4 ones too
  std::size_t threads = 8;   // workers; a held reply and a running upload occupy one each
  std::size_t max_bulk = 4;  // of them at most so many read an upload at once: the next gets 429
  std::size_t max_connections = 1024;  // the next one is closed at once with 503
  std::size_t max_head_bytes = 16 * 1024;
  std::size_t max_head_fields = 100;
  std::size_t max_small_body = 64 * 1024;   // the largest body_limit that `route` accepts
  Duration head_timeout = seconds(10);      // a head with its small body, from its first byte
  Duration idle_timeout = seconds(75);      // keep-alive
  Duration request_timeout = seconds(600);  // total: body, handler and reply
  Duration stop_timeout = seconds(3);  // in-flight requests at stop(), then their sockets are shut
  // Below this mean rate (after 5 s) a body or a reply that makes a worker wait is given up.
  std::uint64_t min_bytes_per_second = 1024;
};

struct ServerStats {
  std::uint64_t connections = 0, open = 0, busy = 0, refused_connections = 0;
  std::uint64_t requests = 0, replies_4xx = 0, replies_5xx = 0, timeouts = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;
};

class Server {
 public:
  using Handler = std::function<Reply(const Request&)>;
  using UploadHandler = std::function<Reply(const Request&, BodyReader&)>;

  Server(ServerOptions options, Logger log);
  ~Server();  // stops
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Routes are added before start(). Pattern: "/v1/rounds/{}/upload"; a {} matches one segment
  // (Request::args). With body_limit 0 a body is refused; with a body the content type must be
  // `content_type` (else 415).
  void route(std::string_view method, std::string_view pattern, Handler handler,
             std::size_t body_limit = 0, std::string_view content_type = kJson);
  // Content-Length is required (411) and checked against body_limit() before anything is read
  // (413).
  void route_upload(std::string_view method, std::string_view pattern,
                    std::function<std::uint64_t()> body_limit, UploadHandler handler,
                    std::string_view content_type = kBytes);

  [[nodiscard]] Status
  start();      // binds and serves; "port in use" is kUnavailable and names the address
  void stop();  // idempotent; release held handlers first
  [[nodiscard]] int port() const;  // the real one, after start()
  [[nodiscard]] ServerStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace archipelago::http
