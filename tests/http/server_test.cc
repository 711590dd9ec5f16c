// The server's contract with well-behaved peers.
#include "common/http/server.h"

#include <atomic>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/http/client.h"
#include "tests/http/raw_socket.h"

namespace archipelago::http {
namespace {

ClientOptions to(int port) {
  ClientOptions options;
  options.server = {"127.0.0.1", port};
  options.total_timeout = seconds(20);
  return options;
}

TEST_CASE("routes, arguments, queries and errors") {
  Server server({}, Logger::null());
  server.route("GET", "/v1/fragments/{}", [](const Request& request) {
    const auto have = request.int_param("have", 0, 100);
    if (!have) return error_reply(have.error());
    return Reply::text(request.args.at(0) + ":" + std::to_string(*have) + ":" +
                       std::string(request.header("x-id")));
  });
  server.route(
      "POST", "/v1/echo", [](const Request& request) { return Reply::json(request.body, 201); },
      1000);
  server.route("GET", "/v1/boom",
               [](const Request&) -> Reply { throw std::runtime_error("secret path /etc"); });
  REQUIRE(server.start());
  Client client(to(server.port()));

  auto got = client.request("GET", "/v1/fragments/7?have=3", {}, {}, {{"X-Id", "u%41"}});
  REQUIRE(got);
  CHECK(got->status == 200);
  CHECK(got->body == "7:3:u%41");  // header values are not decoded
  CHECK(client.request("GET", "/v1/fragments/7?have=101")->status == 400);
  CHECK(client.request("GET", "/v1/fragments/7")->status == 400);
  CHECK(client.request("POST", "/v1/echo", "{\"a\":1}")->body == "{\"a\":1}");
  CHECK(client.request("POST", "/v1/echo", std::string(1001, ' '))->status == 413);
  CHECK(client.request("POST", "/v1/echo", "{}", "text/plain")->status == 415);
  CHECK(client.request("PUT", "/v1/echo", "{}")->status == 405);
  CHECK(client.request("GET", "/nothing")->status == 404);
  for (const char* path :
       {"/v1/fragments/%2e%2e", "/v1/fragments/a%5Cb", "/v1/fragments/%00", "/v1/fragments/."}) {
    CAPTURE(path);
    CHECK(client.request("GET", path)->status == 400);
  }
  CHECK(client.request("GET", "/v1/fragments/..%2f..%2fetc%2fpasswd")->status == 404);
  CHECK(client.request("GET", "/v1/fragments/" + std::string(300, 'a'))->status == 400);

  const auto boom = client.request("GET", "/v1/boom");
  CHECK(boom->status == 500);
  CHECK(boom->body.find("secret") == std::string::npos);
  CHECK(boom->header("exception_what").empty());
  const auto json = nlohmann::json::parse(client.request("GET", "/nothing")->body);
  for (const char* key : {"error", "message", "expected", "current"}) CHECK(json.contains(key));
  const Error error =
      error_of(*client.request("POST", "/v1/echo", std::string(1001, ' ')), "POST /v1/echo");
  CHECK(error.kind == ErrorKind::kTooLarge);
  CHECK(error.message.find("1001") != std::string::npos);
}

TEST_CASE("A-07: host :: takes both families") {
  ServerOptions options;
  options.listen = {"::", 0};
  Server server(options, Logger::null());
  server.route("GET", "/x", [](const Request&) { return Reply::text("y"); });
  REQUIRE(server.start());
  for (const char* host : {"127.0.0.1", "::1"}) {
    ClientOptions to;
    to.server = {host, server.port()};
    Client client(to);
    const auto reply = client.request("GET", "/x");
    if (!reply && std::string(host) == "::1") {
      WARN("this machine has no IPv6 loopback: " << reply.error().message);
      continue;
    }
    REQUIRE(reply);
    CHECK(reply->body == "y");
  }
}

TEST_CASE("a port in use is an error, not a second server") {
  Server first({}, Logger::null());
  REQUIRE(first.start());
  ServerOptions same;
  same.listen.port = first.port();
  Server second(same, Logger::null());
  const auto started = second.start();
  REQUIRE_FALSE(started);
  CHECK(started.error().message.find(std::to_string(first.port())) != std::string::npos);
}

TEST_CASE("uploads stream into the caller's buffer, downloads leave without a copy") {
  constexpr std::size_t kSize = std::size_t{40} << 20;
  std::vector<std::byte> stored(kSize);
  std::size_t pieces = 0;
  Server server({}, Logger::null());
  server.route_upload(
      "PUT", "/up", [] { return std::uint64_t{kSize}; },
      [&](const Request&, BodyReader& body) {
        auto read = body.read_exact(std::span(stored).first(static_cast<std::size_t>(body.size())),
                                    std::size_t{1} << 20, [&](std::span<const std::byte>) {
                                      ++pieces;
                                      return Status();
                                    });
        return read ? Reply::json("{}") : error_reply(read.error());
      });
  const auto data = std::make_shared<std::vector<std::byte>>(kSize);
  for (std::size_t i = 0; i < kSize; i += 4096) (*data)[i] = static_cast<std::byte>(i >> 12);
  server.route("GET", "/down", [&](const Request&) {
    Reply reply =
        Reply::bytes({{data, std::span(*data).first(100)}, {data, std::span(*data).subspan(100)}});
    reply.headers.emplace_back("X-Version", "5");
    return reply;
  });
  REQUIRE(server.start());
  Client client(to(server.port()));
  REQUIRE(client.put_bytes("/up", {}, *data, seconds(30))->status == 200);
  CHECK(stored == *data);
  CHECK(pieces == 40);
  std::fill(stored.begin(), stored.end(), std::byte{0});
  REQUIRE(client
              .put_stream(
                  "/up", {}, kSize,
                  [&](std::uint64_t offset, std::span<std::byte> into) -> Result<std::size_t> {
                    const std::size_t n = std::min<std::size_t>(into.size(), 300000);
                    std::copy_n(data->begin() + static_cast<std::ptrdiff_t>(offset), n,
                                into.begin());
                    return n;
                  },
                  seconds(30))
              ->status == 200);
  CHECK(stored == *data);
  std::vector<std::byte> got;
  std::string version;
  auto reply = client.get_stream(
      "/down", {}, kSize,
      [&](std::span<const std::byte> bytes) {
        got.insert(got.end(), bytes.begin(), bytes.end());
        return Status();
      },
      seconds(30),
      [&](const Response& head, std::uint64_t length) {
        version = head.header("x-version");
        got.reserve(length);
        return Status();
      });
  REQUIRE(reply);
  CHECK(version == "5");
  CHECK(got == *data);
  reply = client.get_stream(
      "/down", {}, kSize - 1, [](std::span<const std::byte>) { return Status(); }, seconds(30));
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == ErrorKind::kTooLarge);
}

TEST_CASE("an upload beyond its limit is answered at once, and the sender learns it") {
  std::atomic<int> called{0};
  Server server({}, Logger::null());
  server.route_upload(
      "PUT", "/up", [] { return std::uint64_t{1000}; },
      [&](const Request&, BodyReader&) {
        ++called;
        return Reply::json("{}");
      });
  REQUIRE(server.start());
  Client client(to(server.port()));
  const std::vector<std::byte> body(std::size_t{32} << 20);
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.put_bytes("/up", {}, body, seconds(20));
    REQUIRE(reply);
    CHECK(reply->status == 413);
  }
  RawSocket raw(server.port());
  raw.send(
      "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: "
      "100000000000\r\n\r\n");
  CHECK(status_in(raw.receive()) == 413);
  CHECK(raw.closed());
  CHECK(called == 0);
  RawSocket no_length(server.port());
  no_length.send("PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\n\r\n");
  CHECK(status_in(no_length.receive(20, "}")) == 411);
}

TEST_CASE("an early refusal by the handler reaches a sender that is still sending") {
  Server server({}, Logger::null());
  server.route_upload(
      "PUT", "/up", [] { return std::uint64_t{1} << 40; },
      [&](const Request&, BodyReader& body) {
        std::vector<std::byte> some(1000);
        if (auto read = body.read_exact(some); !read) return error_reply(read.error());
        return error_reply(409, "conflict", "round is closed", "8", "9");
      });
  REQUIRE(server.start());
  Client client(to(server.port()));
  std::uint64_t asked = 0;
  const auto reply = client.put_stream(
      "/up", {}, std::uint64_t{1} << 33,
      [&](std::uint64_t, std::span<std::byte> into) -> Result<std::size_t> {
        asked += into.size();
        return into.size();
      },
      seconds(60));
  REQUIRE(reply);
  CHECK(reply->status == 409);
  CHECK(asked < std::uint64_t{1} << 31);  // it stopped asking for bytes
  // The connection was dropped, the next request works.
  CHECK(client.request("GET", "/nothing")->status == 404);
}

TEST_CASE("stop ends idle, held and half-sent requests in bounded time and is idempotent") {
  ServerOptions options;
  options.stop_timeout = seconds(0.2);
  Server server(options, Logger::null());
  server.route_upload(
      "PUT", "/up", [] { return std::uint64_t{1000}; },
      [&](const Request&, BodyReader& body) {
        std::vector<std::byte> all(1000);
        auto read = body.read_exact(all);
        return read ? Reply::json("{}") : error_reply(read.error());
      });
  REQUIRE(server.start());
  RawSocket idle(server.port());
  RawSocket half(server.port());
  half.send(
      "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: "
      "1000\r\n\r\nabc");
  RawSocket head(server.port());
  head.send("GET / HT");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.stop();
  server.stop();
  CHECK(server.stats().open == 0);
  idle.receive(20);
  CHECK(idle.closed());
  half.receive(20);
  CHECK(half.closed());
}

TEST_CASE("keep-alive, pipelining and Expect") {
  Server server({}, Logger::null());
  server.route(
      "POST", "/e", [](const Request& request) { return Reply::text("<" + request.body + ">"); },
      100000);
  REQUIRE(server.start());
  RawSocket raw(server.port());
  const std::string one =
      "POST /e HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n";
  raw.send(one + "11" + one + "22" + one.substr(0, 20));
  CHECK(raw.receive(20, "<22>").find("<11>") != std::string::npos);
  raw.send(one.substr(20) + "33");
  CHECK(status_in(raw.receive(20, "<33>")) == 200);
  raw.send(
      "POST /e HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 3\r\nExpect: "
      "100-continue\r\n\r\n");
  CHECK(status_in(raw.receive(20, "\r\n\r\n")) == 100);
  raw.send("444");
  CHECK(status_in(raw.receive(20, "<444>")) == 200);
  CHECK(server.stats().connections == 1);
  CHECK(server.stats().requests == 4);
}

}  // namespace
}  // namespace archipelago::http
