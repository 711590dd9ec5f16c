#include "tests/operator/kube/scripted_server.h"

#include <arpa/inet.h>
#include <cctype>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/check.h"

namespace archipelago::op {
namespace {

bool wait_readable(int fd, const std::atomic<bool>& stopping) {
  while (!stopping) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 20) > 0) return true;
  }
  return false;
}

// More bytes into `text`; false at the end or on stop.
bool receive(int fd, std::string& text, const std::atomic<bool>& stopping) {
  if (!wait_readable(fd, stopping)) return false;
  char buffer[16384];
  const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  text.append(buffer, static_cast<std::size_t>(n));
  return true;
}

SeenRequest parse(const std::string& head) {
  SeenRequest out;
  std::size_t line_end = head.find("\r\n");
  const std::string first = head.substr(0, line_end);
  const std::size_t a = first.find(' ');
  const std::size_t b = first.rfind(' ');
  out.method = first.substr(0, a);
  out.target = first.substr(a + 1, b - a - 1);
  while (line_end + 2 < head.size()) {
    const std::size_t begin = line_end + 2;
    line_end = head.find("\r\n", begin);
    if (line_end == std::string::npos) break;
    const std::string line = head.substr(begin, line_end - begin);
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    out.headers.emplace(name, line.substr(colon + 2));
  }
  return out;
}
}  // namespace

bool Peer::send(const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size() && !stopping_) {
    pollfd entry{fd_, POLLOUT, 0};
    if (::poll(&entry, 1, 20) <= 0) continue;
    const ssize_t n =
        ::send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) {
      dropped_ = true;
      return false;
    }
    done += static_cast<std::size_t>(n);
  }
  return done == bytes.size();
}

void Peer::reply(int status, const std::string& body, const std::string& extra_heads) {
  send("HTTP/1.1 " + std::to_string(status) +
       " X\r\nContent-Type: application/json\r\nAudit-Id: audit-1\r\n" + extra_heads +
       "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

void Peer::status(int code, const std::string& reason, const std::string& message,
                  const std::string& extra_heads) {
  const nlohmann::json body{{"kind", "Status"},
                            {"apiVersion", "v1"},
                            {"code", code},
                            {"reason", reason},
                            {"message", message}};
  reply(code, body.dump(), extra_heads);
}

bool Peer::begin_stream() {
  return send(
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
}

bool Peer::chunk(const std::string& bytes) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return send(size + bytes + "\r\n");
}

bool Peer::event(const std::string& type, const nlohmann::json& object) {
  return chunk(nlohmann::json{{"type", type}, {"object", object}}.dump() + "\n");
}

void Peer::end_stream() { send("0\r\n\r\n"); }

void Peer::hold() {
  std::string ignored;
  while (receive(fd_, ignored, stopping_)) {
  }
  dropped_ = true;
}

ScriptedServer::ScriptedServer(Handler handler, bool ipv6)
    : handler_(std::move(handler)), ipv6_(ipv6) {
  listener_ = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ARCH_CHECK(listener_ >= 0);
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  sockaddr* address = ipv6 ? reinterpret_cast<sockaddr*>(&v6) : reinterpret_cast<sockaddr*>(&v4);
  socklen_t size = ipv6 ? sizeof v6 : sizeof v4;
  ARCH_CHECK(::bind(listener_, address, size) == 0 && ::listen(listener_, 128) == 0);
  ARCH_CHECK(::getsockname(listener_, address, &size) == 0);
  port_ = ntohs(ipv6 ? v6.sin6_port : v4.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

ScriptedServer::~ScriptedServer() {
  stopping_ = true;
  acceptor_.join();
  for (Connection& c : connections_) c.thread.join();
  ::close(listener_);
}

void ScriptedServer::accept_all() {
  int number = 0;
  while (wait_readable(listener_, stopping_)) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    std::erase_if(connections_, [](Connection& c) {
      if (!*c.done) return false;
      c.thread.join();
      return true;
    });
    auto done = std::make_shared<std::atomic<bool>>(false);
    connections_.push_back({std::thread([this, fd, n = ++number, done] {
                              serve(fd, n);
                              ::close(fd);
                              *done = true;
                            }),
                            done});
  }
}

void ScriptedServer::serve(int fd, int number) {
  std::string text;
  Peer peer(fd, stopping_);
  while (!peer.dropped()) {
    std::size_t end = std::string::npos;
    while ((end = text.find("\r\n\r\n")) == std::string::npos)
      if (!receive(fd, text, stopping_)) return;
    SeenRequest request = parse(text.substr(0, end + 2));
    text.erase(0, end + 4);
    const std::string length = request.header("content-length");
    const std::size_t size = length.empty() ? 0 : std::stoul(length);
    while (text.size() < size)
      if (!receive(fd, text, stopping_)) return;
    request.body = text.substr(0, size);
    text.erase(0, size);
    request.connection = number;
    {
      std::lock_guard lock(mutex_);
      seen_.push_back(request);
    }
    handler_(request, peer);
  }
}

KubeAccess ScriptedServer::access() const {
  KubeAccess out;
  out.https = false;
  out.server = {ipv6_ ? "::1" : "127.0.0.1", port_};
  return out;
}

std::vector<SeenRequest> ScriptedServer::seen() const {
  std::lock_guard lock(mutex_);
  return seen_;
}

int ScriptedServer::count(const std::string& method, const std::string& part) const {
  int out = 0;
  for (const SeenRequest& r : seen()) out += r.method == method && r.has(part);
  return out;
}

}  // namespace archipelago::op
