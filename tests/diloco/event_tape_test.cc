#include "common/diloco/event_tape.h"

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::diloco::tape;

TEST_CASE("a learner's log keeps what is not acknowledged, bounded, and a gap says what is lost") {
  Log log;
  for (int i = 0; i < 10; ++i) log.add(Apply{i, GlobalStep(i)});
  log.acknowledged(4);
  Batch batch = log.pending(3);
  CHECK(batch.from == 4);
  REQUIRE(batch.events.size() == 3);
  CHECK(std::get<Apply>(batch.events[0]).fragment == 4);
  log.acknowledged(2);  // an old answer
  CHECK(log.pending(1).from == 4);
  for (std::size_t i = 0; i < 2 * Log::kMaxPending; ++i) log.add(Fresh{});
  CHECK(log.size() == Log::kMaxPending);
  log.acknowledged(100);
  log.add(Donate{"after"});
  batch = log.pending(Log::kMaxPending);
  REQUIRE(batch.events.size() >= 2);
  CHECK(std::get<Donate>(batch.events.back()).id == "after");
  CHECK(std::get<Gap>(batch.events[batch.events.size() - 2]).events ==
        static_cast<std::int64_t>(Log::kMaxPending) + 6);
}

TEST_CASE("repeated and overlapping batches are written once, missing ones leave a gap") {
  Cursors cursors;
  const auto of = [](std::int64_t from, int count) {
    Batch batch{"a-0", Incarnation(1), from, {}};
    for (int i = 0; i < count; ++i)
      batch.events.emplace_back(Seed{static_cast<std::uint64_t>(from + i)});
    return batch;
  };
  CHECK(cursors.unseen(of(0, 3)) == of(0, 3));
  cursors.written(of(0, 3));
  CHECK(cursors.unseen(of(0, 3)).events.empty());
  CHECK(cursors.unseen(of(1, 4)) == of(3, 2));
  const Batch late = cursors.unseen(of(5, 1));
  REQUIRE(late.events.size() == 2);
  CHECK(std::get<Gap>(late.events[0]).events == 2);
  CHECK(late.upto() == 6);
  cursors.written(late);
  CHECK(cursors.next("a-0", Incarnation(1)) == 6);
  CHECK(cursors.next("a-0", Incarnation(2)) == 0);
}

TEST_CASE("neighbouring sequences become one run") {
  std::vector<SequenceRun> runs;
  for (std::uint32_t i = 250; i < 256; ++i) append_sequence(runs, 3, i);
  for (std::uint32_t i = 0; i < 2; ++i) append_sequence(runs, 4, i);
  CHECK(runs == std::vector<SequenceRun>{{3, 250, 6}, {4, 0, 2}});
}
