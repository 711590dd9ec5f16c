// Peers that are slow, endless, broken or hostile: the process lives, the others are served, memory
// comes back.
#include <atomic>
#include <fstream>
#include <thread>

#include <catch2/catch.hpp>

#include "common/http/client.h"
#include "common/http/server.h"
#include "tests/http/raw_socket.h"

namespace archipelago::http {
namespace {

struct Fixture {
  explicit Fixture(ServerOptions options) : server(options, Logger::null()) {
    server.route("GET", "/healthz", [](const Request&) { return Reply::text("ok"); });
    server.route(
        "POST", "/v1/progress", [](const Request&) { return Reply::json("{}"); }, 64 * 1024);
    server.route_upload(
        "PUT", "/up", [] { return std::uint64_t{1} << 30; },
        [this](const Request&, BodyReader& body) {
          std::vector<std::byte> piece(4096);
          while (body.remaining() > 0) {
            const auto n = body.read(piece);
            if (!n) {
              ++failed;
              return error_reply(n.error());
            }
          }
          return Reply::json("{}");
        });
    REQUIRE(server.start());
  }
  int probe() {
    ClientOptions options;
    options.server = {"127.0.0.1", server.port()};
    options.total_timeout = seconds(10);
    const auto reply = Client(options).request("GET", "/healthz");
    return reply ? reply->status : -1;
  }
  Server server;
  std::atomic<int> failed{0};
};

double rss_mib() {
  std::ifstream in("/proc/self/statm");
  double total = 0;
  double resident = 0;
  in >> total >> resident;
  return resident * 4096 / 1048576;
}

TEST_CASE("W-10: chunked bodies are refused whatever their chunks") {
  Fixture fixture({});
  const std::string chunk =
      GENERATE("-2\r\n", "80000000\r\n", "FFFFFFFFFFFFFFFF\r\n", "\r\n", "5\r\nhello\r\n");
  const std::string extra = GENERATE("", "Content-Length: 5\r\n");
  RawSocket raw(fixture.server.port());
  raw.send(
      "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: "
      "chunked\r\n" +
      extra + "\r\n" + chunk);
  CHECK(status_in(raw.receive()) == 400);
  CHECK(raw.closed());
  CHECK(fixture.probe() == 200);
}

TEST_CASE("W-11: heads without end are cut") {
  Fixture fixture({});
  const double before = rss_mib();
  const std::string piece =
      GENERATE(std::string(4096, 'a'), std::string("a: b\r\n"), std::string("\n"));
  RawSocket raw(fixture.server.port());
  raw.send("GET /healthz HTTP/1.1\r\n");
  std::size_t sent = 0;
  while (sent < (std::size_t{256} << 20) && raw.send(piece)) {
    sent += piece.size();
    if (sent > (1U << 20) && fixture.server.stats().open == 0) break;
  }
  CHECK(sent < (std::size_t{256} << 20));
  CHECK(rss_mib() - before < 50);
  CHECK(fixture.probe() == 200);
}

TEST_CASE("W-09, W-12, W-15: types and encodings that a library would interpret are refused") {
  Fixture fixture({});
  const std::string field =
      GENERATE("Content-Type: application/x-www-form-urlencoded\r\n",
               "Content-Type: application/octet-stream\r\nContent-Encoding: gzip\r\n",
               "Content-Type: application/octet-stream\r\nContent-Encoding: zstd\r\n",
               "Content-Type: multipart/form-data; boundary=b\r\n", "");
  RawSocket raw(fixture.server.port());
  raw.send("PUT /up HTTP/1.1\r\n" + field + "Content-Length: 9000\r\n\r\n" +
           std::string(9000, 'x'));
  CHECK(status_in(raw.receive()) == 415);
  RawSocket range(fixture.server.port());
  range.send("GET /healthz HTTP/1.1\r\nAccept-Encoding: gzip, br\r\nRange: bytes=" +
             std::string(8000, '0') + "-,\r\nConnection: close\r\n\r\n");
  const std::string reply = range.receive();
  CHECK(status_in(reply) == 200);
  CHECK(reply.ends_with("\r\n\r\nok"));
}

TEST_CASE("W-16: slow heads, slow bodies and idle connections keep nobody waiting") {
  ServerOptions options;
  options.threads = 4;
  options.max_bulk = 2;
  options.head_timeout = seconds(2);
  Fixture fixture(options);
  std::vector<std::unique_ptr<RawSocket>> slow;
  for (int i = 0; i < 64; ++i) {
    slow.push_back(std::make_unique<RawSocket>(fixture.server.port()));
    REQUIRE(slow.back()->connected());
    switch (i % 4) {
      case 0:
        slow.back()->send("PUT /u");
        break;
      case 1:
        slow.back()->send(
            "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: "
            "900000\r\n\r\n");
        break;
      case 2:
        slow.back()->send(
            "POST /v1/progress HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
            "60000\r\n\r\n{");
        break;
      default:
        break;
    }
  }
  for (int i = 0; i < 5; ++i) CHECK(fixture.probe() == 200);
  // All but two of the slow uploads were turned away, and a half-sent small request got 408.
  int refused = 0;
  for (std::size_t i = 1; i < slow.size(); i += 4)
    refused += status_in(slow[i]->receive(0.3)) == 429 ? 1 : 0;
  CHECK(refused >= 13);
  CHECK(status_in(slow[2]->receive(20)) == 408);
  CHECK(slow[2]->closed());
}

TEST_CASE("W-16: a body below the minimum rate ends, and its total time is bounded") {
  ServerOptions options;
  options.request_timeout = seconds(1);
  Fixture fixture(options);
  RawSocket raw(fixture.server.port());
  raw.send(
      "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: "
      "900000\r\n\r\nabc");
  raw.receive(20);
  CHECK(raw.closed());
  CHECK(fixture.failed == 1);
  CHECK(fixture.server.stats().timeouts >= 1);
}

TEST_CASE("W-20, W-22: resets in mid-upload and absurd lengths") {
  Fixture fixture({});
  for (int i = 0; i < 20; ++i) {
    RawSocket raw(fixture.server.port());
    raw.send(
        "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: "
        "900000\r\n\r\n" +
        std::string(100000, 'x'));
    raw.reset();
  }
  for (const char* length : {"9223372036854775808", "-1", "0x10", "5\r\nContent-Length: 6"}) {
    CAPTURE(length);
    RawSocket raw(fixture.server.port());
    raw.send("PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: " +
             std::string(length) + "\r\n\r\n");
    CHECK(status_in(raw.receive()) == 400);
  }
  RawSocket huge(fixture.server.port());
  huge.send(
      "PUT /up HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: "
      "9223372036854775807\r\n\r\n");
  CHECK(status_in(huge.receive()) == 413);
  CHECK(fixture.probe() == 200);
  const TimePoint end = SystemClock().now() + seconds(10);
  while (fixture.server.stats().open > 1 && SystemClock().now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(fixture.server.stats().busy == 0);
}

TEST_CASE("connections beyond the limit are refused, and their places come back") {
  ServerOptions options;
  options.max_connections = 4;
  Fixture fixture(options);
  {
    std::vector<std::unique_ptr<RawSocket>> peers;
    for (int i = 0; i < 4; ++i) peers.push_back(std::make_unique<RawSocket>(fixture.server.port()));
    const TimePoint end = SystemClock().now() + seconds(10);
    while (fixture.server.stats().open < 4 && SystemClock().now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    RawSocket fifth(fixture.server.port());
    CHECK(status_in(fifth.receive()) == 503);
  }
  const TimePoint end = SystemClock().now() + seconds(10);
  while (fixture.server.stats().open > 0 && SystemClock().now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(fixture.probe() == 200);
}

TEST_CASE("a burst of connects is served") {
  Fixture fixture({});
  std::atomic<int> ok{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 64; ++i) threads.emplace_back([&] { ok += fixture.probe() == 200 ? 1 : 0; });
  threads.clear();
  CHECK(ok == 64);
}

}  // namespace
}  // namespace archipelago::http
