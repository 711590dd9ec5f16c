// SyncerCore by hand: identities, repeats, quorum, grace, members that die, zero weights (cases
// D-05, D-06, D-08, D-10, D-11).
#include "common/diloco/syncer_core.h"

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

struct Bench {
  explicit Bench(SyncerConfig c = small())
      : config(c), core(std::make_unique<SyncerCore>(c, 1, std::nullopt, now)) {
    core->set_layout("layout", {0.5, 0.5});
  }
  static SyncerConfig small() {
    SyncerConfig c;
    c.run_id = "run";
    c.fragments = 2;
    c.interval = 2;
    c.overlap = 1;
    c.max_lead = 4;
    c.rebuild_window = Duration{};
    c.quorum = 1;
    c.start_units = 1;
    c.budget = GlobalStep(100);
    return c;
  }
  static UnitKey key(const std::string& unit, std::int64_t incarnation = 1, char session = 'a') {
    return {unit, Incarnation(incarnation), std::string(32, session)};
  }
  Result<HelloReply> hello(const UnitKey& who) {
    HelloRequest request;
    request.who = who;
    request.datacenter = "a";
    request.layout_digest = "layout";
    request.dataset_sequences = 10'000;
    request.dataset_digest = "data";
    request.sequences_per_step = 2;
    return core->hello(request, now);
  }
  ProgressReport report(const UnitKey& who, std::vector<Contribution> contributes = {}) {
    ProgressReport r;
    r.who = who;
    r.phase = LearnerPhase::kStepping;
    r.local_step = LocalStep(5);
    r.step_seconds = 1;
    r.holds_all = true;
    r.contributes = std::move(contributes);
    return r;
  }
  void join(const UnitKey& who) {
    REQUIRE(hello(who));
    if (!seeded) REQUIRE(core->seeded(who, now));
    seeded = true;
    REQUIRE(core->progress(report(who), now));
  }
  Result<std::int32_t> upload(const UnitKey& who, std::int64_t t, std::int64_t base = 0,
                              std::int64_t tokens = 100) {
    const UploadKey upload_key{who, GlobalStep(t), 1};
    auto verdict = core->upload_started(upload_key, static_cast<std::int32_t>(t % 2),
                                        GlobalStep(base), 1000, now);
    if (!verdict) return fail(verdict.error());
    if (*verdict == UploadVerdict::kRepeat) return 0;
    UploadInfo info;
    info.key = upload_key;
    info.fragment = static_cast<std::int32_t>(t % 2);
    info.base = GlobalStep(base);
    info.counters = {1, tokens};
    info.bytes = 1000;
    return core->upload_complete(info, now);
  }
  std::optional<StartMerge> merge() {
    std::optional<StartMerge> out;
    for (auto& effect : core->take_effects())
      if (auto* m = std::get_if<StartMerge>(&effect)) out = std::move(*m);
    return out;
  }
  void wait(double s) {
    for (double left = s; left > 0; left -= 0.05) {
      now += seconds(0.05);
      core->tick(now);
    }
  }
  TimePoint now{seconds(1000)};
  SyncerConfig config;
  std::unique_ptr<SyncerCore> core;
  bool seeded = false;
};

const UnitKey kA = Bench::key("a-0"), kB = Bench::key("a-1");

}  // namespace

TEST_CASE("an old incarnation and a second session are fenced on every call, and named") {
  Bench b;
  const auto old = Bench::key("a-0", 3, 'x'), next = Bench::key("a-0", 4, 'y');
  b.join(old);
  REQUIRE(b.hello(next));
  for (const auto& zombie : {old, Bench::key("a-0", 4, 'z')}) {
    CAPTURE(zombie.incarnation, zombie.session);
    CHECK(b.hello(zombie).error().kind == ErrorKind::kFenced);
    CHECK(b.core->progress(b.report(zombie, {{GlobalStep(1), 1}}), b.now).error().kind ==
          ErrorKind::kFenced);
    CHECK(b.upload(zombie, 1).error().kind == ErrorKind::kFenced);
    CHECK(b.hello(zombie).error().message.find("4") != std::string::npos);
  }
  // Its heartbeats do not keep the unit alive either.
  CHECK_FALSE(b.merge());
  CHECK(b.core->status(b.now).units.size() == 1);
}

TEST_CASE("three collisions of a unit at one incarnation within ten minutes: DuplicateUnit") {
  Bench b;
  const auto lives = Bench::key("a-0", 3, 'x'), other = Bench::key("a-0", 3, 'y');
  b.join(lives);
  const auto duplicate = [&]() -> std::string {
    for (const auto& c : b.core->status(b.now).conditions)
      if (c.type == "DuplicateUnit") return c.status + " " + c.message;
    return "";
  };
  CHECK(duplicate().empty());
  SECTION("an old incarnation that comes back is none") {
    for (int i = 0; i < 5; ++i) CHECK_FALSE(b.hello(Bench::key("a-0", 2, 'y')));
    CHECK(duplicate().empty());
  }
  SECTION("nor is the same process that says hello again") {
    for (int i = 0; i < 5; ++i) CHECK(b.hello(lives));
    CHECK(duplicate().empty());
  }
  SECTION("raised by the third, taken back when ten minutes hold fewer") {
    for (int i = 0; i < 3; ++i) {
      CHECK(duplicate().find("True") == std::string::npos);
      CHECK_FALSE(b.hello(other));
      b.now += seconds(200);
    }
    CHECK(duplicate().find("True") == 0);
    CHECK(duplicate().find("a-0 (incarnation 3)") != std::string::npos);
    b.now += seconds(1);
    CHECK(duplicate().find("False") == 0);
  }
  SECTION("those of an earlier incarnation do not count") {
    CHECK_FALSE(b.hello(other));
    CHECK_FALSE(b.hello(other));
    REQUIRE(b.hello(Bench::key("a-0", 4, 'z')));
    CHECK_FALSE(b.hello(Bench::key("a-0", 4, 'w')));
    CHECK(duplicate().find("True") == std::string::npos);
  }
}

TEST_CASE("a higher incarnation that has not said hello is not fenced") {
  Bench b;
  b.join(kA);
  CHECK(b.core->progress(b.report(Bench::key("a-0", 2, 'q')), b.now).error().kind ==
        ErrorKind::kNotFound);
}

TEST_CASE(
    "repeats of an upload get the same receipt and are merged once, also after the commit and a "
    "restart") {
  Bench b;
  b.join(kA);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  CHECK(b.upload(kA, 1));
  const auto merge = b.merge();
  REQUIRE(merge);
  CHECK(merge->members.size() == 1);
  CHECK(b.upload(kA, 1));
  b.core->committed(GlobalStep(1), 1000, b.now);
  CHECK(b.upload(kA, 1));
  // Stale and future rounds are conflicts, a wrong base too.
  CHECK(b.upload(kA, 9).error().kind == ErrorKind::kConflict);
  CHECK(b.upload(kA, 2, 7).error().kind == ErrorKind::kConflict);
  auto state = merge->state;
  b.core = std::make_unique<SyncerCore>(b.config, 2, state, b.now);
  b.core->set_layout("layout", {0.5, 0.5});
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  CHECK(b.upload(kA, 1));
  const auto reply = b.core->reply(kA, b.now);
  REQUIRE(reply);
  REQUIRE(reply->outcomes.size() == 1);
  CHECK(reply->outcomes[0].merged);
}

TEST_CASE("nothing is merged below the quorum, however long it takes") {
  auto config = Bench::small();
  config.quorum = 2;
  Bench b(config);
  b.join(kA);
  b.join(kB);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  for (int i = 0; i < 200; ++i) {
    b.wait(0.5);
    REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
    REQUIRE_FALSE(b.merge());
  }
  CHECK(b.core->status(b.now).last_decision.find("1 of quorum 2") != std::string::npos);
  REQUIRE(b.core->progress(b.report(kB, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kB, 1));
  const auto merge = b.merge();
  REQUIRE(merge);
  CHECK(merge->members.size() == 2);
}

TEST_CASE("the grace window ends as soon as everybody who is expected spoke") {
  Bench b;
  b.join(kA);
  b.join(kB);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.core->progress(b.report(kB, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  REQUIRE(b.upload(kB, 1));
  REQUIRE(b.merge()->members.size() == 2);
  b.core->committed(GlobalStep(1), 0, b.now);
  // Round 2: a contributes, b declines: no wait.
  auto declining = b.report(kB);
  declining.declines = {GlobalStep(2)};
  REQUIRE(b.core->progress(declining, b.now));
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(2), 1}}), b.now));
  REQUIRE(b.upload(kA, 2));
  const auto merge = b.merge();
  REQUIRE(merge);
  CHECK(merge->members.size() == 1);
}

TEST_CASE("a silent member costs the grace window, then nothing") {
  Bench b;
  b.join(kA);
  b.join(kB);
  for (const auto& who : {kA, kB})
    REQUIRE(b.core->progress(b.report(who, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  REQUIRE(b.upload(kB, 1));
  REQUIRE(b.merge());
  b.core->committed(GlobalStep(1), 0, b.now);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(2), 1}}), b.now));
  REQUIRE(b.upload(kA, 2));
  CHECK_FALSE(b.merge());
  b.wait(1.0);
  CHECK_FALSE(b.merge());  // within 1.5 step times
  b.wait(0.7);
  CHECK(b.merge());
}

TEST_CASE("grace off closes at the quorum, slack waits what the averages leave, at most a step") {
  auto config = Bench::small();
  const bool slack = GENERATE(false, true);
  CAPTURE(slack);
  config.grace = slack ? GraceKind::kSlack : GraceKind::kOff;
  config.overlap = 1;
  config.grace_fraction = 0.8;
  Bench b(config);
  b.join(kA);
  b.join(kB);
  for (const auto& who : {kA, kB})
    REQUIRE(b.core->progress(b.report(who, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  REQUIRE(b.upload(kB, 1));
  REQUIRE(b.merge());
  b.core->committed(GlobalStep(1), 0, b.now);
  // Quorum of round 1 at once, of round 2 too; round 1 took no time after its close.
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(2), 1}}), b.now));
  REQUIRE(b.upload(kA, 2));
  if (!slack) {
    CHECK(b.merge());
    return;
  }
  CHECK_FALSE(b.merge());
  b.wait(0.7);
  CHECK_FALSE(b.merge());  // 0.8 x (1 - 0 - 0) step times
  b.wait(0.2);
  CHECK(b.merge());
}

TEST_CASE(
    "a member that is replaced before its upload is complete holds nobody, a complete one stays") {
  auto config = Bench::small();
  config.quorum = 2;
  Bench b(config);
  b.join(kA);
  b.join(kB);
  SECTION("incomplete") {
    for (const auto& who : {kA, kB})
      REQUIRE(b.core->progress(b.report(who, {{GlobalStep(1), 1}}), b.now));
    REQUIRE(b.upload(kA, 1));
    const auto next = Bench::key("a-1", 2, 'n');
    b.join(next);
    REQUIRE(b.core->progress(b.report(next, {{GlobalStep(1), 1}}), b.now));
    REQUIRE(b.upload(next, 1));
    const auto merge = b.merge();
    REQUIRE(merge);
    CHECK(merge->members[1].key.who == next);
  }
  SECTION("complete") {
    REQUIRE(b.core->progress(b.report(kB, {{GlobalStep(1), 1}}), b.now));
    REQUIRE(b.upload(kB, 1));
    const auto next = Bench::key("a-1", 2, 'n');
    b.join(next);
    CHECK(b.upload(next, 1).error().kind == ErrorKind::kConflict);
    REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
    REQUIRE(b.upload(kA, 1));
    const auto merge = b.merge();
    REQUIRE(merge);
    CHECK(merge->members[1].key.who == kB);
  }
}

TEST_CASE("an upload of no steps or no tokens is refused, not merged as zero weight") {
  Bench b;
  b.join(kA);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  CHECK(b.upload(kA, 1, 0, 0).error().kind == ErrorKind::kRefused);
  CHECK(b.upload(kA, 1, 0, -5).error().kind == ErrorKind::kRefused);
  CHECK_FALSE(b.merge());
}

TEST_CASE("a replaced unit is one unit, and time in which the server did not serve ages nobody") {
  Bench b;
  b.join(kA);
  b.join(Bench::key("a-0", 2, 'n'));
  CHECK(b.core->status(b.now).units.size() == 1);
  b.now += std::chrono::seconds(60);  // the server itself stalled
  b.core->tick(b.now);
  CHECK(b.core->status(b.now).units[0].phase == "Stepping");
  b.wait(11);
  CHECK(b.core->status(b.now).units[0].phase == "Silent");
}

TEST_CASE("another layout or data set is refused with both digests") {
  Bench b;
  b.join(kA);
  HelloRequest request;
  request.who = kB;
  request.layout_digest = "other";
  request.dataset_sequences = 10'000;
  request.dataset_digest = "data";
  auto refused = b.core->hello(request, b.now);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::kRefused);
  CHECK(refused.error().message.find("other") != std::string::npos);
  request.layout_digest = "layout";
  request.dataset_sequences = 5;
  request.dataset_digest = "small";
  CHECK(b.core->hello(request, b.now).error().kind == ErrorKind::kRefused);
}

TEST_CASE("names seen are bounded") {
  auto config = Bench::small();
  config.max_units = 2;
  Bench b(config);
  b.join(kA);
  b.join(kB);
  CHECK(b.hello(Bench::key("a-2")).error().kind == ErrorKind::kTooLarge);
}

namespace {

LiveSettings settings_of(const Bench& b, std::int64_t generation) {
  LiveSettings s = b.core->status(b.now).settings;
  s.generation = generation;
  return s;
}

void commit(Bench& b, std::int64_t t) {
  const auto merge = b.merge();
  REQUIRE(merge);
  REQUIRE(merge->t == GlobalStep(t));
  b.core->committed(GlobalStep(t), 1000, b.now);
}

}  // namespace

TEST_CASE(
    "live settings: a raised quorum waits for the next announcement, a lowered one does not") {
  Bench b;
  b.join(kA);
  b.join(kB);
  // Round 1 is announced with K = 1; both are expected, so one alone waits for the other's word.
  LiveSettings next = settings_of(b, 2);
  next.quorum = 2;
  REQUIRE(b.core->apply_settings(next, b.now));
  b.core->leave(kB, b.now);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  commit(b, 1);
  // Round 2 was announced after the change: one unit is no quorum, however long it waits.
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(2), 1}}), b.now));
  REQUIRE(b.upload(kA, 2));
  b.wait(5);
  CHECK_FALSE(b.merge());
  CHECK(b.core->status(b.now).last_decision == "round 2: 1 of quorum 2");
  // The round that waits is freed; otherwise a run that lost units could never go on.
  next.generation = 3;
  next.quorum = 1;
  REQUIRE(b.core->apply_settings(next, b.now));
  b.wait(2);
  commit(b, 2);
  CHECK(b.core->status(b.now).settings == next);
}

TEST_CASE("live settings: a raised budget goes on, a reached one stays") {
  SyncerConfig config = Bench::small();
  config.budget = GlobalStep(2);
  Bench b(config);
  b.join(kA);
  REQUIRE(b.upload(kA, 1));
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  commit(b, 1);
  LiveSettings next = settings_of(b, 2);
  next.budget = GlobalStep(3);
  REQUIRE(b.core->apply_settings(next, b.now));
  const auto reply = b.core->progress(b.report(kA, {{GlobalStep(2), 1}}), b.now);
  CHECK(reply->budget == GlobalStep(3));
  for (std::int64_t t : {2, 3}) {
    REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(t), 1}}), b.now));
    REQUIRE(b.upload(kA, t, t - 2));
    b.wait(2);
    const auto merge = b.merge();
    REQUIRE(merge);
    CHECK(merge->state.settings->settings.budget == GlobalStep(3));
    b.core->committed(GlobalStep(t), 1000, b.now);
  }
  std::optional<GlobalStep> final_version;
  for (const auto& effect : b.core->take_effects())
    if (const auto* publish = std::get_if<PublishFinal>(&effect)) final_version = publish->version;
  CHECK(final_version == GlobalStep(4));
  next.generation = 3;
  next.budget = GlobalStep(9);
  const auto late = b.core->apply_settings(next, b.now);
  REQUIRE_FALSE(late);
  CHECK(late.error().kind == ErrorKind::kRefused);
  CHECK(late.error().message.find("has reached its budget") != std::string::npos);
}

TEST_CASE("live settings: older generations, other values of the same one, lower budgets") {
  Bench b;
  LiveSettings next = settings_of(b, 5);
  next.quorum = 2;
  REQUIRE(b.core->apply_settings(next, b.now));
  CHECK(b.core->apply_settings(next, b.now));  // a repeat
  const auto kind = [&](auto change) {
    LiveSettings wrong = next;
    change(wrong);
    const auto done = b.core->apply_settings(wrong, b.now);
    return done ? ErrorKind::kInternal : done.error().kind;
  };
  CHECK(kind([](auto& s) { s.generation = 4; }) == ErrorKind::kConflict);
  CHECK(kind([](auto& s) { s.quorum = 1; }) == ErrorKind::kConflict);
  CHECK(kind([](auto& s) { s.generation = 6, s.budget = GlobalStep(99); }) == ErrorKind::kRefused);
  CHECK(kind([](auto& s) { s.generation = 6, s.quorum = 0; }) == ErrorKind::kRefused);
  CHECK(b.core->status(b.now).settings == next);
}

TEST_CASE("live settings: what a restart finds in the journal and in its spec") {
  struct Row {
    std::int64_t spec_generation;
    const char* source;
    bool journal_wins;
  };
  const Row row = GENERATE(values<Row>({{1, "uid", true},
                                        {3, "uid", true},
                                        {4, "uid", false},
                                        {5, "uid", false},
                                        {1, "other", false}}));
  CAPTURE(row.spec_generation, row.source);
  SyncerConfig config = Bench::small();
  config.settings_source = "uid";
  Bench b(config);
  const SyncerState before = b.core->state();
  LiveSettings live = settings_of(b, 4);
  live.quorum = 3;
  live.budget = GlobalStep(200);
  REQUIRE(b.core->apply_settings(live, b.now));
  // Records may be replayed in any order.
  SyncerState one = before, two = b.core->state();
  one.merge_newer(b.core->state());
  two.merge_newer(before);
  CHECK(one.settings->settings == live);
  CHECK(two.settings->settings == live);
  config.settings_source = row.source;
  config.settings_generation = row.spec_generation;
  config.quorum = 2;
  const SyncerCore again(config, 2, one, b.now);
  const LiveSettings now = again.status(b.now).settings;
  CHECK(now.quorum == (row.journal_wins ? 3 : 2));
  CHECK(now.generation == (row.journal_wins ? 4 : row.spec_generation));
  CHECK(again.state().settings->epoch == 2);
}

namespace {

ProgressReport newcomer(Bench& b, const UnitKey& who) {
  ProgressReport r = b.report(who);
  r.phase = LearnerPhase::kRecovering;
  r.local_step = LocalStep(0);
  r.wants_inner_state = true;
  return r;
}

}  // namespace

TEST_CASE("inner state: the last one who has any is asked to leave it, and it is the donor") {
  Bench b;
  b.join(kA);
  b.join(kB);
  CHECK(b.core->leave(kA, b.now).empty());  // nothing is committed yet
  b.join(kA);
  REQUIRE(b.core->progress(b.report(kA, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.core->progress(b.report(kB, {{GlobalStep(1), 1}}), b.now));
  REQUIRE(b.upload(kA, 1));
  REQUIRE(b.upload(kB, 1));
  commit(b, 1);
  CHECK(b.core->leave(kA, b.now).empty());  // kB has state
  const std::string name = b.core->leave(kB, b.now);
  CHECK(name == "left-1");
  const UnitKey next = Bench::key("a-0", 2, 'b'), other = Bench::key("a-1", 2, 'c');
  REQUIRE(b.hello(next));
  // Nobody has state, and no file: at once with fresh moments.
  CHECK(b.core->progress(newcomer(b, next), b.now)->fresh_start);
  b.core->inner_state_kept("left-9");  // of the future: not ours
  CHECK(b.core->progress(newcomer(b, next), b.now)->fresh_start);
  b.core->inner_state_kept(name);
  REQUIRE(b.hello(other));
  for (const UnitKey& who : {next, other}) {  // both at once
    const auto reply = b.core->progress(newcomer(b, who), b.now);
    REQUIRE(reply->recover);
    CHECK(reply->recover->id == "left-1");
    CHECK_FALSE(reply->fresh_start);
  }
  // It did not work: fresh moments at once.
  ProgressReport failed = newcomer(b, next);
  failed.recovery_failed = "left-1";
  CHECK(b.core->progress(failed, b.now)->fresh_start);
  // A learner that has state goes before the file.
  REQUIRE(b.core->progress(b.report(next), b.now));
  ProgressReport again = newcomer(b, other);
  again.recovery_failed = "left-1";
  const auto reply = b.core->progress(again, b.now);
  REQUIRE(reply->recover);
  CHECK(reply->recover->peer == "a-0");
}
