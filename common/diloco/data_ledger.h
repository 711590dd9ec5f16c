#pragma once
// Which sequences of the data set were handed to whom (protocol.md §8).
//
// The data set is `sequences` sequences; epoch e is one keyed permutation of it, cut into blocks of
// 256 (the last block of an epoch may be short). Blocks are leased in order of their global index.
// What a holder consumed is always a prefix of its range, so every block has at most one open
// range, and that range is a suffix of the block.
//
// Durability: a new block is leased only below a mark that is already in the journal. After a crash
// leasing starts at the mark; every open range below it is an *orphan*: counted as skipped until
// its holder reports it again. Re-leasing an orphan could hand one sequence to two learners, so it
// never happens.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/diloco/lease.h"

namespace archipelago::diloco {

[[nodiscard]] std::uint64_t blocks_per_epoch(std::uint64_t sequences_total);
// 256, or less for the last block of an epoch.
[[nodiscard]] std::uint32_t block_size(std::uint64_t sequences_total, std::uint64_t block);
// Index in the data set of sequence i of a block: pure, so learner and outer optimizer need not
// exchange it. Needs i < block_size(block) and sequences_total > 0.
[[nodiscard]] std::uint64_t sequence_index(std::uint64_t seed, std::uint64_t sequences_total,
                                           std::uint64_t block, std::uint32_t i);

// The ledger as plain values, for checkpoints and commit records. Vectors are sorted by block.
struct LedgerSnapshot {
  struct Held {
    std::string unit;
    Incarnation incarnation;
    std::uint64_t block = 0;
    std::uint32_t from = 0;  // consumed below this
    bool operator==(const Held&) const = default;
  };
  struct Open {
    std::uint64_t block = 0;
    std::uint32_t from = 0;
    bool operator==(const Open&) const = default;
  };
  std::uint64_t next_block = 0;
  std::uint64_t reserved = 0;  // the durable mark: blocks below it may have been leased
  std::uint64_t consumed = 0;  // sequences
  std::uint64_t skipped = 0;   // sequences that no one is known to train on
  std::vector<Held> held;
  std::vector<Open> returned;
  std::vector<Open> orphans;
  bool operator==(const LedgerSnapshot&) const = default;
};

class DataLedger {
 public:
  using Snapshot = LedgerSnapshot;
  static constexpr std::size_t kMaxOrphans = 65536;  // beyond it the oldest stay skipped for good
  static constexpr std::size_t kMaxLeasesPerUnit = 4096;  // lease() answers nullopt beyond it

  // sequences_total > 0 (kInvalid otherwise). reserve_ahead: blocks by which the mark runs ahead of
  // use, >= 1.
  [[nodiscard]] static Result<DataLedger> create(std::uint64_t seed, std::uint64_t sequences_total,
                                                 std::uint64_t reserve_ahead);

  // The lowest range that went back, else the next new block below the durable mark; nullopt when
  // the mark must move first (needs_reserve says to where) or the unit holds kMaxLeasesPerUnit.
  [[nodiscard]] std::optional<Lease> lease(const std::string& unit, Incarnation incarnation);

  // Consumed position of a block, from progress, from a *complete upload*, or from a commit record;
  // the highest wins. False: the sender does not hold this block (it went back, or another holds
  // it); nothing changed. A sender that is fenced must not get here. A position beyond the block is
  // an error of the sender: false. Everything of `block` below `upto` was trained on.
  bool report(const std::string& unit, Incarnation incarnation, std::uint64_t block,
              std::uint32_t upto);

  // The unit left, or a higher incarnation of it said hello: what its incarnations up to this one
  // hold goes back, from the highest consumed position on. Returns the number of sequences that
  // went back.
  std::uint64_t give_back(const std::string& unit, Incarnation upto);

  // The mark to journal now, if the mark should move (while one is being journaled a later answer
  // may be higher: the caller keeps one such record in flight).
  [[nodiscard]] std::optional<std::uint64_t> needs_reserve() const;
  // The mark is durable. Lower marks than the present one change nothing.
  void reserved(std::uint64_t mark);

  // Blocks below `mark` may have been leased by somebody who knows nothing of this ledger any more:
  // leasing goes on at the mark, those that were never leased here are orphans. A lower mark than
  // next_block() changes nothing. The mark has to be journaled before the next lease.
  void skip_to(std::uint64_t mark);

  // What a unit holds, in order of block: for replies (a learner that lost a reply sees its leases
  // again).
  [[nodiscard]] std::vector<Lease> held_by(const std::string& unit, Incarnation incarnation) const;
  // Sequences leased to the unit and not consumed.
  [[nodiscard]] std::uint64_t open_sequences(const std::string& unit,
                                             Incarnation incarnation) const;

  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }
  [[nodiscard]] std::uint64_t next_block() const { return next_; }
  [[nodiscard]] std::uint64_t mark() const { return reserved_; }
  [[nodiscard]] std::uint64_t epoch() const { return next_ / blocks_per_epoch_; }
  [[nodiscard]] std::uint64_t sequences_total() const { return sequences_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

  [[nodiscard]] LedgerSnapshot snapshot() const;
  // After a crash: `snapshot` of the last durable record and the highest durable mark (>=
  // snapshot.reserved). All open ranges below the mark become orphans. kCorrupt when the snapshot
  // contradicts itself.
  [[nodiscard]] Status restart(const LedgerSnapshot& snapshot, std::uint64_t durable_mark);
  // The very state of the snapshot (nothing happened since): replay and tests.
  [[nodiscard]] Status restore(const LedgerSnapshot& snapshot);

 private:
  struct Holder {
    std::string unit;
    Incarnation incarnation;
    std::uint32_t from = 0;
  };

  DataLedger(std::uint64_t seed, std::uint64_t sequences, std::uint64_t reserve_ahead);
  [[nodiscard]] std::uint32_t size_of(std::uint64_t block) const {
    return block_size(sequences_, block);
  }
  void hold(std::uint64_t block, const std::string& unit, Incarnation incarnation,
            std::uint32_t from);
  void drop_count(const std::string& unit);
  [[nodiscard]] Status check(const LedgerSnapshot& snapshot) const;
  void add_orphan(std::uint64_t block, std::uint32_t from);
  void orphan_new_blocks(std::uint64_t from_block, std::uint64_t to_block);

  std::uint64_t seed_;
  std::uint64_t sequences_;
  std::uint64_t blocks_per_epoch_;
  std::uint64_t reserve_ahead_;
  std::uint64_t next_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t skipped_ = 0;
  std::map<std::uint64_t, Holder> held_;  // by block
  std::map<std::string, std::size_t>
      held_count_;  // by unit; bounded by the units that hold a lease
  std::map<std::uint64_t, std::uint32_t> returned_;  // block -> from
  std::map<std::uint64_t, std::uint32_t> orphans_;   // block -> from
};

}  // namespace archipelago::diloco
