// What learners know and the disk does not (protocol.md §6): epochs that were heard elsewhere, a
// state that is older than what was published, and a disk that is empty while learners hold bases.
#include <algorithm>
#include <limits>

#include "common/base/rng.h"
#include "common/diloco/syncer_impl.h"

namespace archipelago::diloco {

std::int64_t SyncerCore::Impl::draw_lineage() {
  const std::uint64_t drawn =
      mix64(static_cast<std::uint64_t>(config.lineage_draw) ^ mix64(++lineages_drawn));
  // Positive: 0 is "none".
  return static_cast<std::int64_t>(
             drawn & static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) |
         1;
}

void SyncerCore::Impl::raise_epoch(std::int64_t above) {
  epoch = above + 1;
  durable.epoch = epoch;
  news_count = std::max(news_count + 1, epoch << 32);
  effects.emplace_back(RaiseEpoch{epoch});
  effects.emplace_back(PersistState{});
}

void SyncerCore::Impl::begin_lineage(const std::string& why) {
  durable.lineage = draw_lineage();
  conditions["RolledBack"] = {"RolledBack", "True", "OlderState", why};
  effects.emplace_back(PersistState{});
  news();
}

void SyncerCore::Impl::hear(UnitRecord& unit, const std::string& name, const Standing& said,
                            bool ours) {
  // An epoch that this process did not tell: the counter was lost, or is that of a backup. It would
  // refuse our replies for ever.
  const bool elsewhere = said.epoch > epoch || (said.epoch == epoch && !ours);
  if (elsewhere) raise_epoch(said.epoch);
  const bool same = said.lineage != 0 && said.lineage == durable.lineage;
  if (durable.seeded && same && (elsewhere || said.committed > clock.committed())) {
    begin_lineage("from global step " + std::to_string(said.committed.value) + " of epoch " +
                  std::to_string(said.epoch) + ", which unit " + name + " has seen, back to " +
                  std::to_string(clock.committed().value) +
                  ": the data folder is older than what was published");
    if (ledger) ledger->skip_to(said.lease_mark);
  }
  if (durable.seeded) return;
  if (!unit.greeted) {
    unit.standing = said;
  } else if (said.lineage == unit.standing.lineage) {
    // A late reply of the lost process may have reached it after its hello.
    unit.standing.committed = std::max(unit.standing.committed, said.committed);
    unit.standing.lease_mark = std::max(unit.standing.lease_mark, said.lease_mark);
    if (!said.bases.empty()) unit.standing.bases = said.bases;
  }
}

bool SyncerCore::Impl::holds_bases(const UnitRecord& unit, TimePoint now) const {
  return unit.greeted && units.live(unit, now) &&
         unit.standing.bases.size() == static_cast<std::size_t>(config.fragments);
}

const UnitRecord* SyncerCore::Impl::newest_holder(TimePoint now) const {
  const UnitRecord* best = nullptr;
  const auto key = [](const UnitRecord& u) {
    return std::pair(u.standing.epoch, u.standing.committed);
  };
  for (const auto& [name, unit] : units.all())
    if (holds_bases(unit, now) && (best == nullptr || key(unit) > key(*best))) best = &unit;
  return best;
}

bool SyncerCore::Impl::tend_rebuild(TimePoint now) {
  const UnitRecord* newest = newest_holder(now);
  if (newest == nullptr) {
    if (rebuild) news();
    rebuild.reset();
    // A restarted unit was there before: its peers may be about to say hello, with bases.
    const bool restarted = std::any_of(units.all().begin(), units.all().end(), [](const auto& u) {
      return u.second.greeted && u.second.id.incarnation > Incarnation(1);
    });
    return restarted && first_hello && now - *first_hello < config.rebuild_window;
  }
  if (!rebuild) {
    rebuild.emplace();
    rebuild->since = now;
    seeder.clear();
    news();
  }
  if (rebuild->lineage != newest->standing.lineage) {
    rebuild->lineage = newest->standing.lineage;
    rebuild->asked.clear();
    rebuild->staged.clear();
  }
  if (now - rebuild->since >= config.rebuild_window) ask_for_bases(now);
  return true;
}

// Of each fragment the newest version that anybody holds; another one is asked where the first has
// gone.
void SyncerCore::Impl::ask_for_bases(TimePoint now) {
  for (std::int32_t p = 0; p < config.fragments; ++p) {
    if (rebuild->staged.contains(p)) continue;
    const auto i = static_cast<std::size_t>(p);
    const auto asked = rebuild->asked.find(p);
    if (asked != rebuild->asked.end() && holds_bases(units.all()[asked->second], now)) continue;
    UnitRecord* best = nullptr;
    for (auto& [name, unit] : units.all()) {
      if (!holds_bases(unit, now) || unit.standing.lineage != rebuild->lineage) continue;
      if (best == nullptr || unit.standing.bases[i] > best->standing.bases[i]) best = &unit;
    }
    if (best == nullptr) continue;
    rebuild->asked[p] = best->last.who.unit;
    ++best->own_news;
  }
}

Status SyncerCore::Impl::rebuild_allowed(const UnitKey& who, std::int32_t fragment) const {
  ARCH_TRY_VOID(units.find(who));
  if (!rebuild) return fail(ErrorKind::kConflict, "no bases are asked for");
  const auto asked = rebuild->asked.find(fragment);
  if (asked == rebuild->asked.end() || asked->second != who.unit)
    return fail(ErrorKind::kConflict, "the base of fragment " + std::to_string(fragment) +
                                          " is not asked of unit " + who.unit);
  return {};
}

// The run stands at the newest global step that a learner has heard of. A fragment whose newest
// version nobody holds goes on from the one before: its update is lost, and said to be.
void SyncerCore::Impl::finish_rebuild(TimePoint now) {
  GlobalStep at;
  std::uint64_t mark = 0;
  for (const auto& [name, unit] : units.all()) {
    if (!unit.greeted || unit.standing.lineage != rebuild->lineage) continue;
    at = std::max(at, unit.standing.committed);
    mark = std::max(mark, unit.standing.lease_mark);
  }
  at = std::min(at, config.budget);
  std::string lost;
  for (const auto& [p, version] : rebuild->staged)
    if (version < version_at(at, p, config.fragments, config.interval))
      lost += (lost.empty() ? "; older than published: fragment " : ", ") + std::to_string(p) +
              " (version " + std::to_string(version.value) + ")";
  durable.committed = at;
  durable.seeded = true;
  durable.lineage = draw_lineage();
  clock = RoundClock(config, at, now);
  owner = FragmentOwner(config);
  records.clear();
  if (auto fresh = DataLedger::create(config.data_seed, durable.dataset_sequences, 64)) {
    ledger = std::move(*fresh);
    ledger->skip_to(mark);
  }
  validations_leased_to = at;
  if (at >= config.budget) finishing_since = now;
  conditions["Rebuilt"] = {"Rebuilt", "True", "DiskLost",
                           "the data folder was empty: published bytes of global step " +
                               std::to_string(at.value) +
                               " came from the learners; lost: the outer momentum, what was "
                               "rounded off on the way down, "
                               "sums and checkpoints of before" +
                               lost};
  rebuild.reset();
  effects.emplace_back(PersistState{});
  news();
}

Status SyncerCore::rebuild_allowed(const UnitKey& who, std::int32_t fragment) const {
  return impl_->rebuild_allowed(who, fragment);
}

Result<bool> SyncerCore::rebuild_staged(const UnitKey& who, std::int32_t fragment,
                                        GlobalStep version, TimePoint now) {
  ARCH_TRY_VOID(impl_->rebuild_allowed(who, fragment));
  if (version < GlobalStep(0))
    return fail(ErrorKind::kInvalid, "version " + std::to_string(version.value));
  impl_->rebuild->asked.erase(fragment);
  impl_->rebuild->staged[fragment] = version;
  impl_->news();
  if (impl_->rebuild->staged.size() < static_cast<std::size_t>(impl_->config.fragments))
    return false;
  impl_->finish_rebuild(now);
  impl_->advance(now);
  return true;
}

void SyncerCore::rebuild_unstaged(std::int32_t fragment) {
  if (impl_->rebuild) impl_->rebuild->staged.erase(fragment);
}

void SyncerCore::rolled_back(const std::string& message) { impl_->begin_lineage(message); }

Status SyncerCore::check_lineage(std::int64_t lineage) const {
  if (lineage == 0 || !impl_->durable.seeded || lineage == impl_->durable.lineage) return {};
  return fail(ErrorKind::kConflict, "the bases of the sender are of another lineage of this run");
}

std::int64_t SyncerCore::lineage() const {
  return impl_->durable.seeded ? impl_->durable.lineage : 0;
}

std::vector<GlobalStep> SyncerCore::versions() const { return impl_->versions(); }

}  // namespace archipelago::diloco
