#include "common/http/server.h"

#include <condition_variable>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <netinet/in.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <unordered_set>

#include "common/base/check.h"
#include "common/http/server_poller.h"

namespace archipelago::http {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> out;
  while (!path.empty() && path.front() == '/') {
    path.remove_prefix(1);
    const std::size_t end = path.find('/');
    out.emplace_back(path.substr(0, end));
    path = end == std::string_view::npos ? std::string_view() : path.substr(end);
  }
  return out;
}

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > 128 || s == "." || s == "..") return false;
  for (const char c : s) {
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
    if (!ok) return false;
  }
  return true;
}

struct Route {
  std::string method;
  std::vector<std::string> pattern;
  std::string content_type;
  std::function<std::uint64_t()> limit;
  Server::Handler small;  // exactly one of the two
  Server::UploadHandler upload;
};

// The request that this worker serves: httplib's routing hook has no other way to reach it.
struct Exchange {
  Conn& conn;
  const Head& head;
  TimePoint deadline;
  bool body_done = false;
  Reply reply;
};
thread_local Exchange* t_exchange = nullptr;

}  // namespace

// httplib binds, parses the request line (method, path, query) and writes the reply; accept, heads,
// bodies and threads are ours.
struct Server::Impl final : public httplib::Server {
  Impl(ServerOptions o, Logger l)
      : options(std::move(o)),
        log(std::move(l)),
        poller(options, counters, log,
               [this](std::unique_ptr<Conn> c) { dispatch(std::move(c)); }) {}

  Status bind();
  [[nodiscard]] int listen_fd() const { return svr_sock_; }
  void dispatch(std::unique_ptr<Conn> conn);
  void work();
  enum class After { kClose, kKeep, kDrain };
  After serve(Conn& conn);
  void handle(const httplib::Request& from, httplib::Response& to);
  Reply answer(const httplib::Request& from, Exchange& exchange);
  Reply run_route(const Route& route, Request& request, Exchange& exchange);
  Reply run_upload(const Route& route, const Request& request, Exchange& exchange, ConnBody& body);
  const Route* find(const std::string& method, const std::vector<std::string>& segments,
                    bool* known_path) const;
  void stop_all();

  ServerOptions options;
  Logger log;
  Counters counters;
  std::vector<Route> routes;
  Poller poller;
  std::atomic<bool> abort{false};
  std::atomic<std::size_t> bulk{0};
  bool started = false;
  int real_port = 0;

  std::mutex mutex;
  std::condition_variable ready;            // work, stop
  std::condition_variable quiet;            // no request in flight
  std::deque<std::unique_ptr<Conn>> queue;  // bounded by max_connections
  std::unordered_set<Conn*> busy;
  bool stopping = false;
  std::vector<std::jthread> workers;
};

Status Server::Impl::bind() {
  set_socket_options([](socket_t fd) {
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const int off = 0;  // "::" takes IPv4 too; fails for an IPv4 socket, which has no such option
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  });
  set_keep_alive_timeout(
      std::chrono::duration_cast<std::chrono::seconds>(options.idle_timeout).count());
  set_keep_alive_max_count(1000000);
  set_exception_handler([](const httplib::Request&, httplib::Response& to,
                           const std::exception_ptr&) {
    to.status = 500;
    to.set_content("{\"error\":\"internal\",\"message\":\"internal error\"}", std::string(kJson));
  });
  set_pre_routing_handler([this](const httplib::Request& from, httplib::Response& to) {
    handle(from, to);
    return HandlerResponse::Handled;
  });
  const Endpoint& at = options.listen;
  const auto bind_at = [&](const std::string& host) {
    if (at.port == 0) return bind_to_any_port(host);
    return bind_to_port(host, at.port) ? at.port : -1;
  };
  real_port = bind_at(at.host);
  // Every address of a machine without IPv6.
  if (real_port <= 0 && at.host == "::") real_port = bind_at("0.0.0.0");
  if (real_port <= 0) {
    return fail(
        ErrorKind::kUnavailable,
        "cannot listen on " + at.text() + ": the address is in use or is not one of this machine");
  }
  // httplib listens with a backlog of 5: a burst of connects would be refused.
  const int fd = svr_sock_;
  if (::listen(fd, 256) != 0) return fail(errno_error("listen", errno));
  if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
    return fail(errno_error("fcntl", errno));
  return {};
}

void Server::Impl::dispatch(std::unique_ptr<Conn> conn) {
  {
    std::lock_guard lock(mutex);
    if (stopping) {
      --counters.open;
      return;
    }
    queue.push_back(std::move(conn));
  }
  ready.notify_one();
}

void Server::Impl::work() {
  while (true) {
    std::unique_ptr<Conn> conn;
    {
      std::unique_lock lock(mutex);
      ready.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      conn = std::move(queue.front());
      queue.pop_front();
      busy.insert(conn.get());
      ++counters.busy;
    }
    After after = After::kClose;
    try {
      after = serve(*conn);
    } catch (const std::exception& e) {
      log.error("request failed", {{"what", e.what()}});
    }
    {
      // Before the descriptor can be closed: stop() shuts those in `busy`.
      std::lock_guard lock(mutex);
      busy.erase(conn.get());
      --counters.busy;
    }
    if (after == After::kClose) {
      conn.reset();
      --counters.open;
    } else {
      poller.give_back(std::move(conn), after == After::kDrain);
    }
    quiet.notify_all();
  }
}

Server::Impl::After Server::Impl::serve(Conn& conn) {
  Head head;
  const auto bad = parse_head(std::string_view(conn.in).substr(0, conn.head_end),
                              HeadLimits{options.max_head_fields}, &head);
  ARCH_CHECK(!bad, << "a head that the poller accepted");
  conn.in.erase(0, conn.head_end);
  ++counters.requests;
  const TimePoint deadline = SystemClock().now() + options.request_timeout;
  Exchange exchange{conn, head, deadline, head.content_length.value_or(0) == 0, {}};
  // All that httplib needs of the head: without Range, Accept-Encoding and the like it has nothing
  // to misread.
  std::string text = head.method + " " + head.target + " HTTP/1.1\r\n";
  if (!head.keep_alive) text += "Connection: close\r\n";
  if (head.expect_continue) text += "Expect: 100-continue\r\n";
  text += "\r\n";
  ConnStream stream(conn, std::move(text),
                    PeerWait(conn.fd.get(), deadline, options.min_bytes_per_second, &abort),
                    counters);
  bool closed = false;
  t_exchange = &exchange;
  const bool sent = process_request(stream, false, closed, nullptr);
  t_exchange = nullptr;
  count_reply(exchange.reply.status, counters);
  if (!sent || stream.failed()) return After::kClose;
  return exchange.body_done && head.keep_alive ? After::kKeep : After::kDrain;
}

void Server::Impl::handle(const httplib::Request& from, httplib::Response& to) {
  Exchange& exchange = *t_exchange;
  try {
    exchange.reply = answer(from, exchange);
  } catch (const std::exception& e) {
    log.error("handler threw", {{"path", from.path.substr(0, 128)}, {"what", e.what()}});
    exchange.reply = error_reply(500, "internal", "internal error");
  } catch (...) {
    log.error("handler threw", {{"path", from.path.substr(0, 128)}});
    exchange.reply = error_reply(500, "internal", "internal error");
  }
  const Reply& reply = exchange.reply;
  to.status = reply.status;
  for (const auto& [name, value] : reply.headers) to.set_header(name, value);
  if (!exchange.body_done) to.set_header("Connection", "close");
  std::size_t total = reply.body.size();
  for (const SharedBytes& part : reply.parts) total += part.bytes.size();
  if (total == 0) return;
  // The reply lives in `exchange` until process_request has returned.
  to.set_content_provider(total, reply.content_type,
                          [&reply](std::size_t offset, std::size_t, httplib::DataSink& sink) {
                            if (offset < reply.body.size())
                              return sink.write(reply.body.data() + offset,
                                                reply.body.size() - offset);
                            std::size_t begin = reply.body.size();
                            for (const SharedBytes& part : reply.parts) {
                              if (offset < begin + part.bytes.size()) {
                                const auto rest = part.bytes.subspan(offset - begin);
                                return sink.write(reinterpret_cast<const char*>(rest.data()),
                                                  std::min(rest.size(), kPiece));
                              }
                              begin += part.bytes.size();
                            }
                            return false;
                          });
}

const Route* Server::Impl::find(const std::string& method, const std::vector<std::string>& segments,
                                bool* known_path) const {
  for (const Route& route : routes) {
    if (route.pattern.size() != segments.size()) continue;
    bool same = true;
    for (std::size_t i = 0; i < segments.size() && same; ++i) {
      same = route.pattern[i] == "{}" || route.pattern[i] == segments[i];
    }
    if (!same) continue;
    *known_path = true;
    if (route.method == method) return &route;
  }
  return nullptr;
}

Reply Server::Impl::answer(const httplib::Request& from, Exchange& exchange) {
  const std::vector<std::string> segments = split_path(from.path);
  bool known_path = false;
  const Route* route = find(from.method, segments, &known_path);
  if (route == nullptr) {
    if (known_path) return error_reply(405, "invalid", "method not allowed here");
    return error_reply(404, "not_found", "no such path");
  }
  Request request;
  request.method = from.method;
  request.path = from.path;
  request.query = std::multimap<std::string, std::string>(from.params.begin(), from.params.end());
  request.headers = exchange.head.headers;
  request.remote = exchange.conn.remote;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (route->pattern[i] != "{}") continue;
    if (!is_name(segments[i])) {
      return error_reply(400, "invalid", "path segment " + std::to_string(i + 1) + " is not a name",
                         "1 to 128 of A-Z a-z 0-9 . _ -");
    }
    request.args.push_back(segments[i]);
  }
  return run_route(*route, request, exchange);
}

Reply Server::Impl::run_route(const Route& route, Request& request, Exchange& exchange) {
  const auto length = exchange.head.content_length;
  const std::uint64_t limit = route.limit();
  if (!length && route.upload) return error_reply(411, "invalid", "Content-Length is missing");
  if (length.value_or(0) > limit) {
    return error_reply(413, "too_large", "body of " + std::to_string(*length) + " bytes",
                       "at most " + std::to_string(limit) + " bytes", std::to_string(*length));
  }
  if (length.value_or(0) > 0) {
    const std::string_view type = request.header("content-type");
    if (type.substr(0, type.find(';')) != route.content_type) {
      return error_reply(415, "unsupported",
                         "content type '" + std::string(type.substr(0, 100)) + "'",
                         route.content_type);
    }
  }
  ConnBody body(
      exchange.conn, length.value_or(0),
      PeerWait(exchange.conn.fd.get(), exchange.deadline, options.min_bytes_per_second, &abort),
      counters);
  if (route.upload) return run_upload(route, request, exchange, body);
  request.body.resize(static_cast<std::size_t>(length.value_or(0)));
  if (auto read = body.read_exact(std::as_writable_bytes(std::span(request.body))); !read) {
    return error_reply(read.error());
  }
  exchange.body_done = true;
  return route.small(request);
}

Reply Server::Impl::run_upload(const Route& route, const Request& request, Exchange& exchange,
                               ConnBody& body) {
  if (bulk.fetch_add(1) >= options.max_bulk) {
    bulk.fetch_sub(1);
    return error_reply(429, "unavailable", "too many uploads at once",
                       std::to_string(options.max_bulk));
  }
  struct Leave {
    std::atomic<std::size_t>& count;
    ~Leave() { count.fetch_sub(1); }
  } leave{bulk};
  Reply reply = route.upload(request, body);
  exchange.body_done = body.remaining() == 0;
  return reply;
}

void Server::Impl::stop_all() {
  {
    std::lock_guard lock(mutex);
    if (!started || stopping) return;
    stopping = true;
  }
  poller.stop();
  if (const auto fd = svr_sock_.load(); fd >= 0) {
    ::shutdown(fd, SHUT_RDWR);
    ::close(fd);
  }
  ready.notify_all();
  {
    std::unique_lock lock(mutex);
    quiet.wait_for(lock, options.stop_timeout, [&] { return queue.empty() && busy.empty(); });
    abort = true;
    for (const Conn* conn : busy) ::shutdown(conn->fd.get(), SHUT_RDWR);
  }
  // Only now: httplib cuts running replies short once its socket is gone.
  svr_sock_ = INVALID_SOCKET;
  workers.clear();
}

Server::Server(ServerOptions options, Logger log)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(log))) {}

Server::~Server() { stop(); }

void Server::route(std::string_view method, std::string_view pattern, Handler handler,
                   std::size_t body_limit, std::string_view content_type) {
  ARCH_CHECK(!impl_->started, << "routes are added before start");
  impl_->routes.push_back({std::string(method), split_path(pattern), std::string(content_type),
                           [body_limit] { return std::uint64_t{body_limit}; }, std::move(handler),
                           nullptr});
}

void Server::route_upload(std::string_view method, std::string_view pattern,
                          std::function<std::uint64_t()> body_limit, UploadHandler handler,
                          std::string_view content_type) {
  ARCH_CHECK(!impl_->started, << "routes are added before start");
  impl_->routes.push_back({std::string(method), split_path(pattern), std::string(content_type),
                           std::move(body_limit), nullptr, std::move(handler)});
}

Status Server::start() {
  ARCH_CHECK(!impl_->started, << "start is called once");
  ARCH_TRY_VOID(impl_->bind());
  impl_->started = true;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, impl_->options.threads); ++i) {
    impl_->workers.emplace_back([this] { impl_->work(); });
  }
  return impl_->poller.start(impl_->listen_fd());
}

void Server::stop() { impl_->stop_all(); }

int Server::port() const { return impl_->real_port; }

ServerStats Server::stats() const {
  const Counters& c = impl_->counters;
  return {c.connections, c.open,        c.busy,     c.refused,  c.requests,
          c.replies_4xx, c.replies_5xx, c.timeouts, c.bytes_in, c.bytes_out};
}

}  // namespace archipelago::http
