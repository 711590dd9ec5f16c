#pragma once
// Every learner unit that the outer optimizer has heard of: identity and fencing (protocol.md §4),
// liveness and who is expected in a round (§2.5), and the step time of the run.
#include <map>
#include <set>
#include <string>

#include "common/base/result.h"
#include "common/diloco/syncer_core.h"

namespace archipelago::diloco {

struct UnitRecord {
  SyncerState::Identity id;
  bool connected = false;     // spoke in this epoch
  bool from_journal = false;  // known from the journal and not heard since
  bool left = false;
  ProgressReport last;
  TimePoint last_heard{};
  TimePoint stepping_since{};
  TimePoint wants_state_since{};
  std::int64_t own_news = 0;  // things that concern this unit alone
  GlobalStep last_merged;
  bool greeted = false;  // said hello in this epoch
  Standing standing;     // of its hello, what it knew of earlier epochs; raised by its reports
  std::map<GlobalStep, std::int32_t> contributes;  // t -> attempt
  std::set<GlobalStep> declines;
};

class UnitTable {
 public:
  explicit UnitTable(const SyncerConfig& config) : config_(&config) {}

  // The record of who speaks; kFenced for an old incarnation or a second session of the same,
  // kNotFound if unknown.
  [[nodiscard]] Result<UnitRecord*> authenticate(const UnitKey& who);
  [[nodiscard]] Result<const UnitRecord*> find(const UnitKey& who) const;

  [[nodiscard]] bool live(const UnitRecord& unit, TimePoint now) const;
  [[nodiscard]] bool stepping(const UnitRecord& unit, TimePoint now) const;
  // §2.5 once rounds commit; before the first commit of an epoch see first_expected.
  [[nodiscard]] bool expected(const UnitRecord& unit, TimePoint now) const;
  [[nodiscard]] bool first_expected(const UnitRecord& unit, TimePoint now) const;
  // xi_step: median of the expected units' step times; keeps its last value while nobody is
  // expected.
  [[nodiscard]] double step_seconds(TimePoint now);
  // Nobody could be heard for `gap`: silence in it counts for nobody.
  void shift_heard(Duration gap);

  std::map<std::string, UnitRecord>& all() { return units_; }
  [[nodiscard]] const std::map<std::string, UnitRecord>& all() const { return units_; }

 private:
  [[nodiscard]] Status admit(const std::string& name, const UnitRecord& unit,
                             const UnitKey& who) const;
  [[nodiscard]] bool only_scavengers(TimePoint now) const;
  const SyncerConfig* config_;
  std::map<std::string, UnitRecord> units_;
  double last_step_seconds_ = 1.0;
};

}  // namespace archipelago::diloco
