// What learners know and the disk does not: bases for a lost one, epochs of another, lineages that
// end (protocol.md §6).
#include <cmath>

#include <catch2/catch.hpp>

#include "common/diloco/syncer_core.h"

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

// P = H = 2: fragment t mod 2 at step t.
struct Bench {
  explicit Bench(std::optional<SyncerState> state = std::nullopt, std::int64_t epoch = 1)
      : core(config(epoch), epoch, std::move(state), now) {
    core.set_layout("layout", {0.5, 0.5});
  }
  static SyncerConfig config(std::int64_t epoch) {
    SyncerConfig c;
    c.run_id = "run";
    c.fragments = c.interval = 2;
    c.overlap = 1;
    c.max_lead = 4;
    c.quorum = c.start_units = 1;
    c.budget = GlobalStep(100);
    c.rebuild_window = seconds(3);
    c.lineage_draw = 76 + epoch;  // each process draws its own
    return c;
  }
  HelloReply hello(const UnitKey& who, const Standing& standing = {}) {
    HelloRequest request;
    request.who = who;
    request.datacenter = "a";
    request.layout_digest = "layout";
    request.dataset_sequences = 10'000;
    request.dataset_digest = "data";
    request.sequences_per_step = 2;
    request.standing = standing;
    auto reply = core.hello(request, now);
    REQUIRE(reply);
    return *reply;
  }
  ProgressReply progress(const UnitKey& who, Standing standing = {}) {
    ProgressReport r;
    r.who = who;
    r.phase = LearnerPhase::kStepping;
    r.step_seconds = 1;
    r.holds_all = true;
    standing.bases.clear();
    r.standing = standing;
    auto reply = core.progress(r, now);
    REQUIRE(reply);
    return *reply;
  }
  void wait(double s) {
    for (double left = s; left > 0; left -= 0.05) {
      now += seconds(0.05);
      core.tick(now);
    }
  }
  std::optional<StatusDocument::Condition> condition(const std::string& type) {
    for (const auto& c : core.status(now).conditions)
      if (c.type == type) return c;
    return std::nullopt;
  }
  template <class E>
  std::vector<E> effects() {
    std::vector<E> out;
    for (auto& effect : core.take_effects())
      if (auto* e = std::get_if<E>(&effect)) out.push_back(std::move(*e));
    return out;
  }
  TimePoint now{seconds(1000)};
  SyncerCore core;
};

UnitKey key(const std::string& unit, std::int64_t incarnation = 1) {
  return {unit, Incarnation(incarnation), std::string(32, 's')};
}
const UnitKey kA = key("a-0"), kB = key("a-1");

Standing standing(std::int64_t committed, std::vector<GlobalStep> bases, std::int64_t epoch = 4,
                  std::int64_t lineage = 9, std::uint64_t mark = 70) {
  return {epoch, lineage, GlobalStep(committed), mark, std::move(bases)};
}
const std::vector<GlobalStep> kBases20{GlobalStep(20), GlobalStep(19)};

SyncerState seeded_state(std::int64_t committed) {
  SyncerState s;
  s.epoch = 4;
  s.lineage = 9;
  s.committed = GlobalStep(committed);
  s.seeded = true;
  s.layout_digest = "layout";
  s.dataset_sequences = 10'000;
  s.dataset_digest = "data";
  return s;
}

}  // namespace

TEST_CASE("an empty disk takes no seed while a learner holds bases, and asks it for them") {
  Bench b;
  CHECK(b.hello(kB).progress.seed);  // before anybody says otherwise
  const auto first = b.hello(kA, standing(20, kBases20));
  CHECK_FALSE(first.progress.seed);
  CHECK(first.progress.epoch == 5);  // above all that were heard
  CHECK(first.progress.lineage == 0);
  CHECK(first.progress.rebuild.empty());
  CHECK(first.progress.leases.empty());
  CHECK(b.core.seeded(kB, b.now).error().kind == ErrorKind::kConflict);
  const auto raised = b.effects<RaiseEpoch>();
  REQUIRE(raised.size() == 1);
  CHECK(raised[0].epoch == 5);

  b.wait(3.1);
  CHECK(b.progress(kA).rebuild == std::vector<std::int32_t>{0, 1});
  CHECK(b.progress(kB).rebuild.empty());
  CHECK_FALSE(b.progress(kB).seed);
  CHECK(b.core.rebuild_allowed(kA, 0));
  CHECK(b.core.rebuild_allowed(kB, 0).error().kind == ErrorKind::kConflict);
  CHECK(b.core.rebuild_staged(kA, 0, GlobalStep(-1), b.now).error().kind == ErrorKind::kInvalid);

  auto last = b.core.rebuild_staged(kA, 0, GlobalStep(20), b.now);
  REQUIRE(last);
  CHECK_FALSE(*last);
  CHECK(b.core.rebuild_allowed(kA, 0).error().kind == ErrorKind::kConflict);  // taken
  CHECK(b.core.status(b.now).last_decision.find("1 of 2") != std::string::npos);
  CHECK_FALSE(b.condition("Rebuilt"));
  last = b.core.rebuild_staged(kA, 1, GlobalStep(19), b.now);
  REQUIRE(last);
  CHECK(*last);

  const auto rebuilt = b.condition("Rebuilt");
  REQUIRE(rebuilt);
  CHECK(rebuilt->status == "True");
  CHECK(rebuilt->message.find("global step 20") != std::string::npos);
  CHECK(rebuilt->message.find("older than published") == std::string::npos);
  CHECK(b.core.state().committed == GlobalStep(20));
  CHECK(b.core.versions() == kBases20);
  CHECK(b.core.lineage() > 0);
  CHECK(b.core.lineage() != 9);
  const auto reply = b.progress(kA);
  CHECK(reply.lineage == b.core.lineage());
  CHECK(reply.committed == GlobalStep(20));
  REQUIRE_FALSE(reply.leases.empty());
  for (const auto& lease : reply.leases) CHECK(lease.block >= 70);
  CHECK(reply.lease_mark > reply.leases.back().block);
  REQUIRE_FALSE(reply.rounds.empty());
  CHECK(reply.rounds[0].t == GlobalStep(21));
}

TEST_CASE("of each fragment the newest base is asked, and of another learner where one dies") {
  Bench b;
  (void)b.hello(kA, standing(21, {GlobalStep(18), GlobalStep(21)}));
  (void)b.hello(kB, standing(20, {GlobalStep(20), GlobalStep(19)}));
  b.wait(3.1);
  CHECK(b.progress(kA).rebuild == std::vector<std::int32_t>{1});
  CHECK(b.progress(kB).rebuild == std::vector<std::int32_t>{0});
  REQUIRE(b.core.rebuild_staged(kA, 1, GlobalStep(21), b.now));
  // B says no more: A's older base of fragment 0 is what is left, and the condition says so.
  for (int i = 0; i < 600; ++i) {
    b.wait(0.5);
    if (!b.progress(kA).rebuild.empty()) break;
  }
  CHECK(b.progress(kA).rebuild == std::vector<std::int32_t>{0});
  const auto last = b.core.rebuild_staged(kA, 0, GlobalStep(18), b.now);
  REQUIRE(last);
  REQUIRE(*last);
  CHECK(b.core.state().committed == GlobalStep(21));
  const std::string message = b.condition("Rebuilt")->message;
  INFO(message);
  CHECK(message.find("fragment 0 (version 18)") != std::string::npos);
  CHECK(message.find("fragment 1") == std::string::npos);
}

TEST_CASE("bases of one lineage are never mixed with another's") {
  Bench b;
  (void)b.hello(kA, standing(30, {GlobalStep(30), GlobalStep(29)}, 4, 9));
  (void)b.hello(kB, standing(12, {GlobalStep(12), GlobalStep(11)}, 6, 11));
  b.wait(3.1);
  // The later epoch is what the run stood at, though its global step is lower.
  CHECK(b.progress(kA).rebuild.empty());
  CHECK(b.progress(kB).rebuild == std::vector<std::int32_t>{0, 1});
  REQUIRE(b.core.rebuild_staged(kB, 0, GlobalStep(12), b.now));
  const auto last = b.core.rebuild_staged(kB, 1, GlobalStep(11), b.now);
  REQUIRE(last);
  REQUIRE(*last);
  CHECK(b.core.state().committed == GlobalStep(12));
  CHECK(b.core.state().epoch == 7);
}

TEST_CASE("what was staged over a base is asked for again") {
  Bench b;
  (void)b.hello(kA, standing(20, kBases20));
  b.wait(3.1);
  REQUIRE(b.core.rebuild_staged(kA, 0, GlobalStep(20), b.now));
  b.core.rebuild_unstaged(0);
  b.wait(0.1);
  CHECK(b.progress(kA).rebuild == std::vector<std::int32_t>{0, 1});
}

TEST_CASE("a run where nobody holds bases begins with a seed") {
  Bench b;
  SECTION("first incarnations: at once") { CHECK(b.hello(kA).progress.seed); }
  SECTION("a restarted unit: after its peers had time to say hello") {
    CHECK_FALSE(b.hello(key("a-0", 2)).progress.seed);
    b.wait(3.1);
    CHECK(b.progress(key("a-0", 2)).seed);
  }
  SECTION("bases not of every fragment are none") {
    (void)b.hello(kA, standing(20, {GlobalStep(20)}));
    b.wait(3.1);
    CHECK(b.progress(kA).seed);
  }
  CHECK_FALSE(b.condition("Rebuilt"));
}

TEST_CASE("with nothing published a learner that said no hello is asked for one") {
  Bench b;
  ProgressReport r;
  r.who = kA;
  CHECK(b.core.progress(r, b.now).error().kind == ErrorKind::kNotFound);
}

TEST_CASE("a data folder older than what learners have seen begins a lineage") {
  struct Row {
    const char* name;
    std::int64_t epoch, committed, lineage;  // what the learner has heard
    bool rolled_back;
    std::int64_t epoch_after;
  };
  // The folder: epoch 5 began from a state of epoch 4 at step 10, lineage 9.
  const auto row = GENERATE(
      Row{"as it was", 4, 10, 9, false, 5}, Row{"was away", 3, 2, 9, false, 5},
      Row{"saw a later step", 4, 11, 9, true, 5}, Row{"saw a later epoch", 8, 10, 9, true, 9},
      Row{"an epoch of that number that was not ours", 5, 10, 9, true, 6},
      Row{"of another lineage: takes keyframes anyway", 4, 50, 8, false, 5},
      Row{"of another lineage and epoch", 8, 50, 8, false, 9},
      Row{"knows nothing", 0, 0, 0, false, 5});
  CAPTURE(row.name);
  Bench b(seeded_state(10), 5);
  const auto reply = b.hello(kA, standing(row.committed, kBases20, row.epoch, row.lineage, 5000));
  CHECK(reply.progress.epoch == row.epoch_after);
  CHECK(b.core.state().epoch == row.epoch_after);
  CHECK((b.core.lineage() != 9) == row.rolled_back);
  CHECK(reply.progress.lineage == b.core.lineage());
  CHECK(reply.progress.committed == GlobalStep(10));
  CHECK(b.effects<RaiseEpoch>().size() == (row.epoch_after == 5 ? 0U : 1U));
  const auto condition = b.condition("RolledBack");
  REQUIRE(condition.has_value() == row.rolled_back);
  for (const auto& lease : reply.progress.leases) CHECK((lease.block >= 5000) == row.rolled_back);
  if (!condition) return;
  CHECK(condition->message.find("back to 10") != std::string::npos);
  CHECK(condition->message.find("global step " + std::to_string(row.committed)) !=
        std::string::npos);
  // Heard once: it begins no further lineage.
  const auto lineage = b.core.lineage();
  (void)b.progress(kA, standing(10, {}, reply.progress.epoch, lineage, 5000));
  CHECK(b.core.lineage() == lineage);
}

TEST_CASE("a lineage is kept in the state, and checked where it is named") {
  Bench b;
  CHECK(b.core.check_lineage(123));  // nothing is published: nothing to contradict
  (void)b.hello(kA);
  REQUIRE(b.core.seeded(kA, b.now));
  const auto lineage = b.core.lineage();
  REQUIRE(lineage > 0);
  CHECK(b.core.state().lineage == lineage);
  CHECK(b.core.check_lineage(lineage));
  CHECK(b.core.check_lineage(0));
  CHECK(b.core.check_lineage(lineage ^ 2).error().kind == ErrorKind::kConflict);

  Bench again(b.core.state(), 2);
  CHECK(again.core.lineage() == lineage);
  again.core.rolled_back("back to step 7; a damaged record");
  CHECK(again.core.lineage() != lineage);
  REQUIRE(again.condition("RolledBack"));
  CHECK(again.condition("RolledBack")->message == "back to step 7; a damaged record");

  auto old = b.core.state();  // of a build without lineages
  old.lineage = 0;
  CHECK(Bench(old, 3).core.lineage() > 0);
}

TEST_CASE(
    "a state that goes back forgets later steps, and keeps who was there and what was leased") {
  SyncerState s = seeded_state(57);
  s.final_published = s.finished = true;
  s.units["a-0"].incarnation = Incarnation(3);
  s.ledger.emplace().reserved = 64;
  for (int t = 49; t <= 57; ++t) s.recent[GlobalStep(t)].t = GlobalStep(t);
  s.validation_step = GlobalStep(55);
  s.validation_loss = 2;
  s.back_to(GlobalStep(50));
  CHECK(s.committed == GlobalStep(50));
  CHECK(s.seeded);
  CHECK_FALSE(s.final_published);
  CHECK_FALSE(s.finished);
  CHECK(s.recent.size() == 2);
  CHECK(s.recent.rbegin()->first == GlobalStep(50));
  CHECK(std::isnan(s.validation_loss));
  CHECK(s.units.at("a-0").incarnation == Incarnation(3));
  CHECK(s.ledger->reserved == 64);
  CHECK(s.lineage == 0);
  CHECK(Bench(s, 6).core.lineage() > 0);  // each start from it draws its own
}

TEST_CASE("of two states the lineage of the later epoch counts") {
  SyncerState first = seeded_state(10), second = seeded_state(8);
  second.epoch = 5;
  second.lineage = 12;
  SyncerState newer = first;
  newer.merge_newer(second);
  CHECK(newer.lineage == 12);
  newer = second;
  newer.merge_newer(first);
  CHECK(newer.lineage == 12);
  second.lineage = 0;  // says nothing
  newer = first;
  newer.merge_newer(second);
  CHECK(newer.lineage == 9);
}
