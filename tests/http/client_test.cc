// The client against servers that are late, broken, silent or gone.
#include "common/http/client.h"

#include <atomic>
#include <csignal>
#include <thread>

#include <catch2/catch.hpp>

#include "common/http/server.h"
#include "tests/http/raw_socket.h"

namespace archipelago::http {
namespace {

// A listener that gives each connection, in order, the next script: bytes to answer to its first
// request.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd, int connection)> serve)
      : serve_(std::move(serve)) {
    fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    ok_ = ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), size) == 0 &&
          ::listen(fd_.get(), 16) == 0 &&
          ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0;
    port_ = ntohs(at.sin_port);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      for (int i = 0; !stop.stop_requested();) {
        pollfd entry{fd_.get(), POLLIN, 0};
        if (::poll(&entry, 1, 20) <= 0) continue;
        const UniqueFd peer(::accept(fd_.get(), nullptr, nullptr));
        if (peer.valid()) serve_(peer.get(), i++);
      }
    });
  }
  [[nodiscard]] int port() const { return ok_ ? port_ : -1; }

 private:
  std::function<void(int, int)> serve_;
  UniqueFd fd_;
  bool ok_ = false;
  int port_ = -1;
  std::jthread thread_;
};

void wait_request(int fd) {
  std::string got;
  char piece[4096];
  while (got.find("\r\n\r\n") == std::string::npos) {
    const ssize_t n = ::recv(fd, piece, sizeof piece, 0);
    if (n <= 0) return;
    got.append(piece, static_cast<std::size_t>(n));
  }
}

void answer(int fd, std::string_view bytes) {
  (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

ClientOptions to(int port) {
  ClientOptions options;
  options.server = {"127.0.0.1", port};
  options.total_timeout = seconds(10);
  return options;
}

TEST_CASE("statuses become the decisions that callers make") {
  const auto [status, kind] = GENERATE(table<int, ErrorKind>({
      {400, ErrorKind::kInvalid},
      {401, ErrorKind::kRefused},
      {404, ErrorKind::kNotFound},
      {408, ErrorKind::kTimeout},
      {409, ErrorKind::kConflict},
      {410, ErrorKind::kFenced},
      {413, ErrorKind::kTooLarge},
      {415, ErrorKind::kUnsupported},
      {422, ErrorKind::kRefused},
      {429, ErrorKind::kUnavailable},
      {500, ErrorKind::kUnavailable},
      {507, ErrorKind::kNoSpace},
  }));
  CAPTURE(status);
  CHECK(kind_of_status(status) == kind);
  Response response;
  response.status = status;
  response.body = R"({"message":"why"})";
  CHECK(error_of(response, "GET /x").message == "GET /x: " + std::to_string(status) + ": why");
}

TEST_CASE("W-19: an answer that came too late is never taken for the next one's") {
  FakeServer server([](int fd, int connection) {
    wait_request(fd);
    if (connection == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    answer(fd, connection == 0 ? "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7"
                               : "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n8");
  });
  ClientOptions options = to(server.port());
  options.io_timeout = seconds(0.2);
  Client client(options);
  const auto late = client.request("GET", "/rounds/7");
  REQUIRE_FALSE(late);
  CHECK(late.error().kind == ErrorKind::kTimeout);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const auto next = client.request("GET", "/rounds/8");
  REQUIRE(next);
  CHECK(next->body == "8");
}

TEST_CASE("bytes beyond an answer drop the connection") {
  FakeServer server([](int fd, int connection) {
    wait_request(fd);
    answer(fd, connection == 0 ? "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 200 "
                                 "OK\r\nContent-Length: 1\r\n\r\nX"
                               : "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n2");
    wait_request(fd);
  });
  Client client(to(server.port()));
  CHECK(client.request("GET", "/")->body == "1");
  CHECK(client.request("GET", "/")->body == "2");
}

TEST_CASE("W-20: a kept connection that the server has closed costs one reconnect") {
  FakeServer server([](int fd, int) {
    wait_request(fd);
    answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  });
  Client client(to(server.port()));
  for (int i = 0; i < 5; ++i) {
    CHECK(client.request(i % 2 == 0 ? "GET" : "POST", "/", "{}")->body == "ok");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

TEST_CASE("a total deadline holds against a trickle") {
  std::atomic<bool> done{false};
  FakeServer server([&](int fd, int) {
    wait_request(fd);
    answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    while (!done && ::send(fd, "x", 1, MSG_NOSIGNAL) == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  ClientOptions options = to(server.port());
  options.total_timeout = seconds(0.5);
  Client client(options);
  const auto reply = client.request("GET", "/");
  done = true;
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == ErrorKind::kTimeout);
}

TEST_CASE("cancel from another thread ends a waiting request, and stays until resume") {
  std::atomic<bool> done{false};
  FakeServer server([&](int fd, int connection) {
    wait_request(fd);
    while (connection == 0 && !done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  });
  Client client(to(server.port()));
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    client.cancel();
  });
  auto reply = client.request("GET", "/");
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == ErrorKind::kCancelled);
  other.join();
  CHECK(client.request("GET", "/").error().kind == ErrorKind::kCancelled);
  done = true;
  client.resume();
  CHECK(client.request("GET", "/")->body == "ok");
}

TEST_CASE("broken answers are errors of the connection") {
  const std::string reply =
      GENERATE("", "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
               "HTTP/1.1 200 OK\r\nContent-Le");
  FakeServer server([&](int fd, int) {
    wait_request(fd);
    answer(fd, reply);
  });
  Client client(to(server.port()));
  const auto got = client.request("GET", "/");
  REQUIRE_FALSE(got);
  CHECK(got.error().kind == ErrorKind::kUnavailable);
}

TEST_CASE("answers without a length, with a NUL first, and too long") {
  FakeServer server([](int fd, int connection) {
    wait_request(fd);
    if (connection == 0) answer(fd, std::string_view("HTTP/1.1 200 OK\r\n\r\n\0abc", 23));
    if (connection == 1) answer(fd, "HTTP/1.1 200 OK\r\n\r\n" + std::string(3000, 'x'));
    if (connection == 2) answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n");
  });
  ClientOptions options = to(server.port());
  options.max_reply_bytes = 2000;
  Client client(options);
  const auto nul = client.request("GET", "/");
  REQUIRE(nul);
  CHECK(nul->body == std::string("\0abc", 4));
  CHECK(client.request("GET", "/").error().kind == ErrorKind::kTooLarge);
  CHECK(client.request("GET", "/").error().kind == ErrorKind::kTooLarge);
}

TEST_CASE("error bodies of streams are bounded and given back") {
  FakeServer server([](int fd, int) {
    wait_request(fd);
    answer(fd, "HTTP/1.1 410 Gone\r\nContent-Length: 200000\r\n\r\n{\"message\":\"fenced\"}" +
                   std::string(199980, ' '));
  });
  Client client(to(server.port()));
  bool sunk = false;
  const auto reply = client.get_stream(
      "/", {}, 1000,
      [&](std::span<const std::byte>) {
        sunk = true;
        return Status();
      },
      seconds(10));
  REQUIRE(reply);
  CHECK(reply->status == 410);
  CHECK(reply->body.size() == 64 * 1024);
  CHECK_FALSE(sunk);
}

TEST_CASE("a sink's refusal is the result") {
  FakeServer server([](int fd, int) {
    wait_request(fd);
    answer(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  });
  Client client(to(server.port()));
  const auto reply = client.get_stream(
      "/", {}, 1000,
      [](std::span<const std::byte>) -> Status { return fail(ErrorKind::kCorrupt, "bad magic"); },
      seconds(10));
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == ErrorKind::kCorrupt);
}

TEST_CASE("nobody there: a quick error that names the address") {
  int port = 0;
  {
    FakeServer gone([](int, int) {});
    port = gone.port();
  }
  Client client(to(port));
  const auto reply = client.request("GET", "/");
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == ErrorKind::kUnavailable);
  CHECK(reply.error().message.find(std::to_string(port)) != std::string::npos);
}

TEST_CASE("W-22: three gigabytes in one stream") {
  constexpr std::uint64_t kSize = (std::uint64_t{3} << 30) + 17;
  std::atomic<std::uint64_t> got{0};
  Server server({}, Logger::null());
  server.route_upload(
      "PUT", "/up", [] { return kSize; },
      [&](const Request&, BodyReader& body) {
        std::vector<std::byte> piece(std::size_t{1} << 20);
        while (body.remaining() > 0) {
          const auto n = body.read(piece);
          if (!n) return error_reply(n.error());
          got += *n;
        }
        return Reply::json("{}");
      });
  REQUIRE(server.start());
  Client client(to(server.port()));
  const auto reply = client.put_stream(
      "/up", {}, kSize,
      [](std::uint64_t, std::span<std::byte> into) -> Result<std::size_t> { return into.size(); },
      seconds(100));
  REQUIRE(reply);
  CHECK(reply->status == 200);
  CHECK(got == kSize);
}

}  // namespace
}  // namespace archipelago::http
