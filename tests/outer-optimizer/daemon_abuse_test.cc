// Bad input at the daemon's ports: its own 4xx each, nothing merged, memory returned; a full disk;
// held places.
#include <atomic>
#include <cstring>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "outer-optimizer/store/file_ops.h"
#include "tests/http/raw_socket.h"
#include "tests/outer-optimizer/daemon_fixture.h"

namespace archipelago::outer {
namespace {

struct Fixture {
  explicit Fixture(std::int64_t budget = 6)
      : daemon(*Daemon::start(test_options(folder.path(), budget), Logger::null())),
        learner(daemon->port(), "dc-0", 2) {
    REQUIRE(learner.hello());
    REQUIRE(learner.seed());
    REQUIRE(learner.progress(1));
  }
  TempDir folder;
  std::unique_ptr<Daemon> daemon;
  FakeLearner learner;
};

struct Bad {
  std::string name;
  int status;
  std::function<void(wire::FrameHeader&)> header = [](wire::FrameHeader&) {};
  std::function<void(std::vector<std::byte>&)> frame = [](std::vector<std::byte>&) {};
};

TEST_CASE("each bad frame has its own refusal, and the round goes on") {
  Fixture fixture;
  FakeLearner& learner = fixture.learner;
  const std::vector<Bad> cases{
      {"another run", 422, [](auto& h) { h.run_id = *wire::run_id_bytes("another"); }},
      {"another layout", 422, [](auto& h) { h.layout_digest[0] ^= 1; }},
      {"stale base", 409, [](auto& h) { h.base = GlobalStep(-1); }},
      {"another fragment", 400, [](auto& h) { h.fragment = 0; }},
      {"fragment out of range", 400, [](auto& h) { h.fragment = 9; }},
      {"round in the path differs", 400, [](auto& h) { h.t = GlobalStep(2); }},
      {"fenced incarnation", 410, [](auto& h) { h.incarnation = Incarnation(1); }},
      {"another session", 410, [](auto& h) { h.session[0] ^= 1; }},
      {"nobody who said hello", 404, [](auto& h) { h.unit = "dc-9"; }},
      {"codec", 415, [](auto& h) { h.codec = codec::Codec::kInt8; }},
      {"kind", 400,
       [](auto& h) {
         h.kind = wire::FrameKind::kKeyframe;
         h.attempt = 0;
         h.steps = h.tokens = 0;
       }},
      {"no tokens", 422, [](auto& h) { h.tokens = 0; }},
      {"a flipped payload bit", 400, {}, [](auto& f) { f[f.size() - 20] ^= std::byte{1}; }},
      {"a flipped checksum bit", 400, {}, [](auto& f) { f[f.size() - 1] ^= std::byte{1}; }},
      {"a flipped header bit", 400, {}, [](auto& f) { f[70] ^= std::byte{1}; }},
      {"no magic", 400, {}, [](auto& f) { f[0] ^= std::byte{0xff}; }},
      {"version", 415, {}, [](auto& f) { f[4] = std::byte{9}; }},
      {"truncated", 400, {}, [](auto& f) { f.resize(f.size() - 30); }},
      {"only a few bytes", 400, {}, [](auto& f) { f.resize(5); }},
      {"empty", 400, {}, [](auto& f) { f.clear(); }},
      {"bytes left over", 400, {}, [](auto& f) { f.resize(f.size() + 9); }},
  };
  for (const auto& bad : cases) {
    CAPTURE(bad.name);
    auto header = learner.upload_header(1, 0);
    if (bad.header) bad.header(header);
    const auto payload = learner.payload(std::min(header.fragment, 1), 0.01F, header.codec);
    header.payload_bytes = payload.size();
    auto made = wire::make_frame(header, payload);
    if (!made) continue;  // a header that cannot even be written has no case here
    if (bad.frame) bad.frame(*made);
    const auto reply = learner.send(1, *made);
    CAPTURE(reply.body);
    CHECK(reply.status == bad.status);
    const auto json = nlohmann::json::parse(reply.body, nullptr, false);
    CHECK(json.value("message", "") != "");
    CHECK(fixture.daemon->uploads().budget().used() == 0);
  }
  CHECK(learner.upload(7, 5).status == 409);  // a round far ahead
  CHECK(status_of(*fixture.daemon).rounds == 0);
  learner.run_until(2);
}

TEST_CASE("non-finite and absurd values are refused by name") {
  Fixture fixture;
  FakeLearner& learner = fixture.learner;
  const float value = GENERATE(std::numeric_limits<float>::quiet_NaN(),
                               std::numeric_limits<float>::infinity(), 3e38F, -1.0F);
  CAPTURE(value);
  auto header = learner.upload_header(1, 0);
  auto payload = learner.payload(1, 0.01F, header.codec);
  std::memcpy(payload.data(), &value, sizeof value);  // the first block's scale
  header.payload_bytes = payload.size();
  const auto reply = learner.send(1, *wire::make_frame(header, payload));
  CHECK(reply.status == 422);
  CHECK(fixture.daemon->uploads().budget().used() == 0);
  learner.run_until(1);
}

TEST_CASE("too large is said before it is read") {
  Fixture fixture;
  http::RawSocket raw(fixture.daemon->port());
  raw.send(
      "PUT /v1/rounds/1/upload HTTP/1.1\r\nContent-Type: "
      "application/octet-stream\r\nContent-Length: 100000000000\r\n\r\n");
  CHECK(http::status_in(raw.receive()) == 413);
  CHECK(raw.closed());
}

TEST_CASE("uploads that break half-way leave nothing behind, and the same sender may try again") {
  Fixture fixture;
  auto header = fixture.learner.upload_header(1, 0);
  const auto payload = fixture.learner.payload(1, 0.01F, header.codec);
  header.payload_bytes = payload.size();
  const auto frame = *wire::make_frame(header, payload);
  for (std::size_t cut :
       {std::size_t{3}, std::size_t{100}, frame.size() - payload.size(), frame.size() - 1}) {
    http::RawSocket raw(fixture.daemon->port());
    raw.send(
        "PUT /v1/rounds/1/upload HTTP/1.1\r\nContent-Type: "
        "application/octet-stream\r\nContent-Length: " +
        std::to_string(frame.size()) + "\r\n\r\n");
    raw.send(std::string_view(reinterpret_cast<const char*>(frame.data()), cut));
    raw.reset();
  }
  const TimePoint end = SystemClock().now() + seconds(30);
  while ((fixture.daemon->uploads().budget().used() > 0 ||
          fixture.daemon->learner_port_stats().busy > 0) &&
         SystemClock().now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(fixture.daemon->uploads().budget().used() == 0);
  fixture.learner.run_until(2);
}

TEST_CASE("malformed messages are 400, deep ones too") {
  Fixture fixture;
  http::Client& client = fixture.learner.client();
  for (const std::string& body : {std::string("{"), std::string("[]"), std::string("{}"),
                                  std::string(60000, '['), std::string("{\"unit\":7}")}) {
    for (const char* path : {"/v1/hello", "/v1/progress", "/v1/leave"}) {
      CAPTURE(path, body.substr(0, 20));
      CHECK(client.request("POST", path, body)->status == 400);
    }
  }
  CHECK(client.request("POST", "/v1/progress", std::string(70000, ' '))->status == 413);
  CHECK(client.request("GET", "/v1/fragments/9?have=0")->status == 400);
  CHECK(client.request("GET", "/v1/fragments/0")->status == 400);
  CHECK(client.request("GET", "/statusz")->status == 404);  // the admin port's
  fixture.learner.run_until(1);
}

// A disk that is full while the switch is on.
class FullDisk final : public FileOps {
 public:
  std::atomic<bool> full{false};
  Status write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) override {
    if (full) return fail(ErrorKind::kNoSpace, "write: no space left on device");
    return FileOps::write_at(fd, bytes, offset);
  }
  Status preallocate(int fd, std::uint64_t size) override {
    if (full) return fail(ErrorKind::kNoSpace, "preallocate: no space left on device");
    return FileOps::preallocate(fd, size);
  }
};

TEST_CASE("a journal without room answers 507 and goes on by itself when there is some") {
  const TempDir folder;
  FullDisk disk;
  auto options = test_options(folder.path());
  options.store.ops = &disk;
  auto daemon = *Daemon::start(options, Logger::null());
  FakeLearner learner(daemon->port(), "dc-0");
  REQUIRE(learner.hello());
  REQUIRE(learner.seed());
  learner.run_until(1);
  disk.full = true;
  REQUIRE(learner.progress(2));
  REQUIRE(learner.upload(2, 0).status == 200);  // stored; the commit finds no room
  const TimePoint end = SystemClock().now() + seconds(30);
  int status = 0;
  FakeLearner newcomer(daemon->port(), "dc-1", 1, 'c');
  while (SystemClock().now() < end) {
    const auto hello = newcomer.hello();  // its identity cannot be journaled
    status = hello ? 200 : hello.error().kind == ErrorKind::kNoSpace ? 507 : -1;
    if (status == 507) break;
  }
  CHECK(status == 507);
  CHECK(learner.upload(3, 1).status == 507);
  CHECK(status_of(*daemon).global_step == GlobalStep(1));
  disk.full = false;
  while (!newcomer.hello() && SystemClock().now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  learner.wait_committed(2);
  bool cleared = false;
  while (!cleared && SystemClock().now() < end) {
    for (const auto& condition : status_of(*daemon).conditions) {
      cleared |= condition.type == "JournalFull" && condition.status == "False";
    }
  }
  CHECK(cleared);
}

TEST_CASE("one folder, one process, one port, one server") {
  Fixture fixture;
  const auto second = Daemon::start(test_options(fixture.folder.path()), Logger::null());
  REQUIRE_FALSE(second);
  const TempDir other;
  auto options = test_options(other.path());
  options.flags.listen.port = fixture.daemon->port();
  const auto third = Daemon::start(options, Logger::null());
  REQUIRE_FALSE(third);
  CHECK(third.error().message.find(std::to_string(fixture.daemon->port())) != std::string::npos);
  CHECK(third.error().kind != ErrorKind::kRefused);
}

}  // namespace
}  // namespace archipelago::outer
