#include "common/diloco/data_ledger.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.h"
#include "common/base/rng.h"

namespace archipelago::diloco {
namespace {

constexpr std::uint64_t kBlock = kSequencesPerBlock;
constexpr std::uint64_t kMaxReplay = 1ULL << 24;  // blocks between a snapshot and the durable mark

// A bijection on [0, 2^(2*half_bits)): four Feistel rounds, keyed.
std::uint64_t feistel(std::uint64_t x, unsigned half_bits, std::uint64_t key) {
  const std::uint64_t mask = (1ULL << half_bits) - 1;
  std::uint64_t left = x >> half_bits;
  std::uint64_t right = x & mask;
  for (std::uint64_t round = 0; round < 4; ++round) {
    const std::uint64_t mixed = mix64(right ^ mix64(key + round));
    const std::uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

std::string block_text(std::uint64_t block) { return "block " + std::to_string(block); }

}  // namespace

std::uint64_t blocks_per_epoch(std::uint64_t sequences_total) {
  return sequences_total / kBlock + (sequences_total % kBlock != 0 ? 1 : 0);
}

std::uint32_t block_size(std::uint64_t sequences_total, std::uint64_t block) {
  const std::uint64_t per_epoch = blocks_per_epoch(sequences_total);
  ARCH_CHECK(per_epoch > 0, << "a data set without sequences has no blocks");
  const std::uint64_t first = (block % per_epoch) * kBlock;
  return static_cast<std::uint32_t>(std::min(kBlock, sequences_total - first));
}

std::uint64_t sequence_index(std::uint64_t seed, std::uint64_t sequences_total, std::uint64_t block,
                             std::uint32_t i) {
  ARCH_CHECK(i < block_size(sequences_total, block),
             << "sequence " << i << " of " << block_text(block));
  const std::uint64_t per_epoch = blocks_per_epoch(sequences_total);
  const std::uint64_t key = mix64(mix64(seed) ^ (block / per_epoch));
  const auto bits = static_cast<unsigned>(std::bit_width(sequences_total - 1));
  const unsigned half_bits = std::max(1U, (bits + 1) / 2);
  // Cycle walking: the domain is at most 4 times the data set (8 for tiny ones), so a few steps at
  // most on average.
  std::uint64_t x = (block % per_epoch) * kBlock + i;
  do {
    x = feistel(x, half_bits, key);
  } while (x >= sequences_total);
  return x;
}

Result<DataLedger> DataLedger::create(std::uint64_t seed, std::uint64_t sequences_total,
                                      std::uint64_t reserve_ahead) {
  constexpr std::uint64_t kMaxSequences = 1ULL << 56;
  if (sequences_total == 0 || sequences_total > kMaxSequences)
    return fail(ErrorKind::kInvalid, "data set has " + std::to_string(sequences_total) +
                                         " sequences; allowed: 1 to " +
                                         std::to_string(kMaxSequences));
  if (reserve_ahead == 0 || reserve_ahead > kMaxOrphans)
    return fail(ErrorKind::kInvalid, "reserve_ahead is " + std::to_string(reserve_ahead) +
                                         " blocks; allowed: 1 to " + std::to_string(kMaxOrphans));
  return DataLedger(seed, sequences_total, reserve_ahead);
}

DataLedger::DataLedger(std::uint64_t seed, std::uint64_t sequences, std::uint64_t reserve_ahead)
    : seed_(seed),
      sequences_(sequences),
      blocks_per_epoch_(diloco::blocks_per_epoch(sequences)),
      reserve_ahead_(reserve_ahead) {}

void DataLedger::hold(std::uint64_t block, const std::string& unit, Incarnation incarnation,
                      std::uint32_t from) {
  held_.emplace(block, Holder{unit, incarnation, from});
  ++held_count_[unit];
}

void DataLedger::drop_count(const std::string& unit) {
  auto found = held_count_.find(unit);
  ARCH_CHECK(found != held_count_.end() && found->second > 0, << unit);
  if (--found->second == 0) held_count_.erase(found);
}

std::optional<Lease> DataLedger::lease(const std::string& unit, Incarnation incarnation) {
  if (auto count = held_count_.find(unit);
      count != held_count_.end() && count->second >= kMaxLeasesPerUnit)
    return std::nullopt;
  if (!returned_.empty()) {
    const auto [block, from] = *returned_.begin();
    returned_.erase(returned_.begin());
    hold(block, unit, incarnation, from);
    return Lease{block, from, size_of(block)};
  }
  if (next_ >= reserved_) return std::nullopt;
  const std::uint64_t block = next_++;
  hold(block, unit, incarnation, 0);
  return Lease{block, 0, size_of(block)};
}

bool DataLedger::report(const std::string& unit, Incarnation incarnation, std::uint64_t block,
                        std::uint32_t upto) {
  const std::uint32_t size = size_of(block);
  if (upto > size) return false;
  if (auto orphan = orphans_.find(block); orphan != orphans_.end()) {
    const std::uint32_t from = orphan->second;
    orphans_.erase(orphan);
    skipped_ -= size - from;
    hold(block, unit, incarnation, from);
  }
  auto found = held_.find(block);
  if (found == held_.end()) return false;
  Holder& holder = found->second;
  if (holder.unit != unit || holder.incarnation != incarnation) return false;
  if (upto > holder.from) {
    consumed_ += upto - holder.from;
    holder.from = upto;
  }
  if (holder.from == size) {
    held_.erase(found);
    drop_count(unit);
  }
  return true;
}

std::uint64_t DataLedger::give_back(const std::string& unit, Incarnation upto) {
  std::uint64_t sequences = 0;
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->second.unit != unit || it->second.incarnation > upto) {
      ++it;
      continue;
    }
    sequences += size_of(it->first) - it->second.from;
    returned_.emplace(it->first, it->second.from);
    it = held_.erase(it);
    drop_count(unit);
  }
  return sequences;
}

std::optional<std::uint64_t> DataLedger::needs_reserve() const {
  // Half a window left: the journal write is on its way before anybody has to wait for it.
  if (reserved_ - next_ > reserve_ahead_ / 2) return std::nullopt;
  return next_ + reserve_ahead_;
}

void DataLedger::reserved(std::uint64_t mark) { reserved_ = std::max(reserved_, mark); }

std::vector<Lease> DataLedger::held_by(const std::string& unit, Incarnation incarnation) const {
  std::vector<Lease> leases;
  for (const auto& [block, holder] : held_)
    if (holder.unit == unit && holder.incarnation == incarnation)
      leases.push_back({block, holder.from, size_of(block)});
  return leases;
}

std::uint64_t DataLedger::open_sequences(const std::string& unit, Incarnation incarnation) const {
  std::uint64_t sequences = 0;
  for (const auto& lease : held_by(unit, incarnation)) sequences += lease.upto - lease.from;
  return sequences;
}

LedgerSnapshot DataLedger::snapshot() const {
  LedgerSnapshot s;
  s.next_block = next_;
  s.reserved = reserved_;
  s.consumed = consumed_;
  s.skipped = skipped_;
  for (const auto& [block, holder] : held_)
    s.held.push_back({holder.unit, holder.incarnation, block, holder.from});
  for (const auto& [block, from] : returned_) s.returned.push_back({block, from});
  for (const auto& [block, from] : orphans_) s.orphans.push_back({block, from});
  return s;
}

Status DataLedger::check(const LedgerSnapshot& s) const {
  if (s.reserved < s.next_block)
    return fail(ErrorKind::kCorrupt, "ledger: mark " + std::to_string(s.reserved) +
                                         " below next block " + std::to_string(s.next_block));
  std::map<std::uint64_t, bool> seen;
  auto open = [&](std::uint64_t block, std::uint32_t from) -> Status {
    if (block >= s.next_block)
      return fail(ErrorKind::kCorrupt, "ledger: " + block_text(block) + " was never leased");
    if (from >= size_of(block))
      return fail(ErrorKind::kCorrupt, "ledger: " + block_text(block) + " has nothing open");
    if (!seen.emplace(block, true).second)
      return fail(ErrorKind::kCorrupt, "ledger: " + block_text(block) + " is open twice");
    return {};
  };
  for (const auto& h : s.held) ARCH_TRY_VOID(open(h.block, h.from));
  for (const auto& r : s.returned) ARCH_TRY_VOID(open(r.block, r.from));
  std::uint64_t orphaned = 0;
  for (const auto& o : s.orphans) {
    ARCH_TRY_VOID(open(o.block, o.from));
    orphaned += size_of(o.block) - o.from;
  }
  if (orphaned > s.skipped)
    return fail(ErrorKind::kCorrupt, "ledger: orphans hold " + std::to_string(orphaned) +
                                         " sequences, only " + std::to_string(s.skipped) +
                                         " are skipped");
  return {};
}

Status DataLedger::restore(const LedgerSnapshot& s) {
  ARCH_TRY_VOID(check(s));
  held_.clear();
  held_count_.clear();
  returned_.clear();
  orphans_.clear();
  next_ = s.next_block;
  reserved_ = s.reserved;
  consumed_ = s.consumed;
  skipped_ = s.skipped;
  for (const auto& h : s.held) hold(h.block, h.unit, h.incarnation, h.from);
  for (const auto& r : s.returned) returned_.emplace(r.block, r.from);
  for (const auto& o : s.orphans) orphans_.emplace(o.block, o.from);
  return {};
}

void DataLedger::add_orphan(std::uint64_t block, std::uint32_t from) {
  skipped_ += size_of(block) - from;
  orphans_.emplace(block, from);
  if (orphans_.size() > kMaxOrphans) orphans_.erase(orphans_.begin());
}

// Blocks [from_block, to_block) may have been leased after the snapshot.
void DataLedger::orphan_new_blocks(std::uint64_t from_block, std::uint64_t to_block) {
  for (std::uint64_t block = from_block; block < to_block; ++block) add_orphan(block, 0);
}

void DataLedger::skip_to(std::uint64_t mark) {
  if (mark <= next_) return;
  // Nobody but a holder of the newest can still report an orphan; the others are counted.
  const std::uint64_t first = mark - next_ > kMaxOrphans ? mark - kMaxOrphans : next_;
  skipped_ += (first - next_) * kBlock;
  orphan_new_blocks(first, mark);
  next_ = mark;
  reserved_ = std::max(reserved_, mark);
}

Status DataLedger::restart(const LedgerSnapshot& s, std::uint64_t durable_mark) {
  if (durable_mark < s.reserved)
    return fail(ErrorKind::kCorrupt, "ledger: durable mark " + std::to_string(durable_mark) +
                                         " is below the snapshot's " + std::to_string(s.reserved));
  if (durable_mark - s.next_block > kMaxReplay)
    return fail(ErrorKind::kCorrupt, "ledger: mark " + std::to_string(durable_mark) +
                                         " is implausibly far ahead of " +
                                         block_text(s.next_block));
  ARCH_TRY_VOID(restore(s));
  const auto held = std::exchange(held_, {});
  const auto returned = std::exchange(returned_, {});
  held_count_.clear();
  for (const auto& [block, holder] : held) add_orphan(block, holder.from);
  for (const auto& [block, from] : returned) add_orphan(block, from);
  orphan_new_blocks(next_, durable_mark);
  next_ = durable_mark;
  reserved_ = durable_mark;
  return {};
}

}  // namespace archipelago::diloco
