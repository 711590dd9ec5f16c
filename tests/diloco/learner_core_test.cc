// LearnerCore by hand: order of a boundary, applies without gaps, pauses, repeats after a restart,
// leases, recovery.
#include "common/diloco/learner_core.h"

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

struct Bench {
  explicit Bench(LearnerConfig c = small()) : core(std::move(c), now) {}
  static LearnerConfig small() {
    LearnerConfig c;
    c.who = {"a-0", Incarnation(1), std::string(32, 's')};
    c.fragments = 2;
    c.interval = 2;
    c.overlap = 1;
    c.max_lead = 4;
    return c;
  }
  ProgressReply reply(std::int64_t committed) {
    ProgressReply r;
    r.epoch = epoch;
    r.news = ++news;
    r.phase = RunPhase::kRunning;
    r.committed = GlobalStep(committed);
    // P = H = 2: fragment t % 2 at step t.
    for (int p = 0; p < 2; ++p) {
      std::int64_t v = committed;
      while (v > 0 && v % 2 != p) --v;
      r.versions.emplace_back(v);
    }
    r.leases = {{0, 0, 256}};
    const std::int64_t t = committed + 1;
    r.rounds = {{GlobalStep(t), static_cast<std::int32_t>(t % 2),
                 GlobalStep(std::max<std::int64_t>(0, t - 2)), true}};
    return r;
  }
  void fetch_all() {
    while (const auto order = core.next_fetch()) {
      const GlobalStep newest = last.versions[static_cast<std::size_t>(order->fragment)];
      if (order->have == kNoVersion)
        core.fetched(order->fragment, kNoVersion, newest);
      else
        core.fetched(order->fragment, order->have,
                     GlobalStep(order->have.value == 0 ? (order->fragment == 0 ? 2 : 1)
                                                       : order->have.value + 2));
    }
  }
  void hear(ProgressReply r) {
    last = r;
    core.on_reply(r, now);
  }
  void ready() {
    hear(reply(0));
    fetch_all();
    (void)core.paused_boundary(now);
    core.inner_state_restored(true, now);
  }
  BoundaryPlan step() {
    const auto sequences = core.take_sequences(2);
    REQUIRE(sequences);
    return core.step_done({100, 1.0, 2.0}, now);
  }
  TimePoint now{seconds(1000)};
  std::int64_t epoch = 1, news = 0;
  ProgressReply last;
  LearnerCore core;
};

}  // namespace

TEST_CASE("a newcomer takes all fragments, then steps, and contributes to the lowest open round") {
  Bench b;
  CHECK(b.core.paused_boundary(b.now).paused);
  b.ready();
  CHECK(b.core.holds_all());
  const auto plan = b.step();
  CHECK_FALSE(plan.paused);
  REQUIRE(plan.snapshot);
  CHECK(plan.snapshot->t == GlobalStep(1));
  CHECK(b.core.report(b.now).contributes.empty());  // not before the buffer is filled
  b.core.snapshot_taken(GlobalStep(1));
  CHECK(b.core.report(b.now).contributes.size() == 1);
  const auto upload = b.core.next_upload();
  REQUIRE(upload);
  CHECK(upload->info.counters.steps == 1);
  CHECK(upload->info.counters.tokens == 100);
  CHECK(upload->info.consumed == std::vector<BlockPosition>{{0, 2}});
  CHECK_FALSE(b.core.next_upload());
  CHECK_FALSE(b.step().snapshot);  // one contribution a round
}

TEST_CASE("publications are applied in order of t and without gaps") {
  Bench b;
  b.ready();
  (void)b.step();
  b.hear(b.reply(2));
  // Version 2 of fragment 0 arrives before version 1 of fragment 1.
  auto first = b.core.next_fetch();
  REQUIRE(first);
  CHECK(first->fragment == 1);  // the lowest version first
  b.core.fetch_failed(1, false);
  b.core.fetched(0, GlobalStep(0), GlobalStep(2));
  CHECK(b.step().applies.empty());
  REQUIRE(b.core.next_fetch()->fragment == 1);
  b.core.fetched(1, GlobalStep(0), GlobalStep(1));
  const auto plan = b.step();
  REQUIRE(plan.applies.size() == 2);
  CHECK(plan.applies[0].version == GlobalStep(1));
  CHECK(plan.applies[1].version == GlobalStep(2));
}

TEST_CASE("a keyframe stands for the deltas that were missed") {
  Bench b;
  b.ready();
  (void)b.step();
  b.hear(b.reply(5));  // versions 4 and 5; deltas 1..3 are gone
  b.core.fetched(0, kNoVersion, GlobalStep(4));
  b.core.fetched(1, kNoVersion, GlobalStep(5));
  const auto plan = b.step();
  REQUIRE(plan.applies.size() == 2);
  CHECK(b.core.report(b.now).applied == GlobalStep(5));
  // A delta against a base that is not held asks for a keyframe.
  b.hear(b.reply(6));
  b.core.fetched(0, GlobalStep(2), GlobalStep(6));
  CHECK(b.core.next_fetch()->have == kNoVersion);
}

TEST_CASE("maxLead steps after the last publication it pauses, and still contributes and applies") {
  Bench b;
  b.ready();
  BoundaryPlan plan;
  for (int i = 0; i < 4; ++i) plan = b.step();
  CHECK(plan.paused);
  CHECK(b.core.phase() == LearnerPhase::kWaiting);
  b.core.snapshot_taken(GlobalStep(1));
  b.hear(b.reply(1));
  b.core.fetched(1, GlobalStep(0), GlobalStep(1));
  plan = b.core.paused_boundary(b.now);
  CHECK_FALSE(plan.paused);
  REQUIRE(plan.snapshot);
  CHECK(plan.snapshot->t == GlobalStep(2));
  CHECK(plan.applies.size() == 1);
}

TEST_CASE("a round whose base is missing is declined, not contributed to") {
  Bench b;
  b.ready();
  b.hear(b.reply(2));  // round 3 needs version 1 of fragment 1, which has not come
  CHECK_FALSE(b.step().snapshot);
  CHECK(b.core.report(b.now).declines == std::vector<GlobalStep>{GlobalStep(3)});
}

TEST_CASE("a restarted outer optimizer gets uncommitted uploads again, a lower epoch is refused") {
  Bench b;
  b.ready();
  REQUIRE(b.step().snapshot);
  b.core.snapshot_taken(GlobalStep(1));
  REQUIRE(b.core.next_upload());
  b.core.upload_result(GlobalStep(1), 1, UploadOutcome::kReceipt);
  CHECK_FALSE(b.core.next_upload());
  b.epoch = 2;
  b.hear(b.reply(0));
  const auto again = b.core.next_upload();
  REQUIRE(again);
  CHECK(again->info.key.attempt == 1);
  b.epoch = 1;
  b.news += 100;
  b.hear(b.reply(9));
  CHECK(b.core.committed() == GlobalStep(0));
}

TEST_CASE(
    "after 409 it contributes again with the next attempt, with fresh counters of the moment") {
  Bench b;
  b.ready();
  REQUIRE(b.step().snapshot);
  b.core.snapshot_taken(GlobalStep(1));
  REQUIRE(b.core.next_upload());
  b.core.upload_result(GlobalStep(1), 1, UploadOutcome::kStale);
  CHECK(b.core.report(b.now).contributes.empty());
  const auto plan = b.step();
  REQUIRE(plan.snapshot);
  CHECK(plan.snapshot->attempt == 2);
}

TEST_CASE("two buffers: a third snapshot waits until one is idle") {
  auto config = Bench::small();
  config.fragments = config.interval = 4;
  config.overlap = 3;
  config.max_lead = 8;
  Bench b(config);
  ProgressReply r;
  r.epoch = 1;
  r.news = 1;
  r.versions.assign(4, GlobalStep(0));
  r.leases = {{0, 0, 256}};
  for (int t = 1; t <= 3; ++t) r.rounds.push_back({GlobalStep(t), t % 4, GlobalStep(0), true});
  b.hear(r);
  for (int p = 0; p < 4; ++p) b.core.fetched(p, kNoVersion, GlobalStep(0));
  (void)b.core.paused_boundary(b.now);
  b.core.inner_state_restored(true, b.now);
  CHECK(b.step().snapshot->buffer == 0);
  CHECK(b.step().snapshot->buffer == 1);
  CHECK_FALSE(b.step().snapshot);
}

TEST_CASE(
    "leases survive lost replies, and what was trained on is reported once the step is done") {
  Bench b;
  b.ready();
  (void)b.core.take_sequences(2);
  CHECK(b.core.report(b.now).consumed == std::vector<BlockPosition>{{0, 0}});
  (void)b.core.step_done({100, 1, 2}, b.now);
  CHECK(b.core.report(b.now).consumed == std::vector<BlockPosition>{{0, 2}});
  b.hear(b.reply(0));  // names the same lease again: nothing starts over
  CHECK((*b.core.take_sequences(1))[0].index == 2);
  CHECK_FALSE(b.core.take_sequences(1000));
}

TEST_CASE(
    "a newcomer waits for inner state from the donor that it is told of, then ramps only if it has "
    "none") {
  auto config = Bench::small();
  config.who.incarnation = Incarnation(2);
  Bench b(config);
  auto r = b.reply(8);
  r.recover = RecoveryTask{"e1-1", "a-1"};
  b.hear(r);
  b.fetch_all();
  auto plan = b.core.paused_boundary(b.now);
  CHECK(plan.paused);
  CHECK(plan.pause_reason == "waiting for inner state");
  REQUIRE(b.core.recover_task());
  CHECK_FALSE(b.core.fresh_start_allowed());
  SECTION("from the donor") {
    b.core.inner_state_restored(false, b.now);
    CHECK(b.core.paused_boundary(b.now).rate_scale == 1.0);
  }
  SECTION("fresh") {
    b.core.inner_state_restored(true, b.now);
    plan = b.core.paused_boundary(b.now);
    CHECK(plan.rate_scale < 0.1);
    for (int i = 0; i < 3; ++i) plan = b.step();
    CHECK(plan.rate_scale < 0.25);
    CHECK(plan.rate_scale > 0.1);
  }
  SECTION("the relay fails") {
    b.core.recovery_failed("e1-1");
    CHECK(b.core.report(b.now).recovery_failed == "e1-1");
    CHECK_FALSE(b.core.recover_task());
  }
}

TEST_CASE(
    "validation is ordered at the boundary where the bases are exactly that version, or declined") {
  Bench b;
  b.ready();
  auto r = b.reply(2);
  r.validate = GlobalStep(1);
  b.hear(r);
  b.core.fetched(1, GlobalStep(0), GlobalStep(1));
  b.core.fetched(0, GlobalStep(0), GlobalStep(2));
  auto plan = b.step();
  REQUIRE(plan.validate);
  CHECK(plan.validate_after == 1);
  CHECK_FALSE(b.step().validate);  // once
  auto late = b.reply(2);
  late.validate = GlobalStep(1);
  Bench c;
  c.ready();
  c.hear(c.reply(2));
  c.core.fetched(1, GlobalStep(0), GlobalStep(1));
  c.core.fetched(0, GlobalStep(0), GlobalStep(2));
  (void)c.step();
  late.news = 50;
  c.hear(late);
  (void)c.step();
  REQUIRE(c.core.report(c.now).validation);
  CHECK(c.core.report(c.now).validation->declined);
}

TEST_CASE("another lineage: bases, contributions and leases are dropped, the inner state is kept") {
  Bench b;
  auto r = b.reply(0);
  r.lineage = 5;
  r.lease_mark = 3;
  b.hear(r);
  b.fetch_all();
  (void)b.core.paused_boundary(b.now);
  b.core.inner_state_restored(true, b.now);
  REQUIRE(b.step().snapshot);
  b.core.snapshot_taken(GlobalStep(1));
  auto next = b.reply(2);
  next.lineage = 5;
  b.hear(next);
  b.fetch_all();
  (void)b.step();
  const auto before = b.core.standing();
  CHECK(before.lineage == 5);
  CHECK(before.committed == GlobalStep(2));
  CHECK(before.lease_mark == 3);
  CHECK(before.bases == std::vector<GlobalStep>{GlobalStep(2), GlobalStep(1)});
  CHECK(b.core.report(b.now).standing.bases.empty());  // hello alone carries them

  b.epoch = 2;
  auto other = b.reply(1);  // back by a step
  other.lineage = 6;
  other.leases = {{9, 0, 256}};
  b.hear(other);
  CHECK(b.core.lineage() == 6);
  CHECK(b.core.committed() == GlobalStep(1));
  CHECK(b.core.standing().bases.empty());
  CHECK(b.core.standing().lease_mark == 10);
  CHECK(b.core.report(b.now).contributes.empty());
  CHECK_FALSE(b.core.next_upload());
  CHECK(b.core.paused_boundary(b.now).paused);
  // Every fragment as a keyframe, over what is held, be that of a higher version.
  for (int i = 0; i < 2; ++i) {
    const auto order = b.core.next_fetch();
    REQUIRE(order);
    CHECK(order->have == kNoVersion);
    CHECK(order->forget);
    b.core.fetched(order->fragment, kNoVersion,
                   other.versions[static_cast<std::size_t>(order->fragment)]);
  }
  CHECK_FALSE(b.core.next_fetch());
  const auto plan = b.core.paused_boundary(b.now);
  CHECK_FALSE(plan.paused);  // the moments are its own: it waits for nobody's
  CHECK(b.core.standing().bases == other.versions);
  const auto sequences = b.core.take_sequences(2);
  REQUIRE(sequences);
  CHECK((*sequences)[0].block == 9);
}

TEST_CASE("what was under way when a lineage ended is not of the new one") {
  Bench b;
  auto r = b.reply(0);
  r.lineage = 5;
  b.hear(r);
  b.fetch_all();
  (void)b.core.paused_boundary(b.now);
  b.core.inner_state_restored(true, b.now);
  REQUIRE(b.step().snapshot);  // ordered: its buffer is being filled
  auto more = b.reply(2);
  more.lineage = 5;
  b.hear(more);
  const auto fetch = b.core.next_fetch();
  REQUIRE(fetch);  // in flight

  auto other = b.reply(0);
  other.lineage = 6;
  b.hear(other);
  b.core.fetched(fetch->fragment, fetch->have, GlobalStep(1));
  CHECK(b.core.standing().bases.empty());
  const auto again = b.core.next_fetch();
  REQUIRE(again);
  CHECK(again->have == kNoVersion);
  b.core.snapshot_taken(GlobalStep(1));
  CHECK(b.core.report(b.now).contributes.empty());
  CHECK_FALSE(b.core.next_upload());
}

TEST_CASE("a learner answers for the bases that a rebuilt outer optimizer asks for") {
  Bench b;
  b.ready();
  auto r = b.reply(0);
  r.rebuild = {1, 0};
  b.hear(r);
  auto order = b.core.next_rebuild();
  REQUIRE(order);
  CHECK(order->fragment == 1);
  CHECK(order->version == GlobalStep(0));
  b.core.rebuild_answered(1);
  order = b.core.next_rebuild();
  REQUIRE(order);
  CHECK(order->fragment == 0);
  b.hear(b.reply(0));  // no longer wanted
  CHECK_FALSE(b.core.next_rebuild());
  auto wrong = b.reply(0);
  wrong.rebuild = {7};  // a fragment that is not there
  b.hear(wrong);
  CHECK_FALSE(b.core.next_rebuild());
}
