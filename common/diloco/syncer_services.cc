// Replies, seed, leases, recovery relays, validation and the end (protocol.md §3, §5, §6, §8, §9).
#include <algorithm>
#include <cmath>

#include "common/diloco/syncer_impl.h"

namespace archipelago::diloco {

namespace {
constexpr Duration kRelayTimeout = std::chrono::seconds(30);
const std::string kOnDisk = "state on disk";  // a donor's name that no unit can have
constexpr Duration kValidationTimeout = std::chrono::seconds(60);

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}
}  // namespace

std::int64_t SyncerCore::Impl::news_of(const UnitRecord& unit) const {
  return news_count + unit.own_news;
}

RunPhase SyncerCore::Impl::phase() const {
  if (durable.finished) return RunPhase::kFinished;
  if (clock.committed() >= config.budget) return RunPhase::kFinishing;
  return clock.committed() > GlobalStep(0) || !clock.rounds().empty() ? RunPhase::kRunning
                                                                      : RunPhase::kWaiting;
}

// Newest published version of each fragment; the final keyframes are version T + 1.
std::vector<GlobalStep> SyncerCore::Impl::versions() const {
  std::vector<GlobalStep> out;
  if (!durable.seeded) return out;
  for (std::int32_t p = 0; p < config.fragments; ++p)
    out.push_back(durable.final_published
                      ? config.budget.next()
                      : version_at(clock.committed(), p, config.fragments, config.interval));
  return out;
}

std::vector<Outcome> SyncerCore::Impl::outcomes_for(const UnitRecord& unit) const {
  std::vector<Outcome> out;
  for (const auto& c : unit.last.contributes) {
    if (c.t > clock.committed()) continue;
    out.push_back({c.t, merged_attempt(unit.last.who, c.t).has_value()});
  }
  return out;
}

ProgressReply SyncerCore::Impl::reply_for(const UnitRecord& unit) const {
  ProgressReply reply;
  reply.epoch = epoch;
  reply.news = news_of(unit);
  reply.phase = phase();
  reply.committed = clock.committed();
  // A unit has at most one upload in a round: where one is complete, even of a fenced incarnation,
  // it is closed to it.
  for (const auto& round : clock.rounds())
    reply.rounds.push_back({round.t, round.fragment, round.base,
                            round.open && !round.complete.contains(unit.last.who.unit)});
  reply.outcomes = outcomes_for(unit);
  reply.versions = versions();
  if (ledger) reply.leases = ledger->held_by(unit.last.who.unit, unit.id.incarnation);
  reply.seed = !durable.seeded && seeder == unit.last.who.unit;
  if (rebuild)
    for (const auto& [fragment, name] : rebuild->asked)
      if (name == unit.last.who.unit) reply.rebuild.push_back(fragment);
  reply.lineage = durable.seeded ? durable.lineage : 0;
  reply.lease_mark = ledger ? ledger->next_block() : 0;
  if (validation && validation->unit == unit.last.who.unit) reply.validate = validation->version;
  const auto own = relays.find(unit.last.who.unit);
  if (own != relays.end() && !own->second.donor.empty())
    reply.recover = RecoveryTask{own->second.id, own->second.donor};
  for (const auto& [newcomer, relay] : relays)
    if (relay.donor == unit.last.who.unit) reply.donate = RecoveryTask{relay.id, newcomer};
  reply.fresh_start = unit.last.wants_inner_state && own == relays.end();
  reply.budget = config.budget;
  reply.heartbeat_seconds = config.heartbeat_seconds;
  return reply;
}

// --- seed and data
// ------------------------------------------------------------------------------------------------

void SyncerCore::Impl::choose_seeder(TimePoint now) {
  if (durable.seeded) return;
  if (tend_rebuild(now)) return;
  const auto current = units.all().find(seeder);
  if (current != units.all().end() && units.live(current->second, now)) return;
  seeder.clear();
  for (const auto& [name, unit] : units.all())
    if (unit.connected && units.live(unit, now)) {
      seeder = name;
      news();
      return;
    }
}

void SyncerCore::Impl::open_ledger(const HelloRequest& request) {
  if (ledger) return;
  auto made = DataLedger::create(config.data_seed, request.dataset_sequences, 64);
  if (!made) return;
  ledger = std::move(*made);
  durable.dataset_sequences = request.dataset_sequences;
  durable.dataset_digest = request.dataset_digest;
}

// At least maxLead steps ahead, so that a learner cut off for that long never runs dry (§8).
void SyncerCore::Impl::lease_blocks(UnitRecord& unit) {
  // Not before something is published: the ledger of a lost disk begins where its leases ended.
  if (!ledger || !durable.seeded || clock.committed() >= config.budget) return;
  const std::uint64_t wanted =
      static_cast<std::uint64_t>(config.max_lead + 1) * unit.id.sequences_per_step +
      kSequencesPerBlock;
  const std::string& name = unit.last.who.unit;
  bool changed = false;
  while (ledger->open_sequences(name, unit.id.incarnation) < wanted) {
    if (const auto mark = ledger->needs_reserve()) {
      // Effects are carried out before any reply leaves, so the mark counts as durable from here
      // on.
      ledger->reserved(*mark);
      effects.emplace_back(PersistState{});
    }
    if (!ledger->lease(name, unit.id.incarnation)) break;
    changed = true;
  }
  if (changed) ++unit.own_news;
}

// --- recovery
// -----------------------------------------------------------------------------------------------------

void SyncerCore::Impl::serve_recovery(UnitRecord& unit, TimePoint now) {
  const std::string& name = unit.last.who.unit;
  if (!unit.last.wants_inner_state) {
    if (relays.erase(name) > 0) news();
    unit.wants_state_since = now;
    return;
  }
  // Before the first commit nobody's moments are worth a transfer: the reply says fresh_start.
  if (clock.committed() == GlobalStep(0)) {
    ++unit.own_news;
    return;
  }
  const double patience = config.recovery_timeout > Duration{}
                              ? to_seconds(config.recovery_timeout)
                              : std::max(60.0, config.interval * units.step_seconds(now));
  if (to_seconds(now - unit.wants_state_since) > patience) {
    relays.erase(name);
    ++unit.own_news;
    return;
  }
  const auto it = relays.find(name);
  if (it != relays.end() && it->second.id != unit.last.recovery_failed && !it->second.donor.empty())
    return;
  Relay relay = it != relays.end() ? it->second : Relay{};
  if (!relay.donor.empty()) relay.failed_donors.push_back(relay.donor);
  assign_donor(unit, relay, now);
}

bool SyncerCore::Impl::sole_state(const UnitRecord& unit, TimePoint now) const {
  const auto has_state = [&](const UnitRecord& u) {
    return !u.left && !u.last.wants_inner_state && u.last.local_step >= LocalStep(1);
  };
  if (!has_state(unit) || clock.committed() == GlobalStep(0) || clock.committed() >= config.budget)
    return false;
  return std::none_of(units.all().begin(), units.all().end(), [&](const auto& item) {
    return item.first != unit.last.who.unit && units.stepping(item.second, now) &&
           has_state(item.second);
  });
}

bool SyncerCore::Impl::kept_state_is_fresh() const {
  return !kept_state.empty() && clock.committed().value - kept_at.value <= 2 * config.interval;
}

void SyncerCore::Impl::assign_donor(UnitRecord& unit, Relay& relay, TimePoint now) {
  const std::string name = unit.last.who.unit;
  std::string best;
  bool best_near = false, somebody_has_state = false;
  for (const auto& item : units.all()) {
    const std::string& donor = item.first;
    const UnitRecord& record = item.second;
    if (donor == name || !units.stepping(record, now) || record.last.wants_inner_state ||
        record.last.local_step < LocalStep(1))
      continue;
    somebody_has_state = somebody_has_state || !contains(relay.failed_donors, donor);
    const bool busy = std::any_of(relays.begin(), relays.end(), [&](const auto& other) {
      return other.first != name && other.second.donor == donor;
    });
    if (busy || contains(relay.failed_donors, donor)) continue;
    const bool near = record.id.datacenter == unit.id.datacenter;
    if (best.empty() || (near && !best_near)) {
      best = donor;
      best_near = near;
    }
  }
  ++unit.own_news;
  if (!somebody_has_state && kept_state_is_fresh() && !contains(relay.failed_donors, kOnDisk)) {
    relay.donor = kOnDisk;  // any number may read it at once
    relay.since = now;
    relay.id = kept_state;
    relays[name] = relay;
    return;
  }
  if (!somebody_has_state) {
    relays.erase(name);  // the reply says fresh_start
    return;
  }
  relay.donor = best;  // empty: all donors are busy, asked again with the next report
  relay.since = now;
  relay.id = "e" + std::to_string(epoch) + "-" + std::to_string(++relay_count);
  relays[name] = relay;
  if (!best.empty()) ++units.all()[best].own_news;
}

void SyncerCore::Impl::expire_relays(TimePoint now) {
  for (auto& [name, relay] : relays) {
    const auto unit = units.all().find(name);
    if (relay.donor.empty() || now - relay.since < kRelayTimeout || unit == units.all().end())
      continue;
    relay.failed_donors.push_back(relay.donor);
    Relay next = relay;
    assign_donor(unit->second, next, now);
    return;  // assign_donor may have changed the map; the rest follows on the next tick
  }
}

// --- validation and the end
// ---------------------------------------------------------------------------------------

void SyncerCore::Impl::lease_validation(TimePoint now) {
  if (validation && now - validation->since > kValidationTimeout) assign_validation(now);
  if (config.validate_every <= 0 || clock.rounds().empty()) return;
  for (const auto& round : clock.rounds()) {
    if (round.t <= validations_leased_to || round.t.value % config.validate_every != 0) continue;
    validations_leased_to = round.t;
    validation = Validation{round.t, "", now, {}};
    assign_validation(now);
  }
}

void SyncerCore::Impl::assign_validation(TimePoint now) {
  if (!validation->unit.empty()) validation->tried.push_back(validation->unit);
  // Round robin by version, so that no island carries it all.
  std::vector<std::string> able;
  for (const auto& [name, unit] : units.all())
    if (unit.id.can_validate && unit.last.holds_all && units.live(unit, now) && unit.connected &&
        !contains(validation->tried, name))
      able.push_back(name);
  if (able.empty()) {
    const bool final_one = validation->version > config.budget;
    validation->unit.clear();
    if (final_one) {
      validation->since = now;
      validation->tried.clear();  // asked again until the end's own time-out
    } else {
      validation.reset();
    }
    return;
  }
  const auto turn = static_cast<std::size_t>(validation->version.value /
                                             std::max<std::int64_t>(1, config.validate_every));
  validation->unit = able[turn % able.size()];
  validation->since = now;
  ++units.all()[validation->unit].own_news;
}

void SyncerCore::Impl::absorb_validation(const UnitRecord& unit, const ValidationReport& report,
                                         TimePoint now) {
  if (!validation || validation->version != report.version ||
      validation->unit != unit.last.who.unit)
    return;
  if (report.declined || !std::isfinite(report.loss)) {
    assign_validation(now);
    return;
  }
  durable.validation_loss = report.loss;
  durable.validation_step = report.version;
  validation.reset();
  news();
}

void SyncerCore::Impl::finish_if_done(TimePoint now) {
  if (durable.finished || clock.committed() < config.budget) return;
  const auto pending = [&](const auto& effect) {
    return std::holds_alternative<PublishFinal>(effect) ||
           std::holds_alternative<WriteModel>(effect);
  };
  if (std::any_of(effects.begin(), effects.end(), pending)) return;
  if (!durable.final_published) {
    if (!final_asked) effects.emplace_back(PublishFinal{config.budget.next()});
    final_asked = true;
    return;
  }
  const GlobalStep final_version = config.budget.next();
  const bool wanted = config.validate_at_end && durable.validation_step < final_version;
  const bool late = now - finishing_since > config.start_timeout;
  if (wanted && !late) {
    if (!validation || validation->version != final_version)
      validation = Validation{final_version, "", now, {}};
    if (validation->unit.empty()) assign_validation(now);
    return;
  }
  if (wanted)
    conditions["ValidationSkipped"] = {"ValidationSkipped", "True", "NobodyValidated",
                                       "no learner validated the final model in time"};
  if (!model_asked) effects.emplace_back(WriteModel{});
  model_asked = true;
}

// --- status
// -------------------------------------------------------------------------------------------------------

std::string SyncerCore::Impl::unit_phase(const UnitRecord& unit, TimePoint now) const {
  if (unit.left) return "Left";
  if (!units.live(unit, now)) return "Silent";
  switch (unit.last.phase) {
    case LearnerPhase::kRecovering:
      return "Recovering";
    case LearnerPhase::kWaiting:
      return "Waiting";
    case LearnerPhase::kStepping:
    case LearnerPhase::kValidating:
      break;
  }
  const bool starved = unit.last_merged > GlobalStep(0) &&
                       clock.committed().value - unit.last_merged.value > 2 * config.interval;
  return starved ? "Starved" : "Stepping";
}

UnitStatus SyncerCore::Impl::unit_status(const std::string& name, const UnitRecord& unit,
                                         TimePoint now) const {
  UnitStatus out;
  out.name = name;
  out.datacenter = unit.id.datacenter;
  out.phase = unit_phase(unit, now);
  out.incarnation = unit.id.incarnation;
  out.local_step = unit.last.local_step;
  out.step_seconds = unit.last.step_seconds;
  out.tokens = unit.id.past.tokens + unit.id.current.tokens;
  out.steps = unit.id.past.steps + unit.id.current.steps;
  out.seconds_in_steps = unit.id.past.seconds_in_steps + unit.id.current.seconds_in_steps;
  out.exchange_seconds = unit.id.past.exchange_seconds + unit.id.current.exchange_seconds;
  out.merged_rounds = unit.id.merged_rounds;
  out.last_heard_seconds = to_seconds(now - unit.last_heard);
  out.stepping_seconds = out.phase == "Stepping" ? to_seconds(now - unit.stepping_since) : 0;
  if (unit.id.current.seconds_in_steps > 0)
    out.tokens_per_second =
        static_cast<double>(unit.id.current.tokens) / unit.id.current.seconds_in_steps;
  out.uplink_bytes_per_second = owner.throughput(name);
  out.recovery_seconds = unit.id.recovery_seconds;
  return out;
}

void SyncerCore::Impl::note_collision(const HelloRequest& request, TimePoint now) {
  const auto unit = units.all().find(request.who.unit);
  if (unit == units.all().end() || unit->second.id.incarnation != request.who.incarnation) return;
  Collisions& seen = collisions[request.who.unit];
  if (seen.incarnation != request.who.incarnation) seen = {request.who.incarnation, {}};
  seen.at.push_back(now);
  if (seen.at.size() > kCollisions) seen.at.pop_front();
}

// Three collisions of a unit at one incarnation within ten minutes (protocol.md §4). False after
// that, so that a reader who passed it on takes it back.
std::optional<StatusDocument::Condition> SyncerCore::Impl::duplicate_unit(TimePoint now) const {
  if (collisions.empty()) return std::nullopt;
  std::string names;
  for (const auto& [name, seen] : collisions) {
    if (seen.at.size() < kCollisions || now - seen.at.front() > kCollisionWindow) continue;
    names += (names.empty() ? "" : ", ") + name + " (incarnation " +
             std::to_string(seen.incarnation.value) + ")";
  }
  if (names.empty()) return StatusDocument::Condition{"DuplicateUnit", "False", "NoCollisions", ""};
  return StatusDocument::Condition{
      "DuplicateUnit", "True", "SameIncarnation",
      "several processes say that they are " + names +
          ": each unit is started once; look for a second run or operator that uses this outer "
          "optimizer"};
}

StatusDocument SyncerCore::Impl::status(TimePoint now) const {
  StatusDocument out;
  switch (phase()) {
    case RunPhase::kWaiting:
      out.phase = "waiting";
      break;
    case RunPhase::kRunning:
      out.phase = "running";
      break;
    case RunPhase::kFinishing:
      out.phase = "finishing";
      break;
    case RunPhase::kFinished:
      out.phase = "finished";
      break;
  }
  out.run_id = config.run_id;
  out.epoch = epoch;
  out.global_step = clock.committed();
  out.budget = config.budget;
  out.settings = settings();
  out.loss = loss;
  out.validation_loss = durable.validation_loss;
  out.validation_step = durable.validation_step;
  out.merged_tokens = durable.merged_tokens;
  out.bytes_up = durable.bytes_up;
  out.bytes_down = durable.bytes_down;
  out.last_checkpoint_step = last_checkpoint;
  out.rounds = durable.rounds;
  out.mean_participants = durable.rounds > 0 ? static_cast<double>(durable.participants) /
                                                   static_cast<double>(durable.rounds)
                                             : 0;
  out.last_decision =
      rebuild ? "rebuild from the learners' bases: " + std::to_string(rebuild->staged.size()) +
                    " of " + std::to_string(config.fragments) + " fragments are here"
              : clock.reason();
  for (const auto& [type, condition] : conditions) out.conditions.push_back(condition);
  if (auto duplicate = duplicate_unit(now)) out.conditions.push_back(std::move(*duplicate));
  for (const auto& [name, unit] : units.all()) {
    out.units.push_back(unit_status(name, unit, now));
    out.tokens += out.units.back().tokens;
    out.fenced.push_back({name, unit.id.incarnation});
  }
  if (out.tokens > 0) out.merged_fraction = out.merged_tokens / static_cast<double>(out.tokens);
  return out;
}

}  // namespace archipelago::diloco
