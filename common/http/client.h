#pragma once
// HTTP/1.1 client around cpp-httplib with real deadlines. Requests of one client are serialised:
// one client per purpose (control, uploads, downloads). Any answer is a Response, whatever its
// status; an Error means that no whole answer arrived. After an error, a time-out or a partly read
// body the connection is dropped, so an old answer can never be taken for the next one's.
// Connections go straight to the server: proxy environment variables are not used.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/http/endpoint.h"

namespace archipelago::http {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// TLS 1.2 or later. The server's certificate is always checked: its chain, and that an alternative
// name (DNS or IP; a common name alone is not enough) is the server's.
struct TlsOptions {
  std::string ca_pem{};           // certificates to trust; empty: the system's store
  std::string certificate_pem{};  // ours, then its intermediates; with key_pem or not at all
  std::string key_pem{};          // without a password
  std::string server_name{};      // in the certificate; empty: the endpoint's host
};

struct ClientOptions {
  Endpoint server;
  std::optional<TlsOptions> tls;          // none: plain HTTP
  Duration connect_timeout = seconds(5);  // and as much again for the TLS handshake
  Duration io_timeout =
      seconds(10);  // no byte moved in either direction for so long (raise it for held replies)
  Duration total_timeout = seconds(60);  // one request, connect included; streams pass their own
  std::size_t max_reply_bytes = std::size_t{1} << 20;
  HeaderList headers;  // with every request
};

struct Response {
  int status = 0;
  std::string body;                            // of streams only when status >= 400, at most 64 KiB
  std::map<std::string, std::string> headers;  // names in lower case
  [[nodiscard]] bool ok() const { return status >= 200 && status < 300; }
  [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;
  [[nodiscard]] std::optional<Duration> retry_after() const;  // whole seconds form only
};

// 400 kInvalid, 401/403 kRefused, 404 kNotFound, 408 kTimeout, 409 kConflict, 410 kFenced, 413
// kTooLarge, 415 kUnsupported, 422 kRefused, 429 kUnavailable, 507 kNoSpace, other 5xx
// kUnavailable, other 4xx kInvalid.
[[nodiscard]] ErrorKind kind_of_status(int status);
// kInvalid when the texts can't be used (which one and why, never their contents). A Client with
// such options gives the same error for every request.
[[nodiscard]] Status check_tls(const TlsOptions& tls, const std::string& host);

// "PUT /path: 409: message of the JSON error body", of that kind.
[[nodiscard]] Error error_of(const Response& response, std::string_view what);

// Puts up to into.size() bytes that follow `offset` into `into`, says how many; 0 or an error
// aborts the request.
using Provider =
    std::function<Result<std::size_t>(std::uint64_t offset, std::span<std::byte> into)>;
// Takes the next bytes of a successful reply; an error aborts the request and is returned.
using Sink = std::function<Status(std::span<const std::byte>)>;
// Called once before the first byte of a successful reply with its head.
using HeadSink = std::function<Status(const Response& head, std::uint64_t content_length)>;

class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // `path` is sent as it is: encode segments and query values with url_encode.
  [[nodiscard]] Result<Response> request(std::string_view method, std::string_view path,
                                         std::string_view body = {},
                                         std::string_view content_type = "application/json",
                                         const HeaderList& headers = {},
                                         Duration total_timeout = Duration(0));  // 0: the options'
  // The body without a copy. When the server answers before it has read everything, sending stops
  // and that answer is returned.
  [[nodiscard]] Result<Response> put_bytes(
      std::string_view path, const HeaderList& headers, std::span<const std::byte> body,
      Duration total_timeout, std::string_view content_type = "application/octet-stream");
  [[nodiscard]] Result<Response> put_stream(
      std::string_view path, const HeaderList& headers, std::uint64_t size,
      const Provider& provider, Duration total_timeout,
      std::string_view content_type = "application/octet-stream");
  // kTooLarge when the reply says or turns out to be more than max_bytes; kUnavailable when it ends
  // early.
  [[nodiscard]] Result<Response> get_stream(std::string_view path, const HeaderList& headers,
                                            std::uint64_t max_bytes, const Sink& sink,
                                            Duration total_timeout, const HeadSink& head = {});

  // From any thread: ends the request in flight and every later one with kCancelled, until
  // resume().
  void cancel();
  void resume();
  // Bytes sent by and received for the request in flight (0 between requests); for progress and
  // throughput.
  [[nodiscard]] std::uint64_t bytes_sent() const;
  [[nodiscard]] std::uint64_t bytes_received() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace archipelago::http
