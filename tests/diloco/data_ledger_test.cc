#include "common/diloco/data_ledger.h"

#include <set>

#include <catch2/catch.hpp>

#include "common/base/rng.h"

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

constexpr std::uint64_t kSequences = 1000;  // 4 blocks, the last of 232

DataLedger ledger(std::uint64_t sequences = kSequences, std::uint64_t ahead = 8) {
  DataLedger result = DataLedger::create(42, sequences, ahead).value();
  result.reserved(*result.needs_reserve());
  return result;
}

}  // namespace

TEST_CASE("each epoch visits every sequence once, in another order") {
  for (const std::uint64_t sequences :
       {1ULL, 2ULL, 3ULL, 255ULL, 256ULL, 257ULL, 1000ULL, 5000ULL}) {
    CAPTURE(sequences);
    const std::uint64_t per_epoch = blocks_per_epoch(sequences);
    std::vector<std::vector<std::uint64_t>> epochs;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::uint64_t> seen;
      std::vector<std::uint64_t> order;
      for (std::uint64_t b = 0; b < per_epoch; ++b)
        for (std::uint32_t i = 0; i < block_size(sequences, epoch * per_epoch + b); ++i) {
          order.push_back(sequence_index(9, sequences, epoch * per_epoch + b, i));
          seen.insert(order.back());
        }
      CHECK(seen.size() == sequences);
      CHECK(*seen.rbegin() == sequences - 1);
      epochs.push_back(order);
    }
    if (sequences > 100) CHECK(epochs[0] != epochs[1]);
  }
  CHECK(sequence_index(1, 5000, 0, 0) != sequence_index(2, 5000, 0, 0));
  // Pinned: learner and outer optimizer of different builds must agree on it.
  CHECK(sequence_index(42, 1000, 0, 0) == 343);
  CHECK(sequence_index(42, 1000, 7, 231) == 430);
}

TEST_CASE(
    "blocks are leased in order, the last of an epoch short, and never beyond the durable mark") {
  DataLedger l = DataLedger::create(1, kSequences, 3).value();
  CHECK_FALSE(l.lease("a", Incarnation(1)).has_value());
  REQUIRE(l.needs_reserve() == 3);
  CHECK_FALSE(l.lease("a", Incarnation(1)).has_value());  // asked for is not durable
  l.reserved(3);
  CHECK(l.lease("a", Incarnation(1)) == Lease{0, 0, 256});
  CHECK(l.lease("b", Incarnation(1)) == Lease{1, 0, 256});
  CHECK(l.lease("a", Incarnation(1)) == Lease{2, 0, 256});
  CHECK_FALSE(l.lease("a", Incarnation(1)).has_value());
  REQUIRE(l.needs_reserve() == 6);
  l.reserved(6);
  CHECK(l.lease("a", Incarnation(1)) == Lease{3, 0, 232});
  CHECK(l.lease("a", Incarnation(1)) == Lease{4, 0, 256});
  CHECK(l.epoch() == 1);
  CHECK(l.held_by("a", Incarnation(1)).size() == 4);
  CHECK(l.open_sequences("a", Incarnation(1)) == 256 + 256 + 232 + 256);
}

TEST_CASE("the highest position wins, what a dead incarnation left goes back once") {
  DataLedger l = ledger();
  REQUIRE(l.lease("a", Incarnation(1)) == Lease{0, 0, 256});
  CHECK(l.report("a", Incarnation(1), 0, 100));
  CHECK(l.report("a", Incarnation(1), 0, 60));  // late and lower: no change
  CHECK(l.consumed() == 100);
  CHECK_FALSE(l.report("b", Incarnation(1), 0, 200));
  CHECK_FALSE(l.report("a", Incarnation(2), 0, 200));
  CHECK_FALSE(l.report("a", Incarnation(1), 0, 257));
  CHECK(l.give_back("a", Incarnation(1)) == 156);
  CHECK_FALSE(l.report("a", Incarnation(1), 0, 150));  // too late
  CHECK(l.consumed() == 100);
  CHECK(l.lease("b", Incarnation(1)) == Lease{0, 100, 256});
  CHECK(l.report("b", Incarnation(1), 0, 256));
  CHECK(l.consumed() == 256);
  CHECK(l.held_by("b", Incarnation(1)).empty());
  CHECK(l.give_back("b", Incarnation(1)) == 0);
}

TEST_CASE(
    "after a crash leasing starts at the mark, what lies below is skipped until its holder reports "
    "it") {
  DataLedger l = ledger(2560, 5);
  REQUIRE(l.lease("a", Incarnation(1))->block == 0);
  REQUIRE(l.lease("b", Incarnation(1))->block == 1);
  l.report("a", Incarnation(1), 0, 10);
  const LedgerSnapshot durable = l.snapshot();
  REQUIRE(l.lease("a", Incarnation(1))->block == 2);  // after the snapshot, below the mark
  l.report("b", Incarnation(1), 1, 256);

  DataLedger after = DataLedger::create(42, 2560, 5).value();
  REQUIRE(after.restart(durable, 5).has_value());
  CHECK(after.skipped() == 246 + 256 + 3 * 256);
  CHECK(after.report("a", Incarnation(1), 2, 30));  // block 2 was a's
  CHECK(after.report("b", Incarnation(1), 1, 256));
  CHECK(after.skipped() == 246 + 2 * 256);
  CHECK(after.consumed() == 10 + 30 + 256);
  CHECK_FALSE(after.report("b", Incarnation(1), 2, 40));  // already a's
  CHECK_FALSE(after.lease("c", Incarnation(1)).has_value());
  after.reserved(*after.needs_reserve());
  CHECK(after.lease("c", Incarnation(1))->block == 5);
  CHECK_FALSE(after.restart(durable, 4).has_value());
}

TEST_CASE("leasing goes on at a mark that others had, what lies below is theirs to report") {
  DataLedger l = ledger(1 << 20, 8);  // 4096 blocks an epoch
  REQUIRE(l.lease("a", Incarnation(1))->block == 0);
  l.skip_to(1);  // not above the next: nothing changes
  CHECK(l.next_block() == 1);
  CHECK(l.skipped() == 0);
  l.skip_to(20);
  CHECK(l.next_block() == 20);
  CHECK(l.mark() == 20);
  CHECK(l.skipped() == 19 * 256);
  CHECK_FALSE(l.lease("a", Incarnation(1)));  // the mark is not durable yet
  REQUIRE(l.needs_reserve());
  CHECK(*l.needs_reserve() > 20);
  l.reserved(*l.needs_reserve());
  CHECK(l.lease("a", Incarnation(1))->block == 20);
  // A holder of before says how far it is: counted as consumed, and its own from here on.
  CHECK(l.report("b", Incarnation(1), 7, 30));
  CHECK(l.consumed() == 30);
  CHECK(l.skipped() == 18 * 256);
  CHECK_FALSE(l.report("c", Incarnation(1), 7, 40));
  DataLedger copy = DataLedger::create(42, 1 << 20, 8).value();
  REQUIRE(copy.restore(l.snapshot()));
  CHECK(copy.snapshot() == l.snapshot());
}

TEST_CASE("a mark that is very far costs bounded memory, and every skipped sequence is counted") {
  DataLedger l = ledger(1 << 20, 8);
  const std::uint64_t far = std::uint64_t{1} << 40;  // the highest that a message may claim
  l.skip_to(far);
  CHECK(l.next_block() == far);
  CHECK(l.skipped() == far * 256);
  CHECK(l.snapshot().orphans.size() == DataLedger::kMaxOrphans);
  CHECK(l.snapshot().orphans.back().block == far - 1);
  CHECK_FALSE(l.report("a", Incarnation(1), 3, 10));  // too old to be known
  CHECK(l.report("a", Incarnation(1), far - 1, 10));
}

TEST_CASE("a snapshot restores the very state, a contradictory one is refused") {
  DataLedger l = ledger();
  REQUIRE(l.lease("a", Incarnation(1)).has_value());
  REQUIRE(l.lease("b", Incarnation(2)).has_value());
  l.report("a", Incarnation(1), 0, 3);
  l.give_back("b", Incarnation(2));
  const LedgerSnapshot s = l.snapshot();
  DataLedger copy = DataLedger::create(42, kSequences, 8).value();
  REQUIRE(copy.restore(s).has_value());
  CHECK(copy.snapshot() == s);
  CHECK(copy.lease("c", Incarnation(1)) == l.lease("c", Incarnation(1)));

  LedgerSnapshot bad = s;
  bad.returned.push_back({0, 5});
  CHECK_FALSE(copy.restore(bad).has_value());
  bad = s;
  bad.reserved = 0;
  CHECK_FALSE(copy.restore(bad).has_value());
  bad = s;
  bad.orphans.push_back({1, 300});
  CHECK_FALSE(copy.restore(bad).has_value());
  CHECK_FALSE(DataLedger::create(1, 0, 1).has_value());
  CHECK_FALSE(DataLedger::create(1, 5, 0).has_value());
}

// Random histories: units come, go, crash; the outer optimizer crashes at any point. No sequence is
// ever consumed twice within an epoch, and consumed, skipped and open add up to all that was handed
// out.
TEST_CASE("no sequence of an epoch is consumed twice, under fences, leaves and crashes") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const std::uint64_t sequences = 1 + rng.below(3000);
    const std::uint64_t ahead = 1 + rng.below(6);
    DataLedger l = DataLedger::create(seed, sequences, ahead).value();
    LedgerSnapshot durable = l.snapshot();
    std::uint64_t mark = 0;
    struct Unit {
      std::int64_t incarnation = 1;
      std::vector<Lease> leases;  // as the unit itself remembers them
    };
    std::vector<Unit> units(3);
    std::set<std::pair<std::uint64_t, std::uint32_t>>
        trained;  // (block, i), over everything that was reported
    auto name = [](std::size_t u) { return "u" + std::to_string(u); };
    for (int event = 0; event < 300; ++event) {
      const std::size_t u = rng.below(3);
      Unit& unit = units[u];
      switch (rng.below(8)) {
        case 0:
        case 1: {
          if (auto next = l.needs_reserve()) {
            mark = std::max(mark, *next);
            if (rng.chance(0.8)) l.reserved(mark);  // else: journaled, not yet acted on
          }
          if (auto lease = l.lease(name(u), Incarnation(unit.incarnation))) {
            REQUIRE(lease->block < mark);
            unit.leases.push_back(*lease);
          }
          break;
        }
        case 2:
        case 3:
        case 4: {
          if (unit.leases.empty()) break;
          Lease& lease = unit.leases[rng.below(unit.leases.size())];
          const auto upto =
              lease.from + static_cast<std::uint32_t>(rng.below(lease.upto - lease.from + 1));
          if (!l.report(name(u), Incarnation(unit.incarnation), lease.block, upto)) break;
          for (std::uint32_t i = lease.from; i < upto; ++i)
            REQUIRE(trained.emplace(lease.block, i).second);
          lease.from = upto;
          std::erase_if(unit.leases, [](const Lease& x) { return x.from == x.upto; });
          break;
        }
        case 5:
          l.give_back(name(u), Incarnation(unit.incarnation));
          ++unit.incarnation;
          unit.leases.clear();
          break;
        case 6:
          durable = l.snapshot();
          break;
        default: {
          if (!rng.chance(0.3)) break;
          DataLedger again = DataLedger::create(seed, sequences, ahead).value();
          REQUIRE(again.restart(durable, std::max(mark, durable.reserved)).has_value());
          l = again;
          durable = l.snapshot();
          mark = l.mark();
          // Whoever lives says what it holds and how far it is: nothing new is consumed by that.
          for (std::size_t v = 0; v < 3; ++v)
            for (const Lease& lease : units[v].leases)
              l.report(name(v), Incarnation(units[v].incarnation), lease.block, lease.from);
          break;
        }
      }
    }
    for (const auto& [block, i] : trained) REQUIRE(i < block_size(sequences, block));
  }
}
