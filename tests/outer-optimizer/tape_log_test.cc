// The tape at the outer optimizer: what is told to be written, what a restart goes on with, and
// what may never disturb a run.
#include "outer-optimizer/tape_log.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/outer-optimizer/daemon_fixture.h"

namespace archipelago::outer {
namespace {

namespace tape = diloco::tape;

tape::Batch batch(std::int64_t from, std::size_t count, const std::string& unit = "a-0") {
  tape::Batch out{unit, Incarnation(2), from, {}};
  for (std::size_t i = 0; i < count; ++i)
    out.events.emplace_back(tape::Gap{from + static_cast<std::int64_t>(i) + 1});
  return out;
}

std::vector<tape::Record> records_of(const std::filesystem::path& folder) {
  std::vector<tape::Record> out;
  const auto scan = wire::scan_tape(folder / "events.tape", [&](tape::Record record) -> Status {
    out.push_back(std::move(record));
    return {};
  });
  if (!scan) FAIL(scan.error().describe());
  return out;
}

std::string body_of(const tape::Record& record) {
  const auto bytes = wire::encode_tape_record(record);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("events are told to be written when a round has taken them to the file") {
  const TempDir dir;
  {
    TapeLog log(dir.path() / "tape", "run", Logger::null());
    CHECK(log.events(batch(0, 3), false) == 0);
    CHECK(log.events(batch(0, 5), false) == 0);  // repeats, with two more
    CHECK(records_of(dir.path() / "tape").empty());
    log.round({GlobalStep(1), 0, {}, {}});
    CHECK(log.events(batch(3, 2), false) == 5);
    log.published(GlobalStep(1), 0, 77);
    CHECK(log.events(batch(5, 1), true) == 6);
    CHECK(log.events(batch(0, 1, "b-0"), true) == 1);
    CHECK(log.knows(GlobalStep(1), 0));
    CHECK_FALSE(log.knows(GlobalStep(2), 0));
    CHECK_FALSE(log.knows(GlobalStep(1), 1));
  }
  const auto records = records_of(dir.path() / "tape");
  REQUIRE(records.size() == 6);
  CHECK(records[0] == tape::Record(batch(0, 3)));
  CHECK(records[1] == tape::Record(batch(3, 2)));
  CHECK(std::holds_alternative<tape::Round>(records[2]));
  CHECK(records[3] == tape::Record(tape::Published{GlobalStep(1), 0, 77}));
  // The next process knows what is there.
  TapeLog again(dir.path() / "tape", "run", Logger::null());
  CHECK(again.knows(GlobalStep(1), 0));
  CHECK(again.events(batch(0, 6), true) == 6);
  CHECK(records_of(dir.path() / "tape").size() == 6);
  CHECK(again.events(batch(8, 1), true) == 9);  // two are missing, and it says so
  const auto gap = std::get<tape::Batch>(records_of(dir.path() / "tape").back());
  CHECK(gap.from == 7);
  CHECK(gap.events.front() == tape::LearnerEvent(tape::Gap{2}));
}

TEST_CASE("many learners between two rounds are written in blocks, none is lost") {
  const TempDir dir;
  TapeLog log(dir.path(), "run", Logger::null());
  constexpr std::size_t kUnits = 3 * TapeLog::kMaxPending + 5;
  for (std::size_t i = 0; i < kUnits; ++i)
    (void)log.events(batch(0, 1, "u-" + std::to_string(i)), false);
  CHECK(records_of(dir.path()).size() == 3 * TapeLog::kMaxPending);
  log.flush();
  CHECK(records_of(dir.path()).size() == kUnits);
}

TEST_CASE("a damaged or foreign tape is set aside, an impossible folder goes without") {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() / "tape");
  std::ofstream(dir.path() / "tape" / "events.tape") << std::string(500, 'x');
  {
    TapeLog log(dir.path() / "tape", "run", Logger::null());
    CHECK(log.events(batch(0, 1), true) == 1);
  }
  CHECK(std::filesystem::file_size(dir.path() / "tape" / "events.tape.unusable") == 500);
  {
    TapeLog other(dir.path() / "tape", "another run", Logger::null());
    CHECK(other.events(batch(0, 1), true) == 1);
  }
  CHECK(records_of(dir.path() / "tape").size() == 1);
  std::ofstream(dir.path() / "file") << "not a folder";
  TapeLog none(dir.path() / "file" / "tape", "run", Logger::null());
  CHECK(none.events(batch(0, 4), false) == 4);  // nobody shall keep them
  none.round({GlobalStep(1), 0, {}, {}});
}

TEST_CASE(
    "the daemon takes a sender's own events, by request or beside an upload, and nothing else") {
  const TempDir folder;
  auto daemon = Daemon::start(test_options(folder.path()), Logger::null());
  REQUIRE(daemon);
  FakeLearner learner((*daemon)->port(), "dc-0", 2);
  REQUIRE(learner.hello());
  const auto post = [&](const std::string& body, std::int64_t incarnation = 2) {
    const http::HeaderList headers{{"X-Archipelago-Unit", "dc-0"},
                                   {"X-Archipelago-Incarnation", std::to_string(incarnation)},
                                   {"X-Archipelago-Session", learner.who.session}};
    const auto reply =
        learner.client().request("POST", "/v1/tape", body, "application/octet-stream", headers);
    REQUIRE(reply);
    return *reply;
  };
  const auto good = post(body_of(batch(0, 3, "dc-0")));
  CHECK(good.status == 200);
  CHECK(nlohmann::json::parse(good.body)["tape"] == 3);
  CHECK(post(body_of(batch(0, 3, "dc-1"))).status == 400);  // another's
  CHECK(post(body_of(batch(std::int64_t{1} << 60, 1, "dc-0"))).status == 400);
  CHECK(post(body_of(tape::Final{GlobalStep(1)})).status == 400);
  CHECK(post("junk").status == 400);
  CHECK(post(body_of(batch(0, 3, "dc-0")).substr(0, 9)).status == 400);
  CHECK(post(std::string(wire::kMaxTapeBatch + 1, 'x')).status == 413);
  CHECK(post(body_of(batch(3, 1, "dc-0")), 1).status == 410);  // fenced
  REQUIRE(learner.seed());
  REQUIRE(learner.progress(1));
  const auto upload = [&](const std::string& text) {
    const auto head = learner.upload_header(1, 0);
    const auto payload = learner.payload(head.fragment, 0.01F, head.codec);
    auto sized = head;
    sized.payload_bytes = payload.size();
    const auto frame = wire::make_frame(sized, payload);
    REQUIRE(frame);
    const auto reply = learner.client().put_bytes(
        "/v1/rounds/1/upload", {{"X-Archipelago-Tape", text}}, *frame, std::chrono::seconds(10));
    REQUIRE(reply);
    return *reply;
  };
  // What is wrong with the events is no reason to refuse an upload.
  const std::string junk = GENERATE("zz", "123", "00", "");
  const auto taken = upload(junk);
  CHECK(taken.status == 200);
  CHECK_FALSE(nlohmann::json::parse(taken.body).contains("tape"));
  learner.wait_committed(1);
  (*daemon)->stop();
  const auto records = records_of(folder.path() / "tape");
  REQUIRE(records.size() >= 5);
  CHECK(std::get<tape::Opened>(records[0]).epoch == 1);
  CHECK(records[1] == tape::Record(batch(0, 3, "dc-0")));
  CHECK(std::get<tape::Published>(records[2]).t == GlobalStep(0));
}

}  // namespace archipelago::outer
