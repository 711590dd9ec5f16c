#include "common/diloco/syncer_core.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/diloco/syncer_impl.h"

namespace archipelago::diloco {

namespace {

SyncerState::Identity::Totals higher(const SyncerState::Identity::Totals& a,
                                     const SyncerState::Identity::Totals& b) {
  return {std::max(a.tokens, b.tokens), std::max(a.steps, b.steps),
          std::max(a.seconds_in_steps, b.seconds_in_steps),
          std::max(a.exchange_seconds, b.exchange_seconds)};
}

void add(SyncerState::Identity::Totals& sum, const SyncerState::Identity::Totals& part) {
  sum.tokens += part.tokens;
  sum.steps += part.steps;
  sum.seconds_in_steps += part.seconds_in_steps;
  sum.exchange_seconds += part.exchange_seconds;
}

void merge_identity(SyncerState::Identity& mine, const SyncerState::Identity& other) {
  if (other.incarnation < mine.incarnation) return;
  if (other.incarnation > mine.incarnation) {
    const auto merged = std::max(mine.merged_rounds, other.merged_rounds);
    mine = other;
    mine.merged_rounds = merged;
    return;
  }
  mine.session = other.session;
  mine.past = higher(mine.past, other.past);
  mine.current = higher(mine.current, other.current);
  mine.merged_rounds = std::max(mine.merged_rounds, other.merged_rounds);
  if (other.recovery_seconds.size() > mine.recovery_seconds.size())
    mine.recovery_seconds = other.recovery_seconds;
}

// The ledger of the later record, under the higher mark: a block below any durable mark may have
// been leased.
void merge_ledger(std::optional<LedgerSnapshot>& mine, const std::optional<LedgerSnapshot>& other) {
  if (!other) return;
  if (!mine || other->next_block > mine->next_block ||
      (other->next_block == mine->next_block && other->consumed >= mine->consumed)) {
    const std::uint64_t mark = mine ? std::max(mine->reserved, other->reserved) : other->reserved;
    mine = other;
    mine->reserved = mark;
  } else {
    mine->reserved = std::max(mine->reserved, other->reserved);
  }
}

}  // namespace

void SyncerState::merge_newer(const SyncerState& other) {
  if (other.lineage != 0 && (lineage == 0 || other.epoch >= epoch)) lineage = other.lineage;
  epoch = std::max(epoch, other.epoch);
  committed = std::max(committed, other.committed);
  seeded = seeded || other.seeded;
  final_published = final_published || other.final_published;
  finished = finished || other.finished;
  if (layout_digest.empty()) layout_digest = other.layout_digest;
  if (dataset_sequences == 0) dataset_sequences = other.dataset_sequences;
  if (dataset_digest.empty()) dataset_digest = other.dataset_digest;
  for (const auto& [name, identity] : other.units) {
    const auto [it, added] = units.emplace(name, identity);
    if (!added) merge_identity(it->second, identity);
  }
  merge_ledger(ledger, other.ledger);
  for (const auto& [t, record] : other.recent) recent.insert_or_assign(t, record);
  while (recent.size() > kRecent) recent.erase(recent.begin());
  if (other.settings &&
      (!settings || std::pair(other.settings->epoch, other.settings->settings.generation) >=
                        std::pair(settings->epoch, settings->settings.generation)))
    settings = other.settings;
  merged_tokens = std::max(merged_tokens, other.merged_tokens);
  rounds = std::max(rounds, other.rounds);
  participants = std::max(participants, other.participants);
  bytes_up = std::max(bytes_up, other.bytes_up);
  bytes_down = std::max(bytes_down, other.bytes_down);
  if (other.validation_step >= validation_step) {
    validation_step = other.validation_step;
    if (!std::isnan(other.validation_loss)) validation_loss = other.validation_loss;
  }
}

void SyncerState::back_to(GlobalStep step) {
  committed = std::min(committed, step);
  final_published = finished = false;
  recent.erase(recent.upper_bound(step), recent.end());
  if (validation_step > step) {
    validation_step = GlobalStep();
    validation_loss = kNoValue;
  }
  lineage = 0;
}

SyncerCore::Impl::Impl(SyncerConfig c, std::int64_t epoch_number,
                       std::optional<SyncerState> recovered, TimePoint now)
    : config(std::move(c)),
      epoch(epoch_number),
      durable(recovered ? std::move(*recovered) : SyncerState{}),
      units(config),
      clock(config, durable.committed, now),
      owner(config),
      last_tick(now) {
  durable.epoch = epoch;
  if (durable.seeded && durable.lineage == 0) durable.lineage = draw_lineage();
  const auto& kept = durable.settings;
  const bool newer = kept && kept->source == config.settings_source &&
                     kept->settings.generation > config.settings_generation;
  use_settings(newer ? LiveSettings(kept->settings) : settings());
  layout_digest = durable.layout_digest;
  news_count = epoch << 32;  // above everything that an earlier epoch said
  for (auto& [name, identity] : durable.units) {
    UnitRecord unit;
    unit.id = identity;
    unit.from_journal = true;
    unit.last_heard = now;
    units.all().emplace(name, std::move(unit));
  }
  for (auto& [t, record] : durable.recent) {
    if (!records.empty() && records.back().t.next() != t)
      records.clear();  // a gap: only what follows is known
    records.push_back(record);
  }
  durable.recent.clear();
  if (durable.ledger && durable.dataset_sequences > 0) {
    auto made = DataLedger::create(config.data_seed, durable.dataset_sequences, 64);
    if (made && made->restart(*durable.ledger, durable.ledger->reserved)) ledger = std::move(*made);
  }
  validations_leased_to = durable.committed;
  // A budget that was lowered below what is committed ends at once; a raised one goes on.
  if (durable.committed >= config.budget) finishing_since = now;
}

LiveSettings SyncerCore::Impl::settings() const {
  return {config.settings_generation, config.quorum,         config.grace,
          config.grace_steps,         config.grace_fraction, config.budget};
}

void SyncerCore::Impl::use_settings(const LiveSettings& s) {
  config.settings_generation = s.generation;
  config.quorum = s.quorum;
  config.grace = s.grace;
  config.grace_steps = s.grace_steps;
  config.grace_fraction = s.grace_fraction;
  config.budget = s.budget;
  durable.settings = SettingsRecord{epoch, config.settings_source, s};
}

// --- events
// -------------------------------------------------------------------------------------------------------

Status SyncerCore::Impl::check_hello(const HelloRequest& request) const {
  if (request.who.unit.empty() || request.who.unit.size() > 63)
    return fail(ErrorKind::kInvalid, "unit: given " + std::to_string(request.who.unit.size()) +
                                         " bytes, allowed 1 to 63");
  if (request.who.session.size() != 32)
    return fail(ErrorKind::kInvalid, "session: allowed 32 hex digits");
  if (request.who.incarnation < Incarnation(1))
    return fail(ErrorKind::kInvalid, "incarnation: given " +
                                         std::to_string(request.who.incarnation.value) +
                                         ", allowed 1 or more");
  if (request.dataset_sequences == 0) return fail(ErrorKind::kRefused, "data set: has no sequence");
  if (request.sequences_per_step == 0 || request.sequences_per_step > 1'000'000)
    return fail(ErrorKind::kInvalid, "sequencesPerStep: allowed 1 to 1000000");
  if (!layout_digest.empty() && request.layout_digest != layout_digest)
    return fail(ErrorKind::kRefused, "layout: given digest " + request.layout_digest +
                                         ", this run has " + layout_digest);
  if (!durable.dataset_digest.empty() && request.dataset_digest != durable.dataset_digest)
    return fail(ErrorKind::kRefused, "data set: given digest " + request.dataset_digest + " with " +
                                         std::to_string(request.dataset_sequences) +
                                         " sequences, this run has " + durable.dataset_digest +
                                         " with " + std::to_string(durable.dataset_sequences));
  const auto known = units.all().find(request.who.unit);
  if (known == units.all().end()) {
    if (static_cast<std::int32_t>(units.all().size()) >= config.max_units)
      return fail(ErrorKind::kTooLarge,
                  "units: this run has seen " + std::to_string(config.max_units) + " names");
    return {};
  }
  const auto& id = known->second.id;
  if (request.who.incarnation < id.incarnation ||
      (request.who.incarnation == id.incarnation && request.who.session != id.session))
    return fail(ErrorKind::kFenced, "unit " + request.who.unit + ": incarnation " +
                                        std::to_string(request.who.incarnation.value) +
                                        " is fenced, highest is " +
                                        std::to_string(id.incarnation.value));
  return {};
}

// A new incarnation or a first hello: nothing of the old process counts any more but what it
// completed.
void SyncerCore::Impl::take_over(UnitRecord& unit, const HelloRequest& request, TimePoint now) {
  const std::string& name = request.who.unit;
  if (unit.id.incarnation > Incarnation(0)) {
    add(unit.id.past, unit.id.current);
    unit.id.current = {};
    owner.drop_incomplete(name);
    clock.fenced(name);
    if (ledger) ledger->give_back(name, unit.id.incarnation);
    for (auto& [newcomer, relay] : relays)
      if (relay.donor == name) relay.since = TimePoint{};  // expires at once: another donor
    relays.erase(name);
    if (seeder == name) seeder.clear();
  }
  unit.id.incarnation = request.who.incarnation;
  unit.id.session = request.who.session;
  unit.id.datacenter = request.datacenter;
  unit.id.scavenging = request.scavenging;
  unit.id.can_validate = request.can_validate;
  unit.id.sequences_per_step = request.sequences_per_step;
  unit.contributes.clear();
  unit.declines.clear();
  unit.last = ProgressReport{};
  unit.standing = Standing{};
  unit.greeted = false;
  unit.wants_state_since = now;
  effects.emplace_back(PersistState{});
}

void SyncerCore::Impl::absorb_contributions(UnitRecord& unit, const ProgressReport& report) {
  std::map<GlobalStep, std::int32_t> contributes;
  for (const auto& c : report.contributes) {
    if (c.t <= clock.committed() || clock.find(c.t) == nullptr) continue;
    const auto before = unit.contributes.find(c.t);
    if (before == unit.contributes.end() || before->second < c.attempt)
      clock.new_attempt(c.t, report.who.unit);
    contributes.emplace(c.t, c.attempt);
  }
  unit.contributes = std::move(contributes);
  unit.declines.clear();
  for (const auto t : report.declines)
    if (clock.find(t) != nullptr) unit.declines.insert(t);
}

void SyncerCore::Impl::absorb(UnitRecord& unit, const ProgressReport& report, TimePoint now) {
  const bool was_stepping = unit.connected && unit.last.phase == LearnerPhase::kStepping;
  const std::string& name = report.who.unit;
  hear(unit, name, report.standing, unit.connected);
  unit.connected = true;
  unit.from_journal = false;
  unit.left = false;
  unit.last_heard = now;
  if (report.phase == LearnerPhase::kStepping && !was_stepping) unit.stepping_since = now;
  unit.id.current = higher(unit.id.current, {report.tokens, report.local_step.value,
                                             report.seconds_in_steps, report.exchange_seconds});
  // After a restart of ours `last` is empty, but the journal has it already.
  const bool noted = !unit.id.recovery_seconds.empty() &&
                     unit.id.recovery_seconds.back() == report.recovery_seconds;
  if (report.recovery_seconds > 0 && unit.last.recovery_seconds <= 0 && !noted) {
    if (unit.id.recovery_seconds.size() < 1024)
      unit.id.recovery_seconds.push_back(report.recovery_seconds);
  }
  if (!std::isnan(report.loss))
    loss = std::isnan(loss) ? report.loss : 0.9 * loss + 0.1 * report.loss;
  absorb_contributions(unit, report);
  if (ledger)
    for (const auto& position : report.consumed)
      ledger->report(name, report.who.incarnation, position.block, position.upto);
  unit.last = report;
  if (report.validation) absorb_validation(unit, *report.validation, now);
  serve_recovery(unit, now);
  lease_blocks(unit);
}

Result<HelloReply> SyncerCore::hello(const HelloRequest& request, TimePoint now) {
  if (const Status judged = impl_->check_hello(request); !judged) {
    if (judged.error().kind == ErrorKind::kFenced) impl_->note_collision(request, now);
    return fail(judged.error());
  }
  HelloReply reply;
  reply.run_id = impl_->config.run_id;
  if (impl_->layout_digest.empty()) {
    reply.layout_needed = true;
    reply.progress.epoch = impl_->epoch;
    reply.progress.heartbeat_seconds = impl_->config.heartbeat_seconds;
    return reply;
  }
  impl_->open_ledger(request);
  UnitRecord& unit = impl_->units.all()[request.who.unit];
  const bool known =
      unit.id.incarnation == request.who.incarnation && unit.id.session == request.who.session;
  if (!known) impl_->take_over(unit, request, now);
  impl_->hear(unit, request.who.unit, request.standing, known && unit.connected);
  unit.greeted = true;
  if (!impl_->first_hello) impl_->first_hello = now;
  unit.connected = true;
  unit.from_journal = false;
  unit.left = false;
  unit.last_heard = now;
  unit.last.who = request.who;
  impl_->choose_seeder(now);
  impl_->lease_blocks(unit);
  impl_->advance(now);
  reply.progress = impl_->reply_for(unit);
  return reply;
}

Result<ProgressReply> SyncerCore::progress(const ProgressReport& report, TimePoint now) {
  ARCH_TRY(UnitRecord * unit, impl_->units.authenticate(report.who));
  // With nothing published, what it holds decides how the run begins, and hello says that.
  if (!impl_->durable.seeded && !unit->greeted)
    return fail(ErrorKind::kNotFound, "unit " + report.who.unit + " has not said hello");
  impl_->absorb(*unit, report, now);
  impl_->advance(now);
  return impl_->reply_for(*unit);
}

bool SyncerCore::has_news(const UnitKey& who, std::int64_t seen) const {
  const auto unit = impl_->units.find(who);
  return !unit || impl_->news_of(**unit) > seen;
}

Result<ProgressReply> SyncerCore::reply(const UnitKey& who, TimePoint) const {
  ARCH_TRY(const UnitRecord* unit, impl_->units.find(who));
  return impl_->reply_for(*unit);
}

std::string SyncerCore::leave(const UnitKey& who, TimePoint now) {
  const auto found = impl_->units.authenticate(who);
  if (!found) return "";
  UnitRecord& unit = **found;
  const bool wanted = impl_->sole_state(unit, now);
  unit.left = true;
  unit.contributes.clear();
  impl_->owner.drop_incomplete(who.unit);
  if (impl_->ledger) impl_->ledger->give_back(who.unit, who.incarnation);
  if (impl_->seeder == who.unit) impl_->seeder.clear();
  impl_->relays.erase(who.unit);
  impl_->advance(now);
  return wanted ? "left-" + std::to_string(impl_->clock.committed().value) : "";
}

void SyncerCore::inner_state_kept(const std::string& name) {
  constexpr std::string_view kPrefix = "left-";
  std::int64_t at = 0;
  if (!name.starts_with(kPrefix)) return;
  const auto [end, error] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), at);
  if (error != std::errc() || end != name.data() + name.size()) return;
  if (GlobalStep(at) > impl_->clock.committed() || GlobalStep(at) < impl_->kept_at) return;
  impl_->kept_state = name;
  impl_->kept_at = GlobalStep(at);
}

Result<UploadVerdict> SyncerCore::upload_started(const UploadKey& key, std::int32_t fragment,
                                                 GlobalStep base, std::uint64_t bytes,
                                                 TimePoint now) {
  ARCH_TRY(UnitRecord * unit, impl_->units.authenticate(key.who));
  unit->last_heard = now;
  if (key.t <= impl_->clock.committed()) {
    if (impl_->merged_attempt(key.who, key.t)) return UploadVerdict::kRepeat;
    return fail(ErrorKind::kConflict, "round " + std::to_string(key.t.value) +
                                          " is committed, now at " +
                                          std::to_string(impl_->clock.committed().value));
  }
  return impl_->owner.started(key, fragment, base, bytes, now);
}

std::optional<std::int32_t> SyncerCore::Impl::merged_attempt(const UnitKey& who,
                                                             GlobalStep t) const {
  if (records.empty() || t < records.front().t || t > records.back().t) return std::nullopt;
  for (const auto& key :
       records[static_cast<std::size_t>(t.value - records.front().t.value)].members)
    if (key.who == who) return key.attempt;
  return std::nullopt;
}

void SyncerCore::upload_bytes(const UploadKey& key, std::uint64_t received, TimePoint now) {
  if (const auto unit = impl_->units.authenticate(key.who)) (*unit)->last_heard = now;
  impl_->owner.received(key, received, now);
}

Result<std::int32_t> SyncerCore::upload_complete(const UploadInfo& info, TimePoint now) {
  ARCH_TRY(UnitRecord * unit, impl_->units.authenticate(info.key.who));
  if (info.counters.steps <= 0 || info.counters.tokens <= 0)
    return fail(ErrorKind::kRefused, "counters: steps and tokens must be positive, given " +
                                         std::to_string(info.counters.steps) + " and " +
                                         std::to_string(info.counters.tokens));
  unit->last_heard = now;
  // A repeat that was overtaken by its own first PUT: the same receipt.
  if (const auto merged = impl_->merged_attempt(info.key.who, info.key.t)) return *merged;
  ARCH_TRY(const std::int32_t attempt, impl_->owner.complete(info, now));
  impl_->clock.uploaded(info.key.t, info.key.who.unit);
  if (impl_->ledger)
    for (const auto& position : info.consumed)
      impl_->ledger->report(info.key.who.unit, info.key.who.incarnation, position.block,
                            position.upto);
  impl_->advance(now);
  return attempt;
}

void SyncerCore::upload_aborted(const UploadKey& key, TimePoint now) {
  if (impl_->owner.aborted(key)) impl_->advance(now);
}

Status SyncerCore::seeded(const UnitKey& who, TimePoint now) {
  ARCH_TRY(UnitRecord * unit, impl_->units.authenticate(who));
  if (impl_->durable.seeded) return fail(ErrorKind::kConflict, "the run is seeded already");
  if (impl_->seeder != who.unit)
    return fail(ErrorKind::kConflict, "another unit was asked to seed: " + impl_->seeder);
  unit->last_heard = now;
  impl_->durable.seeded = true;
  impl_->durable.lineage = impl_->draw_lineage();
  impl_->effects.emplace_back(PersistState{});
  impl_->news();
  impl_->advance(now);
  return {};
}

void SyncerCore::Impl::record_commit(CommitRecord record, std::uint64_t bytes_up) {
  if (record.fragment != kNoFragment) {
    ++durable.rounds;
    durable.participants += static_cast<std::int64_t>(record.members.size());
  }
  durable.bytes_up += static_cast<std::int64_t>(bytes_up);
  for (const auto& key : record.members) effects.emplace_back(DropUpload{key});
  for (const auto& key : record.excluded) effects.emplace_back(DropUpload{key});
  records.push_back(std::move(record));
  if (records.size() > kRecords) records.pop_front();
}

void SyncerCore::committed(GlobalStep t, std::uint64_t bytes_up, TimePoint now) {
  const StartMerge* merge = impl_->owner.merging();
  if (merge == nullptr || merge->t != t) return;
  const double share = merge->fragment == kNoFragment || impl_->shares.empty()
                           ? 0.0
                           : impl_->shares[static_cast<std::size_t>(merge->fragment)];
  for (const auto& member : merge->members) {
    impl_->durable.merged_tokens += share * static_cast<double>(member.counters.tokens);
    UnitRecord& unit = impl_->units.all()[member.key.who.unit];
    ++unit.id.merged_rounds;
    unit.last_merged = t;
  }
  impl_->record_commit(impl_->owner.committed(t), bytes_up);
  impl_->clock.committed(t, impl_->units.step_seconds(now), now);
  impl_->durable.committed = t;
  impl_->news();
  if (t >= impl_->config.budget) impl_->finishing_since = now;
  impl_->advance(now);
}

void SyncerCore::merge_failed(GlobalStep t, TimePoint now) {
  impl_->owner.merge_failed(t);
  impl_->retry_merge_at = now + std::chrono::seconds(1);
}

// --- progress of time
// ---------------------------------------------------------------------------------------------

bool SyncerCore::Impl::advance_once(TimePoint now) {
  bool moved = false;
  if (durable.seeded && !durable.finished) {
    for (const auto& message : clock.announce(units, now)) {
      owner.announce(message);
      moved = true;
    }
  }
  for (const auto& message : clock.close_due(units, now)) {
    owner.close(message, now);
    moved = true;
  }
  for (const auto t : owner.evaluate(units.step_seconds(now), now)) {
    clock.reopen(t, units);
    owner.reopened(t);
    moved = true;
  }
  return moved;
}

void SyncerCore::Impl::start_next_merge() {
  auto merge = owner.start_merge(clock.committed(), units);
  if (!merge) return;
  merge->state = state();
  merge->state.committed = merge->t;
  merge->state.recent.clear();
  merge->state.recent.emplace(merge->t, record_of(*merge));
  // The state as it will be once committed: sums included, so that a restart counts this round.
  if (merge->fragment != kNoFragment) {
    ++merge->state.rounds;
    merge->state.participants += static_cast<std::int64_t>(merge->members.size());
    const double share = shares.empty() ? 0 : shares[static_cast<std::size_t>(merge->fragment)];
    for (const auto& member : merge->members) {
      merge->state.merged_tokens += share * static_cast<double>(member.counters.tokens);
      ++merge->state.units[member.key.who.unit].merged_rounds;
    }
  }
  effects.emplace_back(std::move(*merge));
}

void SyncerCore::Impl::advance(TimePoint now) {
  // A closed round that falls short reopens and may close again at once on the same evidence:
  // bounded.
  for (int i = 0; i < 8 && advance_once(now); ++i) news();
  if (now >= retry_merge_at) start_next_merge();
  lease_validation(now);
  finish_if_done(now);
}

void SyncerCore::tick(TimePoint now) {
  const Duration gap = now - impl_->last_tick;
  impl_->last_tick = now;
  if (gap > std::chrono::seconds(1)) impl_->units.shift_heard(gap);
  impl_->choose_seeder(now);
  impl_->expire_relays(now);
  impl_->advance(now);
}

SyncerState SyncerCore::Impl::state() const {
  SyncerState out = durable;
  out.layout_digest = layout_digest;
  for (const auto& [name, unit] : units.all()) out.units[name] = unit.id;
  if (ledger) out.ledger = ledger->snapshot();
  // Older ones stand in their own journal records.
  const std::size_t first =
      records.size() > kPersistedRecords ? records.size() - kPersistedRecords : 0;
  for (std::size_t i = first; i < records.size(); ++i) out.recent.emplace(records[i].t, records[i]);
  return out;
}

// --- façade
// -------------------------------------------------------------------------------------------------------

SyncerCore::SyncerCore(SyncerConfig config, std::int64_t epoch,
                       std::optional<SyncerState> recovered, TimePoint now)
    : impl_(std::make_unique<Impl>(std::move(config), epoch, std::move(recovered), now)) {}
SyncerCore::~SyncerCore() = default;

void SyncerCore::set_layout(const std::string& digest, std::vector<double> fragment_shares) {
  impl_->layout_digest = digest;
  impl_->durable.layout_digest = digest;
  impl_->shares = std::move(fragment_shares);
}
void SyncerCore::final_published(TimePoint now) {
  impl_->durable.final_published = true;
  impl_->effects.emplace_back(PersistState{});
  impl_->finishing_since = now;
  impl_->news();
  impl_->advance(now);
}
void SyncerCore::model_written(TimePoint) {
  impl_->durable.finished = true;
  impl_->effects.emplace_back(PersistState{});
  impl_->news();
}
Status SyncerCore::apply_settings(const LiveSettings& settings, TimePoint now) {
  ARCH_TRY_VOID(check_change(impl_->settings(), settings, impl_->clock.committed()));
  if (settings == impl_->settings()) return {};
  impl_->use_settings(settings);
  impl_->clock.lower_quorum(settings.quorum);
  impl_->owner.lower_quorum(settings.quorum, now);
  impl_->effects.emplace_back(PersistState{});
  impl_->news();
  impl_->advance(now);
  return {};
}
void SyncerCore::downlink_bytes(std::uint64_t bytes) {
  impl_->durable.bytes_down += static_cast<std::int64_t>(bytes);
}
void SyncerCore::checkpoint_written(GlobalStep t) { impl_->last_checkpoint = t; }
void SyncerCore::set_condition(StatusDocument::Condition condition) {
  impl_->conditions[condition.type] = std::move(condition);
}
std::vector<Effect> SyncerCore::take_effects() { return std::exchange(impl_->effects, {}); }
SyncerState SyncerCore::state() const { return impl_->state(); }
StatusDocument SyncerCore::status(TimePoint now) const { return impl_->status(now); }
bool SyncerCore::finished() const { return impl_->durable.finished; }

}  // namespace archipelago::diloco
