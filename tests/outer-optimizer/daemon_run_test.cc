// Whole runs through the daemon's ports: seed, rounds, downlink, restart, the end.
#include <cstring>
#include <fstream>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/wire/safetensors.h"
#include "tests/outer-optimizer/daemon_fixture.h"

namespace archipelago::outer {
namespace {

std::unique_ptr<Daemon> start(const DaemonOptions& options) {
  auto daemon = Daemon::start(options, Logger::null());
  if (!daemon) FAIL(daemon.error().describe());
  return std::move(*daemon);
}

TEST_CASE("a run from the first hello to the model") {
  const TempDir folder;
  auto daemon = start(test_options(folder.path()));
  FakeLearner learner(daemon->port(), "dc-0");
  REQUIRE(learner.hello());
  CHECK(learner.last.seed);
  CHECK(learner.last.versions.empty());
  REQUIRE(learner.seed(0.5F));
  const auto keyframe = learner.fetch(0);
  REQUIRE(keyframe);
  CHECK(keyframe->header.kind == wire::FrameKind::kKeyframe);
  CHECK(keyframe->header.t == GlobalStep(0));
  CHECK(keyframe->payload == learner.payload(0, 0.5F, codec::Codec::kFp32));
  CHECK_FALSE(learner.fetch(0, 0));

  learner.run_until(3);
  const auto delta =
      learner.fetch(1, 0);  // fragment 1 was merged at t = 1 and 3: in order, one after another
  REQUIRE(delta);
  CHECK(delta->header.kind == wire::FrameKind::kDelta);
  CHECK(delta->header.base == GlobalStep(0));
  CHECK(delta->header.t == GlobalStep(1));
  CHECK(delta->header.members == std::vector<std::string>{"dc-0"});
  CHECK(learner.fetch(1, 1)->header.t == GlobalStep(3));
  CHECK(learner.fetch(1, -1)->header.t == GlobalStep(3));

  learner.run_until(6);
  CHECK(daemon->wait() == Daemon::End::kFinished);
  CHECK(learner.fetch(0, -1)->header.t == GlobalStep(7));
  const auto status = status_of(*daemon);
  CHECK(status.rounds == 6);
  CHECK(status.units.at(0).merged_rounds == 6);
  CHECK(status.bytes_up > 0);
  CHECK(learner.client().request("GET", "/v1/model/config.json")->body == "{\"model\":1}");
  CHECK(learner.client().request("GET", "/v1/model/..%2fepoch")->status != 200);
  const auto model = wire::SafetensorsFile::open(folder.path() / "model" / "model.safetensors");
  REQUIRE(model);
  CHECK(model->tensors().size() == 5);
  CHECK((*model->read("d.bias"))[0] < 0.5F);  // base - theta was positive: the model moved down

  std::ifstream lines(folder.path() / "metrics.jsonl");
  std::int64_t expected = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    CHECK(json["t"] == ++expected);
    CHECK(json["participants"] == 1);
    CHECK(json["loss"] == 2.5);
  }
  CHECK(expected == 6);
}

TEST_CASE("a restart goes on where it was, bit for bit, under the next epoch") {
  const TempDir folder;
  const auto options = test_options(folder.path(), 20);
  std::vector<std::byte> before;
  std::int64_t epoch = 0;
  {
    auto daemon = start(options);
    FakeLearner learner(daemon->port(), "dc-0", 3);
    REQUIRE(learner.hello());
    REQUIRE(learner.seed());
    learner.run_until(5);  // a checkpoint at 4, one journaled round behind it
    before = learner.fetch(1)->payload;
    epoch = learner.last.epoch;
  }
  auto daemon = start(options);
  CHECK(status_of(*daemon).global_step == GlobalStep(5));
  FakeLearner learner(daemon->port(), "dc-0", 3);
  CHECK(learner.fetch(1)->payload == before);
  // The session is known from the journal: a report needs no new hello, and repeats of what is
  // committed are harmless.
  REQUIRE(learner.progress());
  CHECK(learner.last.epoch == epoch + 1);
  CHECK(learner.last.committed == GlobalStep(5));
  const auto repeat = learner.upload(5, 3, 0.05F);
  CHECK((repeat.status == 409 || repeat.status == 200));
  CHECK(status_of(*daemon).rounds == 5);
  FakeLearner old(daemon->port(), "dc-0", 2, 'b');
  CHECK(old.hello().error().kind == ErrorKind::kFenced);
  learner.run_until(7);
}

TEST_CASE("without gradients in the journal a restart goes back to the checkpoint, and says so") {
  const TempDir folder;
  auto options = test_options(folder.path(), 7);
  options.store.journal_gradients = false;
  std::vector<std::byte> at_four;
  std::int64_t lineage = 0;
  {
    auto daemon = start(options);
    FakeLearner learner(daemon->port(), "dc-0");
    REQUIRE(learner.hello());
    REQUIRE(learner.seed());
    learner.run_until(4);  // a checkpoint
    at_four = learner.fetch(0)->payload;
    learner.run_until(6);
    REQUIRE(learner.fetch(0)->payload != at_four);
    REQUIRE(learner.progress());
    lineage = learner.last.lineage;
    REQUIRE(lineage > 0);
  }
  std::int64_t second = 0;
  {
    auto daemon = start(options);
    CHECK(status_of(*daemon).global_step == GlobalStep(4));
    FakeLearner learner(daemon->port(), "dc-0");
    CHECK(learner.fetch(0)->payload == at_four);
    REQUIRE(learner.progress());  // the session was noted
    CHECK(learner.last.committed == GlobalStep(4));
    second = learner.last.lineage;
    CHECK(second != lineage);
    const auto with = [&](const std::string& named) {
      return learner.client()
          .request("GET", "/v1/fragments/0?have=4", {}, "application/json",
                   {{"X-Archipelago-Lineage", named}})
          ->status;
    };
    CHECK(with(std::to_string(lineage)) == 409);
    CHECK(with(std::to_string(second)) == 204);
    CHECK(with("5x") == 400);
    learner.run_until(7);
    std::string why;
    for (const auto& c : status_of(*daemon).conditions)
      if (c.type == "RolledBack") why = c.status + " " + c.reason + " " + c.message;
    CAPTURE(why);
    CHECK(why.find("True NoJournal back to step 4; checkpoint.journal was off") == 0);
    CHECK(daemon->wait() == Daemon::End::kFinished);
    at_four = learner.fetch(0)->payload;
  }
  // What is finished stays finished: the end is in a checkpoint, be it between two.
  auto daemon = start(options);
  CHECK(status_of(*daemon).phase == "finished");
  CHECK(status_of(*daemon).global_step == GlobalStep(7));
  FakeLearner learner(daemon->port(), "dc-0");
  const auto last = learner.fetch(0);
  CHECK(last->header.t == GlobalStep(8));
  CHECK(last->payload == at_four);
}

TEST_CASE("a repeated upload gets its receipt and counts once") {
  const TempDir folder;
  auto options = test_options(folder.path());
  options.core.quorum = 2;  // the round stays open
  auto daemon = start(options);
  FakeLearner one(daemon->port(), "dc-0");
  REQUIRE(one.hello());
  REQUIRE(one.seed());
  FakeLearner two(daemon->port(), "dc-1", 1, 'c');
  REQUIRE(two.hello());
  REQUIRE(one.progress(1));
  REQUIRE(two.progress());
  const auto first = one.upload(1, 0);
  const auto second = one.upload(1, 0);
  CHECK(first.status == 200);
  CHECK(second.status == 200);
  CHECK(first.body == second.body);
  CHECK(daemon->uploads().size() == 1);
  CHECK(status_of(*daemon).global_step ==
        GlobalStep(0));  // one unit, twice, is not a quorum of two
  REQUIRE(two.progress(1));
  CHECK(two.upload(1, 0).status == 200);
  one.wait_committed(1);
  CHECK(one.upload(1, 0).status == 200);  // merged: the same receipt after the commit
  CHECK(status_of(*daemon).mean_participants == Approx(2));
  CHECK(daemon->uploads().size() == 0);
}

TEST_CASE("settings change while a run is live, and a restart finds them") {
  const TempDir folder;
  auto options = test_options(folder.path());
  options.core.quorum = 2;
  const auto put = [](FakeLearner& learner, const std::string& body) {
    return *learner.client().request("PUT", "/v1/settings", body);
  };
  const auto body = [](int generation, int quorum, int budget) {
    return nlohmann::json{{"generation", generation},
                          {"quorum", quorum},
                          {"grace", {{"rule", "off"}, {"steps", 1.5}, {"fraction", 0.8}}},
                          {"budget", {{"globalSteps", budget}}}}
        .dump();
  };
  {
    auto daemon = start(options);
    FakeLearner one(daemon->port(), "dc-0");
    REQUIRE(one.hello());
    REQUIRE(one.seed());
    REQUIRE(one.progress(1));
    REQUIRE(one.upload(1, 0).status == 200);
    CHECK(status_of(*daemon).global_step == GlobalStep(0));
    const auto changed = put(one, body(2, 1, 8));  // the round that waits for two is freed
    REQUIRE(changed.status == 200);
    CHECK(nlohmann::json::parse(changed.body)["generation"] == 2);
    one.wait_committed(1);
    CHECK(put(one, body(1, 2, 8)).status == 409);
    CHECK(put(one, body(2, 2, 8)).status == 409);
    const auto wrong = put(one, body(3, 1, 7));
    CHECK(wrong.status == 422);
    CHECK(wrong.body.find("settings.budget.globalSteps: given 7, allowed 8 or more") !=
          std::string::npos);
    CHECK(put(one, body(3, 0, 8)).status == 422);
    CHECK(put(one, "[").status == 400);
    one.run_until(4);
  }
  auto daemon = start(options);  // its spec still says quorum 2 and six steps
  const auto status = status_of(*daemon);
  CHECK(status.settings.generation == 2);
  CHECK(status.settings.quorum == 1);
  CHECK(status.budget == GlobalStep(8));
  FakeLearner one(daemon->port(), "dc-0");
  REQUIRE(one.progress());
  one.run_until(8);
  CHECK(one.last.budget == GlobalStep(8));
  CHECK(daemon->wait() == Daemon::End::kFinished);
  CHECK(one.fetch(0, -1)->header.t == GlobalStep(9));
  CHECK(put(one, body(3, 1, 9)).status == 422);
}

TEST_CASE("a held reply goes out with the news") {
  const TempDir folder;
  auto options = test_options(folder.path());
  options.core.heartbeat_seconds = 20;  // a reply without news would come after that
  auto daemon = start(options);
  FakeLearner one(daemon->port(), "dc-0");
  REQUIRE(one.hello());
  REQUIRE(one.seed());
  one.run_until(1);  // the first commit waits for everybody who is there
  FakeLearner two(daemon->port(), "dc-1", 1, 'c');
  REQUIRE(two.hello());
  REQUIRE(two.progress());
  REQUIRE(one.progress());
  std::optional<Result<diloco::ProgressReply>> held;
  const std::int64_t seen = two.last.news;
  std::jthread waiting([&] {
    do held = two.progress({}, false);
    while (*held && two.last.committed < GlobalStep(2));
  });
  REQUIRE(one.progress(2));
  REQUIRE(one.upload(2, 0).status == 200);
  waiting.join();
  REQUIRE(*held);
  CHECK(two.last.committed >= GlobalStep(2));
  CHECK(two.last.news > seen);
}

TEST_CASE("a second seeder, a second layout and another run's folder are refused") {
  const TempDir folder;
  {
    auto daemon = start(test_options(folder.path()));
    FakeLearner one(daemon->port(), "dc-0");
    REQUIRE(one.hello());
    FakeLearner two(daemon->port(), "dc-1", 1, 'c');
    REQUIRE(two.hello());
    CHECK_FALSE(two.last.seed);
    CHECK(two.seed_one(0, 1.0F).status == 409);
    CHECK(two.client().request("GET", "/v1/fragments/0?have=-1")->status == 409);
    auto bad = one.seed_one(0, 0.5F);
    CHECK(bad.status == 200);
    CHECK(one.client().request("GET", "/v1/fragments/0?have=-1")->status == 409);  // all or nothing
    REQUIRE(one.seed());
    CHECK(one.seed_one(0, 0.7F).status == 409);
    two.layout = *diloco::Layout::create(
        {{"other", {4}, diloco::MergeClass::kOther}, {"x", {2}, diloco::MergeClass::kOther}});
    const auto refused = two.hello();
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::kRefused);
    const nlohmann::json body{{"layout", two.layout.to_text()}};
    const auto put =
        two.client().request("PUT", "/v1/layout/" + two.layout.digest().hex(), body.dump());
    CHECK(put->status == 422);
    CHECK(put->body.find("embed.weight") != std::string::npos);  // the first difference by name
    const auto wrong =
        two.client().request("PUT", "/v1/layout/" + std::string(64, '0'), body.dump());
    CHECK(wrong->status == 400);
  }
  auto options = test_options(folder.path());
  options.flags.run_id = options.store.run_id = options.core.run_id = "another";
  const auto other = Daemon::start(options, Logger::null());
  REQUIRE_FALSE(other);
  CHECK(other.error().kind == ErrorKind::kRefused);
  CHECK(other.error().message.find("storage.adopt") != std::string::npos);
  SECTION("adopted, it goes on under its own id") {
    options.adopt = true;
    auto adopted = start(options);
    FakeLearner again(adopted->port(), "dc-0", 2);
    REQUIRE(again.hello());
    http::ClientOptions to_admin;
    to_admin.server = {"127.0.0.1", adopted->admin_port()};
    http::Client admin(to_admin);
    const auto status = nlohmann::json::parse(admin.request("GET", "/statusz")->body);
    CHECK(status["runId"] == test_options(folder.path()).flags.run_id);
    CHECK_FALSE(again.last.seed);
  }
}

TEST_CASE("inner state goes through the spool") {
  const TempDir folder;
  auto daemon = start(test_options(folder.path()));
  FakeLearner learner(daemon->port(), "dc-0");
  REQUIRE(learner.hello());
  CHECK(learner.client().request("GET", "/v1/recovery/e1-1")->status == 404);
  const std::vector<std::byte> state(12345, std::byte{7});
  REQUIRE(learner.client().put_bytes("/v1/recovery/e1-1", {}, state, seconds(10))->status == 200);
  for (int i = 0; i < 2; ++i) {
    CHECK(learner.client().request("GET", "/v1/recovery/e1-1")->body.size() == state.size());
  }
  const std::vector<std::byte> huge(4U << 20);
  CHECK(learner.client().put_bytes("/v1/recovery/e1-2", {}, huge, seconds(10))->status == 413);
}

TEST_CASE("what a learner leaves behind outlives a restart, the newest alone, relays do not") {
  const TempDir folder;
  const std::vector<std::byte> state(12345, std::byte{7});
  {
    auto daemon = start(test_options(folder.path()));
    FakeLearner learner(daemon->port(), "dc-0");
    REQUIRE(learner.hello());
    REQUIRE(learner.seed());
    for (const char* id : {"left-1", "e1-1", "left-2"})
      REQUIRE(learner.client()
                  .put_bytes(std::string("/v1/recovery/") + id, {}, state, seconds(10))
                  ->status == 200);
    CHECK(learner.client().request("GET", "/v1/recovery/left-1")->status == 404);
  }
  auto daemon = start(test_options(folder.path()));
  FakeLearner learner(daemon->port(), "dc-0");
  CHECK(learner.client().request("GET", "/v1/recovery/left-2")->body.size() == state.size());
  CHECK(learner.client().request("GET", "/v1/recovery/e1-1")->status == 404);
}

TEST_CASE("a torn last line of the tape is ended before the next is written") {
  const TempDir folder;
  const auto path = folder.path() / "metrics.jsonl";
  std::ofstream(path) << "{\"t\":1}\n{\"t\":2,\"lo";
  for (int t : {3, 4}) {
    auto lines = LineFile::open(path);
    REQUIRE(lines);
    REQUIRE(lines->append({{"t", t}}));
  }
  CHECK(*read_file(path) == "{\"t\":1}\n{\"t\":2,\"lo\n{\"t\":3}\n{\"t\":4}\n");
}

TEST_CASE("a run needs an id") {
  config::DecoupledTraining training;
  training.spec.sync.max_lead = 48;
  training.spec.datacenters.push_back({});
  Flags flags;
  flags.run_id = "r";
  REQUIRE(make_options(flags, training));
  flags.run_id.clear();
  CHECK(make_options(flags, training).error().kind == ErrorKind::kRefused);
}

}  // namespace
}  // namespace archipelago::outer
