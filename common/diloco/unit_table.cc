#include "common/diloco/unit_table.h"

#include <algorithm>
#include <vector>

namespace archipelago::diloco {

Status UnitTable::admit(const std::string& name, const UnitRecord& unit, const UnitKey& who) const {
  if (who.incarnation == unit.id.incarnation && who.session == unit.id.session) return {};
  if (who.incarnation > unit.id.incarnation)
    return fail(ErrorKind::kNotFound, "unit " + name + ": incarnation " +
                                          std::to_string(who.incarnation.value) +
                                          " has not said hello");
  return fail(ErrorKind::kFenced,
              "unit " + name + " lives as incarnation " +
                  std::to_string(unit.id.incarnation.value) + ", given " +
                  std::to_string(who.incarnation.value) +
                  (who.incarnation == unit.id.incarnation ? " of another session" : ""));
}

Result<UnitRecord*> UnitTable::authenticate(const UnitKey& who) {
  const auto it = units_.find(who.unit);
  if (it == units_.end())
    return fail(ErrorKind::kNotFound, "unit " + who.unit + " has not said hello");
  ARCH_TRY_VOID(admit(it->first, it->second, who));
  return &it->second;
}

Result<const UnitRecord*> UnitTable::find(const UnitKey& who) const {
  const auto it = units_.find(who.unit);
  if (it == units_.end())
    return fail(ErrorKind::kNotFound, "unit " + who.unit + " has not said hello");
  ARCH_TRY_VOID(admit(it->first, it->second, who));
  return &it->second;
}

bool UnitTable::live(const UnitRecord& unit, TimePoint now) const {
  if (unit.left || (!unit.connected && !unit.from_journal)) return false;
  const Duration limit = std::max(config_->min_silence, seconds(4 * unit.last.step_seconds));
  return now - unit.last_heard <= limit;
}

bool UnitTable::stepping(const UnitRecord& unit, TimePoint now) const {
  return unit.connected && live(unit, now) &&
         (unit.last.phase == LearnerPhase::kStepping || unit.last.phase == LearnerPhase::kWaiting);
}

bool UnitTable::only_scavengers(TimePoint now) const {
  return std::all_of(units_.begin(), units_.end(), [&](const auto& entry) {
    return entry.second.id.scavenging || !live(entry.second, now);
  });
}

bool UnitTable::expected(const UnitRecord& unit, TimePoint now) const {
  // The second step: a newcomer whose first step compiles or hangs holds nobody.
  if (!stepping(unit, now) || unit.last.local_step < LocalStep(2)) return false;
  return !unit.id.scavenging || only_scavengers(now);
}

bool UnitTable::first_expected(const UnitRecord& unit, TimePoint now) const {
  if (!live(unit, now)) return false;
  if (!unit.connected) return unit.from_journal && !unit.id.scavenging;
  if (!unit.last.holds_all || unit.last.phase == LearnerPhase::kValidating) return false;
  return !unit.id.scavenging || only_scavengers(now);
}

double UnitTable::step_seconds(TimePoint now) {
  std::vector<double> times;
  for (const auto& [name, unit] : units_)
    if (expected(unit, now) && unit.last.step_seconds > 0) times.push_back(unit.last.step_seconds);
  if (times.empty()) return last_step_seconds_;
  std::sort(times.begin(), times.end());
  const std::size_t half = times.size() / 2;
  last_step_seconds_ = times.size() % 2 == 1 ? times[half] : 0.5 * (times[half - 1] + times[half]);
  return last_step_seconds_;
}

void UnitTable::shift_heard(Duration gap) {
  for (auto& [name, unit] : units_) unit.last_heard += gap;
}

}  // namespace archipelago::diloco
