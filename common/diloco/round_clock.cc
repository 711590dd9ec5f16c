#include "common/diloco/round_clock.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/diloco/schedule.h"

namespace archipelago::diloco {

std::int32_t fragment_at(GlobalStep t, std::int32_t fragments, std::int32_t interval) {
  const auto schedule = Schedule::create(fragments, interval);
  ARCH_CHECK(schedule.has_value(), << fragments << " fragments, interval " << interval);
  const auto due = schedule->due(t);
  return due.empty() ? kNoFragment : due.front().value;
}

GlobalStep version_at(GlobalStep t, std::int32_t fragment, std::int32_t fragments,
                      std::int32_t interval) {
  const auto schedule = Schedule::create(fragments, interval);
  ARCH_CHECK(schedule.has_value(), << fragments << " fragments, interval " << interval);
  return schedule->previous(FragmentId(fragment), t.next());
}

RoundClock::RoundClock(const SyncerConfig& config, GlobalStep committed, TimePoint now)
    : config_(&config),
      committed_(committed),
      gate_open_(committed > GlobalStep(0)),
      last_close_(now) {}

const Round* RoundClock::find(GlobalStep t) const {
  for (const auto& round : rounds_)
    if (round.t == t) return &round;
  return nullptr;
}
Round* RoundClock::find_round(GlobalStep t) {
  for (auto& round : rounds_)
    if (round.t == t) return &round;
  return nullptr;
}

// With K = 1 the first learner up would spend the budget alone (protocol.md §7).
bool RoundClock::gate_open(const UnitTable& units, TimePoint now) {
  if (gate_open_) return true;
  std::int32_t ready = 0;
  for (const auto& [name, unit] : units.all())
    if (unit.connected && unit.last.holds_all && units.live(unit, now)) ++ready;
  if (ready > 0 && !first_ready_) first_ready_ = now;
  const bool late = first_ready_ && now - *first_ready_ >= config_->start_timeout;
  gate_open_ = ready >= config_->start_units || (late && ready > 0);
  if (!gate_open_)
    reason_ = "start gate: " + std::to_string(ready) + " of " +
              std::to_string(config_->start_units) + " units ready";
  return gate_open_;
}

std::vector<AnnounceMessage> RoundClock::announce(UnitTable& units, TimePoint now) {
  std::vector<AnnounceMessage> out;
  if (!gate_open(units, now)) return out;
  const std::int64_t window = std::max(1, config_->overlap);
  GlobalStep t = rounds_.empty() ? committed_.next() : rounds_.back().t.next();
  for (; t <= config_->budget && t.value - committed_.value <= window; ++t) {
    Round round;
    round.t = t;
    round.fragment = fragment_at(t, config_->fragments, config_->interval);
    if (round.fragment != kNoFragment)
      round.base = version_at(GlobalStep(t.value - 1), round.fragment, config_->fragments,
                              config_->interval);
    round.quorum = config_->quorum;
    round.announced_at = now;
    out.push_back({t, round.fragment, round.base, round.quorum});
    rounds_.push_back(std::move(round));
  }
  return out;
}

std::set<std::string> RoundClock::contributors(const Round& round, const UnitTable& units) const {
  std::set<std::string> who = round.complete;
  for (const auto& [name, unit] : units.all())
    if (!unit.left && unit.contributes.contains(round.t) && !round.stalled.contains(name))
      who.insert(name);
  return who;
}

bool RoundClock::everybody_spoke(const Round& round, const std::set<std::string>& who,
                                 const UnitTable& units, TimePoint now) const {
  for (const auto& [name, unit] : units.all()) {
    const bool awaited =
        committed_in_epoch_ ? units.expected(unit, now) : units.first_expected(unit, now);
    if (awaited && !who.contains(name) && !unit.declines.contains(round.t)) return false;
  }
  return true;
}

bool RoundClock::due(Round& round, const std::set<std::string>& who, UnitTable& units,
                     TimePoint now) {
  const auto count = static_cast<std::int32_t>(who.size());
  if (count < round.quorum) {
    round.quorum_at.reset();
    reason_ = "round " + std::to_string(round.t.value) + ": " + std::to_string(count) +
              " of quorum " + std::to_string(round.quorum);
    return false;
  }
  const double step = units.step_seconds(now);
  if (!round.quorum_at) {
    round.quorum_at = now;
    if (!round.reopened)
      averages_.quorum_sample(to_seconds(now - std::max(round.announced_at, last_close_)),
                              config_->overlap * step);
  }
  if (everybody_spoke(round, who, units, now)) {
    reason_ = "round " + std::to_string(round.t.value) + ": every expected unit spoke, " +
              std::to_string(count);
    return true;
  }
  const TimePoint end =
      committed_in_epoch_
          ? *round.quorum_at + seconds(grace_seconds(*config_, averages_, round.fragment, step))
          : round.announced_at + config_->start_timeout;
  if (now < end) return false;
  reason_ = "round " + std::to_string(round.t.value) + ": grace over with " + std::to_string(count);
  return true;
}

std::vector<CloseMessage> RoundClock::close_due(UnitTable& units, TimePoint now) {
  std::vector<CloseMessage> out;
  for (auto& round : rounds_) {
    if (!round.open) continue;
    auto who = contributors(round, units);
    if (!due(round, who, units, now)) continue;
    round.open = false;
    round.closed_at = now;
    last_close_ = now;
    out.push_back({round.t, std::move(who)});
  }
  return out;
}

void RoundClock::uploaded(GlobalStep t, const std::string& unit) {
  if (Round* round = find_round(t)) round->complete.insert(unit);
}

void RoundClock::reopen(GlobalStep t, const UnitTable& units) {
  Round* round = find_round(t);
  if (round == nullptr) return;
  for (const auto& name : contributors(*round, units))
    if (!round->complete.contains(name)) round->stalled.insert(name);
  round->open = true;
  round->reopened = true;
  round->quorum_at.reset();
  reason_ = "round " + std::to_string(t.value) + ": reopened, fewer than the quorum uploaded";
}

void RoundClock::committed(GlobalStep t, double step_seconds, TimePoint now) {
  committed_ = t;
  committed_in_epoch_ = true;
  while (!rounds_.empty() && rounds_.front().t <= t) {
    const Round& round = rounds_.front();
    if (!round.reopened && round.fragment != kNoFragment)
      averages_.sync_sample(round.fragment, to_seconds(now - round.closed_at),
                            config_->overlap * step_seconds);
    rounds_.pop_front();
  }
}

void RoundClock::new_attempt(GlobalStep t, const std::string& unit) {
  if (Round* round = find_round(t)) round->stalled.erase(unit);
}

void RoundClock::lower_quorum(std::int32_t quorum) {
  for (auto& round : rounds_) round.quorum = std::min(round.quorum, quorum);
}

void RoundClock::fenced(const std::string& unit) {
  for (auto& round : rounds_) round.stalled.erase(unit);
}

}  // namespace archipelago::diloco
