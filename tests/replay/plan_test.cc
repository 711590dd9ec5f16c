// What a replay has to do, and what two tapes differ in: records in, decisions out.
#include "replay/plan.h"

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::replay;
namespace tape = archipelago::diloco::tape;

namespace {

tape::Step step() {
  tape::Step out;
  out.runs = {{0, 0, 2}};
  return out;
}

tape::Round round(std::int64_t t, std::int32_t p, std::vector<tape::Member> members) {
  return {GlobalStep(t), p, {}, std::move(members)};
}

const LearnerKey kA{"a", Incarnation(1)};
const LearnerKey kB{"b", Incarnation(1)};
const LearnerKey kB2{"b", Incarnation(2)};

// a seeds; a and b make round 1; b dies; its second incarnation takes a's inner state and joins
// round 2, after which a goes on alone with what nobody merged.
std::vector<tape::Record> story() {
  const tape::Apply seed{0, GlobalStep(0)};
  const tape::Apply seed1{1, GlobalStep(0)};
  tape::Batch a{"a", Incarnation(1), 0, {}};
  a.events = {tape::Start{},
              tape::Seed{1},
              seed,
              seed1,
              step(),
              tape::Snapshot{GlobalStep(1), 0, 1, GlobalStep(0)},
              tape::Apply{0, GlobalStep(1)},
              step(),
              tape::Donate{"r1"},
              step(),
              tape::Snapshot{GlobalStep(2), 1, 1, GlobalStep(0)},
              step(),
              step()};
  tape::Batch b{"b", Incarnation(1), 0, {}};
  b.events = {tape::Start{}, seed,   seed1,
              tape::Fresh{}, step(), tape::Snapshot{GlobalStep(1), 0, 1, GlobalStep(0)},
              step()};
  tape::Batch b2{"b", Incarnation(2), 0, {}};
  b2.events = {tape::Start{}, tape::Apply{0, GlobalStep(1)},
               seed1,         tape::Restore{"r1", "a", Incarnation(1), LocalStep(2)},
               step(),        tape::Snapshot{GlobalStep(2), 1, 1, GlobalStep(0)}};
  return {tape::Opened{1, "{}"},
          a,
          b,
          b2,
          round(1, 0, {{"a", Incarnation(1), 1, 32, 1}, {"b", Incarnation(1), 1, 32, 1}}),
          tape::Published{GlobalStep(1), 0, 11},
          round(2, 1, {{"a", Incarnation(1), 1, 96, 3}, {"b", Incarnation(2), 1, 32, 1}}),
          tape::Published{GlobalStep(2), 1, 22}};
}

TapeContent content(const std::vector<tape::Record>& records) {
  TapeCollector collector;
  for (const auto& record : records) collector.add(record);
  return collector.take();
}

}  // namespace

TEST_CASE("a replay does what something merged rests on, and no more") {
  const TapeContent whole = content(story());
  const auto plan = plan_replay(whole, std::nullopt);
  REQUIRE(plan);
  CHECK(plan->until == GlobalStep(2));
  CHECK(plan->stopped.empty());
  CHECK(plan->needed.at(kA) == 11);  // not the last two steps
  CHECK(plan->needed.at(kB) == 6);
  CHECK(plan->needed.at(kB2) == 6);
  CHECK(plan->donation_uses.at({kA, "r1"}) == 1);
  CHECK(plan->version_uses.at({GlobalStep(0), 1}) == 3);
  CHECK(plan->version_uses.at({GlobalStep(1), 0}) == 2);
  const auto first = plan_replay(whole, GlobalStep(1));
  REQUIRE(first);
  CHECK(first->needed.at(kA) == 6);
  CHECK_FALSE(first->needed.contains(kB2));
  CHECK(plan_replay(whole, GlobalStep(3)).error().message.find("allowed: 1 to 2") !=
        std::string::npos);
}

TEST_CASE("what is missing on a tape ends the replay before it and is named") {
  struct Case {
    const char* name;
    std::size_t record;  // of story()
    std::size_t event;
    tape::LearnerEvent instead;
    std::int64_t until;
    const char* says;
  };
  const Case cases[] = {
      {"gap", 1, 7, tape::Gap{9}, 1, "9 events of a (incarnation 1) are not on the tape"},
      {"gap that matters to nobody", 1, 11, tape::Gap{9}, 2, ""},
      {"no copy", 1, 8, step(), 1, "whose copy is not on the tape"},
      {"no snapshot", 3, 5, step(), 1, "contribution of b (incarnation 2)"},
      {"unmade version", 1, 6, tape::Apply{0, GlobalStep(2)}, 1, "which no round before made"},
      {"wrong fragment", 1, 6, tape::Apply{1, GlobalStep(1)}, 1, "which no round before made"},
      {"gap in the first step", 2, 4, tape::Gap{1}, 0, "events of b (incarnation 1)"},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    auto records = story();
    std::get<tape::Batch>(records[one.record]).events[one.event] = one.instead;
    const auto plan = plan_replay(content(records), std::nullopt);
    REQUIRE(plan);
    CHECK(plan->until == GlobalStep(one.until));
    CHECK(plan->stopped.find(one.says) != std::string::npos);
    CHECK(plan->stopped.empty() == (one.until == 2));
  }
  auto unseeded = story();
  std::get<tape::Batch>(unseeded[1]).events[1] = step();
  CHECK_FALSE(plan_replay(content(unseeded), std::nullopt));
}

TEST_CASE("of two records of a round the last counts, unless the first was published") {
  auto records = story();
  const auto again = round(2, 1, {{"a", Incarnation(1), 1, 96, 3}});
  records.insert(records.end() - 1, again);
  const auto plan = plan_replay(content(records), std::nullopt);
  REQUIRE(plan);
  CHECK_FALSE(plan->needed.contains(kB2));
  records.emplace_back(again);
  const auto back = plan_replay(content(records), std::nullopt);
  REQUIRE(back);
  CHECK(back->until == GlobalStep(1));
  CHECK(back->stopped.find("went back") != std::string::npos);
}

TEST_CASE("a step that published without a round on the tape ends the replay before it") {
  auto records = story();
  records.insert(records.end() - 2, tape::Published{GlobalStep(2), 0, 5});
  auto& later = std::get<tape::Round>(records[7]);
  REQUIRE(later.t == GlobalStep(2));
  later.t = GlobalStep(3);
  for (std::size_t at : {std::size_t{1}, std::size_t{3}})
    for (auto& event : std::get<tape::Batch>(records[at]).events)
      if (auto* snapshot = std::get_if<tape::Snapshot>(&event); snapshot != nullptr)
        if (snapshot->t == GlobalStep(2)) snapshot->t = GlobalStep(3);
  const auto plan = plan_replay(content(records), std::nullopt);
  REQUIRE(plan);
  CHECK(plan->until == GlobalStep(1));
  CHECK(plan->stopped == "global step 2: its round is not on the tape");
}

TEST_CASE("events are put together from overlapping batches, and a hole is a gap") {
  TapeCollector collector;
  collector.add(tape::Batch{"a", Incarnation(1), 0, {tape::Start{}, step()}});
  collector.add(tape::Batch{"a", Incarnation(1), 1, {step(), tape::Fresh{}}});
  collector.add(tape::Batch{"a", Incarnation(1), 7, {step()}});
  const auto events = collector.take().learners.at(kA).events;
  REQUIRE(events.size() == 5);
  CHECK(std::holds_alternative<tape::Fresh>(events[2]));
  CHECK(events[3] == tape::LearnerEvent(tape::Gap{4}));
}

TEST_CASE("two tapes: the first round, bytes and event that differ are named") {
  const TapeContent one = content(story());
  CHECK(differences(one, one).empty());
  auto records = story();
  std::get<tape::Round>(records[6]).members[1].tokens = 64;
  std::get<tape::Published>(records[7]).digest = 23;
  auto& events = std::get<tape::Batch>(records[3]).events;
  std::get<tape::Step>(events[4]).loss = 3;  // says nothing about bits
  events[5] = tape::Snapshot{GlobalStep(2), 1, 2, GlobalStep(0)};
  const auto lines = differences(one, content(records));
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("global step 2: fragment 1, members a (incarnation 1, 96 tokens") == 0);
  CHECK(lines[0].find("64 tokens") != std::string::npos);
  CHECK(lines[1] ==
        "global step 2, fragment 1: published bytes 0000000000000016 | 0000000000000017");
  CHECK(lines[2] == "b (incarnation 2): event 5, after local step 1 differs");
  records.resize(3);
  const auto shorter = differences(one, content(records));
  REQUIRE(shorter.size() == 3);
  CHECK(shorter[0].find("| no round") != std::string::npos);
  CHECK(shorter[2] == "b (incarnation 2) is only on the first");
}
