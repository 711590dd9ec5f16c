#include "common/http/client.h"

#include <charconv>
#include <mutex>

#include <nlohmann/json.hpp>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/http/client_stream.h"
#include "common/http/tls.h"

namespace archipelago::http {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kErrorBody = 64 * 1024;

// httplib's client with our stream in place of its own, which knows TLS too. (To httplib it is a
// plain client: its SSLClient checks names by itself, and its handshake has no deadline.)
class Connection final : public httplib::ClientImpl {
 public:
  Connection(const Endpoint& server, const std::atomic<bool>& cancelled)
      : httplib::ClientImpl(server.host, server.port), cancelled_(cancelled) {}
  ~Connection() override { end_session(socket_, true); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::optional<TlsContext> tls;
  Duration handshake_timeout{};
  RequestState* state = nullptr;  // of the request in flight
  bool fresh = false;             // the request opened the connection
  bool reusable = false;

 private:
  bool create_and_connect_socket(Socket& socket, httplib::Error& error) override {
    fresh = true;
    if (!httplib::ClientImpl::create_and_connect_socket(socket, error)) return false;
    if (tls) socket.ssl = tls->open(socket.sock);
    if (!tls || socket.ssl != nullptr) return true;
    shutdown_socket(socket);
    close_socket(socket);
    error = httplib::Error::Connection;
    return false;
  }
  bool process_socket(const Socket& socket,
                      std::function<bool(httplib::Stream&)> callback) override {
    ClientStream stream(socket.sock, socket.ssl, tls ? tls->name() : "", *state, cancelled_);
    if (fresh && tls && !stream.handshake(handshake_timeout)) return false;
    // Bytes before the question are an old answer or the end: never take them for the next one's.
    if (!fresh && stream.stale()) {
      state->fault = Fault::kStale;
      return false;
    }
    const bool ok = callback(stream);
    // After "Connection: close" httplib has closed it, session included.
    reusable = ok && socket.is_open() && !stream.leftover() && !state->early;
    return ok;
  }
  void shutdown_ssl(Socket& socket, bool gracefully) override { end_session(socket, gracefully); }
  static void end_session(Socket& socket, bool gracefully) {
    if (socket.ssl == nullptr) return;
    if (gracefully && SSL_is_init_finished(socket.ssl) == 1) SSL_shutdown(socket.ssl);
    SSL_free(socket.ssl);
    socket.ssl = nullptr;
    ERR_clear_error();
  }

  const std::atomic<bool>& cancelled_;
};

Response head_of(const httplib::Response& from) {
  Response out;
  out.status = from.status;
  for (const auto& [name, value] : from.headers) {
    std::string lower = name;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    out.headers.emplace(std::move(lower), value);
  }
  return out;
}

std::optional<std::uint64_t> length_of(const Response& head) {
  const std::string_view text = head.header("content-length");
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Where a reply's bytes go: 2xx to the sink (or to body), the rest to body, bounded either way.
struct Collector {
  std::uint64_t max_bytes;
  const Sink* sink = nullptr;
  const HeadSink* on_head = nullptr;
  Response response;
  std::uint64_t taken = 0;
  std::optional<Error> error;

  bool head(const httplib::Response& from) {
    response = head_of(from);
    const auto length = length_of(response);
    if (response.ok() && length && *length > max_bytes) {
      error =
          Error{ErrorKind::kTooLarge, "reply of " + std::to_string(*length) + " bytes, at most " +
                                          std::to_string(max_bytes) + " are taken"};
      return false;
    }
    if (response.ok() && on_head != nullptr && *on_head) {
      if (auto told = (*on_head)(response, length.value_or(0)); !told) error = told.error();
    }
    return !error;
  }

  bool take(const char* data, std::size_t size) {
    if (!response.ok()) {
      response.body.append(data,
                           std::min(size, kErrorBody - std::min(kErrorBody, response.body.size())));
      taken += size;
      return taken <= (1U << 24);
    }
    taken += size;
    if (taken > max_bytes) {
      error =
          Error{ErrorKind::kTooLarge, "reply longer than " + std::to_string(max_bytes) + " bytes"};
    } else if (sink == nullptr) {
      response.body.append(data, size);
    } else if (auto told = (*sink)(std::as_bytes(std::span(data, size))); !told) {
      error = told.error();
    }
    return !error;
  }
};

}  // namespace

std::string_view Response::header(std::string_view lower_case_name) const {
  const auto it = headers.find(std::string(lower_case_name));
  return it == headers.end() ? std::string_view() : std::string_view(it->second);
}

std::optional<Duration> Response::retry_after() const {
  const std::string_view text = header("retry-after");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0)
    return std::nullopt;
  return std::chrono::seconds(std::min(value, 3600));
}

ErrorKind kind_of_status(int status) {
  switch (status) {
    case 401:
    case 403:
    case 422:
      return ErrorKind::kRefused;
    case 404:
      return ErrorKind::kNotFound;
    case 408:
      return ErrorKind::kTimeout;
    case 409:
      return ErrorKind::kConflict;
    case 410:
      return ErrorKind::kFenced;
    case 413:
      return ErrorKind::kTooLarge;
    case 415:
      return ErrorKind::kUnsupported;
    case 429:
      return ErrorKind::kUnavailable;
    case 507:
      return ErrorKind::kNoSpace;
    default:
      return status >= 500 ? ErrorKind::kUnavailable : ErrorKind::kInvalid;
  }
}

Status check_tls(const TlsOptions& tls, const std::string& host) {
  if (auto context = TlsContext::create(tls, host); !context) return fail(context.error());
  return {};
}

Error error_of(const Response& response, std::string_view what) {
  std::string message = std::string(what) + ": " + std::to_string(response.status);
  if (response.body.size() <= kErrorBody) {
    const auto json = nlohmann::json::parse(response.body, nullptr, false);
    if (json.is_object() && json.contains("message") && json["message"].is_string()) {
      message += ": " + json["message"].get<std::string>();
    }
  }
  return Error{kind_of_status(response.status), std::move(message)};
}

struct Client::Impl {
  explicit Impl(ClientOptions o) : options(std::move(o)), connection(options.server, cancelled) {
    connection.set_tcp_nodelay(true);
    connection.set_keep_alive(true);
    connection.set_url_encode(false);
    connection.set_decompress(false);
    connection.set_follow_location(false);
    connection.handshake_timeout = options.connect_timeout;
    if (!options.tls) return;
    auto context = TlsContext::create(*options.tls, options.server.host);
    if (context) {
      connection.tls = std::move(*context);
    } else {
      unusable = context.error();
    }
  }

  Result<Response> send(httplib::Request request, Collector collector, Duration total_timeout);
  Result<Response> attempt(httplib::Request request, Collector& collector);
  Error judge(httplib::Error error) const;

  ClientOptions options;
  std::optional<Error> unusable;  // the TLS options' error
  std::atomic<bool> cancelled{false};
  RequestState state;
  Connection connection;
  std::mutex mutex;  // one request at a time
};

Error Client::Impl::judge(httplib::Error error) const {
  const std::string where = options.server.text();
  if (cancelled || state.fault == Fault::kCancelled)
    return {ErrorKind::kCancelled, where + ": cancelled"};
  if (state.fault == Fault::kTls && state.tls) return state.tls->with_context(where);
  if (state.fault == Fault::kTimeout || error == httplib::Error::ConnectionTimeout) {
    return {ErrorKind::kTimeout, where + ": timed out after " + std::to_string(state.sent) +
                                     " bytes sent and " + std::to_string(state.received) +
                                     " received"};
  }
  if (error == httplib::Error::Connection)
    return {ErrorKind::kUnavailable, where + ": cannot connect"};
  return {ErrorKind::kUnavailable, where + ": connection lost (" + httplib::to_string(error) + ")"};
}

Result<Response> Client::Impl::attempt(httplib::Request request, Collector& collector) {
  request.response_handler = [&](const httplib::Response& head) { return collector.head(head); };
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    return collector.take(data, size);
  };
  const Duration left =
      std::max<Duration>(state.deadline - SystemClock().now(), std::chrono::milliseconds(1));
  connection.set_connection_timeout(std::min<Duration>(options.connect_timeout, left));
  connection.state = &state;
  connection.fresh = false;
  connection.reusable = false;
  httplib::Response unused;
  httplib::Error error = httplib::Error::Success;
  const bool ok = connection.httplib::ClientImpl::send(request, unused, error);
  if (!connection.reusable) connection.stop();
  if (collector.error) return fail(*collector.error);
  if (!ok) return fail(judge(error));
  if (collector.response.status == 0)
    collector.response = head_of(unused);  // no body, no handler call (204)
  return std::move(collector.response);
}

Result<Response> Client::Impl::send(httplib::Request request, Collector collector,
                                    Duration total_timeout) {
  std::lock_guard lock(mutex);
  if (unusable) return fail(*unusable);
  for (const auto& [name, value] : options.headers) request.headers.emplace(name, value);
  if (!request.has_header("User-Agent")) request.headers.emplace("User-Agent", "archipelago");
  state.deadline = SystemClock().now() + total_timeout;
  state.io_timeout = options.io_timeout;
  const bool idempotent = request.method != "POST" && request.method != "PATCH";
  Result<Response> result = fail(ErrorKind::kCancelled, options.server.text() + ": cancelled");
  for (int i = 0; i < 2 && !cancelled; ++i) {
    state.fault = Fault::kNone;
    state.tls.reset();
    state.early = state.any_reply = false;
    state.sent = state.received = 0;
    result = attempt(request, collector);
    if (result || state.any_reply || connection.fresh || collector.error) break;
    // A kept connection that the server has closed meanwhile. Nothing was sent when it was seen
    // before the request; otherwise what became of the request is unknown, and only idempotent ones
    // may be repeated.
    if (state.fault == Fault::kTimeout || (state.fault != Fault::kStale && !idempotent)) break;
  }
  state.sent = state.received = 0;
  return result;
}

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;

namespace {

httplib::Request make_request(std::string_view method, std::string_view path,
                              const HeaderList& headers) {
  httplib::Request request;
  request.method = std::string(method);
  request.path = std::string(path);
  for (const auto& [name, value] : headers) request.headers.emplace(name, value);
  return request;
}

}  // namespace

Result<Response> Client::request(std::string_view method, std::string_view path,
                                 std::string_view body, std::string_view content_type,
                                 const HeaderList& headers, Duration total_timeout) {
  httplib::Request request = make_request(method, path, headers);
  if (!body.empty()) request.headers.emplace("Content-Type", std::string(content_type));
  request.body = std::string(body);
  return impl_->send(std::move(request),
                     Collector{impl_->options.max_reply_bytes, nullptr, nullptr, {}, 0, {}},
                     total_timeout > Duration(0) ? total_timeout : impl_->options.total_timeout);
}

Result<Response> Client::put_bytes(std::string_view path, const HeaderList& headers,
                                   std::span<const std::byte> body, Duration total_timeout,
                                   std::string_view content_type) {
  httplib::Request request = make_request("PUT", path, headers);
  request.headers.emplace("Content-Type", std::string(content_type));
  request.content_length_ = body.size();
  request.content_provider_ = [body](std::size_t offset, std::size_t, httplib::DataSink& sink) {
    const auto piece = body.subspan(offset, std::min(kPiece, body.size() - offset));
    return sink.write(reinterpret_cast<const char*>(piece.data()), piece.size());
  };
  return impl_->send(std::move(request),
                     Collector{impl_->options.max_reply_bytes, nullptr, nullptr, {}, 0, {}},
                     total_timeout);
}

Result<Response> Client::put_stream(std::string_view path, const HeaderList& headers,
                                    std::uint64_t size, const Provider& provider,
                                    Duration total_timeout, std::string_view content_type) {
  httplib::Request request = make_request("PUT", path, headers);
  request.headers.emplace("Content-Type", std::string(content_type));
  request.content_length_ = static_cast<std::size_t>(size);
  std::vector<std::byte> piece(std::min<std::size_t>(kPiece, static_cast<std::size_t>(size)));
  std::optional<Error> error;
  request.content_provider_ = [&](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
    std::size_t n = std::min(piece.size(), length);
    if (!impl_->state.early) {
      auto got = provider(offset, std::span(piece).first(n));
      if (got && (*got == 0 || *got > n))
        got = fail(ErrorKind::kInternal, "provider gave no bytes");
      if (!got) {
        error = got.error();
        return false;
      }
      n = *got;
    }
    return sink.write(reinterpret_cast<const char*>(piece.data()), n);
  };
  auto result = impl_->send(std::move(request),
                            Collector{impl_->options.max_reply_bytes, nullptr, nullptr, {}, 0, {}},
                            total_timeout);
  if (!result && error) return fail(*error);
  return result;
}

Result<Response> Client::get_stream(std::string_view path, const HeaderList& headers,
                                    std::uint64_t max_bytes, const Sink& sink,
                                    Duration total_timeout, const HeadSink& head) {
  return impl_->send(make_request("GET", path, headers),
                     Collector{max_bytes, &sink, &head, {}, 0, {}}, total_timeout);
}

void Client::cancel() {
  impl_->cancelled = true;
  impl_->connection.stop();
}

void Client::resume() { impl_->cancelled = false; }

std::uint64_t Client::bytes_sent() const { return impl_->state.sent; }
std::uint64_t Client::bytes_received() const { return impl_->state.received; }

}  // namespace archipelago::http
