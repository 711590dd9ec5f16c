#pragma once
// SyncerCore's inside: the façade that carries messages between the clock and the owner, and the
// small services beside them (seed, leases, recovery, validation, the end). Private to syncer_*.cc.
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/diloco/fragment_owner.h"
#include "common/diloco/round_clock.h"
#include "common/diloco/syncer_core.h"
#include "common/diloco/unit_table.h"

namespace archipelago::diloco {

struct SyncerCore::Impl {
  Impl(SyncerConfig config, std::int64_t epoch_number, std::optional<SyncerState> recovered,
       TimePoint now);

  struct Relay {  // inner state on its way to a newcomer
    std::string id, donor;
    TimePoint since{};
    std::vector<std::string> failed_donors;
  };
  struct Validation {
    GlobalStep version;
    std::string unit;
    TimePoint since{};
    std::vector<std::string> tried;
  };

  struct Rebuild {  // of a lost disk, from the learners' bases (§6)
    TimePoint since{};
    std::int64_t lineage = 0;                   // whose bases count
    std::map<std::int32_t, std::string> asked;  // fragment -> unit
    std::map<std::int32_t, GlobalStep> staged;  // fragment -> version
  };

  // After every event: announcements, closes, merges, in a fixed order, until nothing moves.
  void advance(TimePoint now);
  [[nodiscard]] bool advance_once(TimePoint now);
  void start_next_merge();
  void news() { ++news_count; }
  [[nodiscard]] std::int64_t news_of(const UnitRecord& unit) const;

  // syncer_core.cc
  [[nodiscard]] Status check_hello(const HelloRequest& request) const;
  void take_over(UnitRecord& unit, const HelloRequest& request, TimePoint now);
  void absorb(UnitRecord& unit, const ProgressReport& report, TimePoint now);
  void absorb_contributions(UnitRecord& unit, const ProgressReport& report);
  // The attempt of this sender that was merged at committed step t, while remembered.
  [[nodiscard]] std::optional<std::int32_t> merged_attempt(const UnitKey& who, GlobalStep t) const;
  void record_commit(CommitRecord record, std::uint64_t bytes_up);
  [[nodiscard]] SyncerState state() const;
  [[nodiscard]] LiveSettings settings() const;
  void use_settings(const LiveSettings& settings);

  // syncer_services.cc
  [[nodiscard]] ProgressReply reply_for(const UnitRecord& unit) const;
  [[nodiscard]] std::vector<Outcome> outcomes_for(const UnitRecord& unit) const;
  [[nodiscard]] std::vector<GlobalStep> versions() const;
  void choose_seeder(TimePoint now);

  // syncer_rebuild.cc
  [[nodiscard]] std::int64_t draw_lineage();
  // What a learner knows of earlier epochs; `ours`: it was heard in this epoch before.
  void hear(UnitRecord& unit, const std::string& name, const Standing& said, bool ours);
  void raise_epoch(std::int64_t above);
  void begin_lineage(const std::string& why);
  [[nodiscard]] bool holds_bases(const UnitRecord& unit, TimePoint now) const;
  [[nodiscard]] const UnitRecord* newest_holder(TimePoint now) const;
  // True while nobody may seed: learners with bases live, or may be about to say hello.
  [[nodiscard]] bool tend_rebuild(TimePoint now);
  void ask_for_bases(TimePoint now);
  [[nodiscard]] Status rebuild_allowed(const UnitKey& who, std::int32_t fragment) const;
  void finish_rebuild(TimePoint now);
  void lease_blocks(UnitRecord& unit);
  void open_ledger(const HelloRequest& request);
  void serve_recovery(UnitRecord& unit, TimePoint now);
  [[nodiscard]] bool sole_state(const UnitRecord& unit, TimePoint now) const;
  // Moments of long ago are worse than fresh ones.
  [[nodiscard]] bool kept_state_is_fresh() const;
  void assign_donor(UnitRecord& unit, Relay& relay, TimePoint now);
  void expire_relays(TimePoint now);
  void lease_validation(TimePoint now);
  void absorb_validation(const UnitRecord& unit, const ValidationReport& report, TimePoint now);
  void assign_validation(TimePoint now);
  void finish_if_done(TimePoint now);
  [[nodiscard]] RunPhase phase() const;
  [[nodiscard]] UnitStatus unit_status(const std::string& name, const UnitRecord& unit,
                                       TimePoint now) const;
  [[nodiscard]] std::string unit_phase(const UnitRecord& unit, TimePoint now) const;
  [[nodiscard]] StatusDocument status(TimePoint now) const;
  void note_collision(const HelloRequest& request, TimePoint now);
  [[nodiscard]] std::optional<StatusDocument::Condition> duplicate_unit(TimePoint now) const;

  SyncerConfig config;
  std::int64_t epoch;
  SyncerState durable;  // sums and facts; units and ledger are filled in by state()
  UnitTable units;
  RoundClock clock;
  FragmentOwner owner;
  std::optional<DataLedger> ledger;
  std::vector<double> shares;  // of the elements, by fragment
  std::string layout_digest;
  std::string seeder;
  std::optional<Rebuild> rebuild;
  std::optional<TimePoint> first_hello;  // while nothing is published
  std::uint64_t lineages_drawn = 0;
  std::map<std::string, Relay> relays;  // by newcomer
  std::int64_t relay_count = 0;
  std::string kept_state;  // name of the inner state that was left behind; empty: none
  GlobalStep kept_at;
  std::optional<Validation> validation;
  GlobalStep validations_leased_to;  // newest version that a validation was planned for
  TimePoint finishing_since{};
  std::deque<CommitRecord> records;  // newest last, at most kRecords
  std::vector<Effect> effects;
  std::int64_t news_count = 0;
  TimePoint last_tick{};
  TimePoint retry_merge_at{};
  bool final_asked = false, model_asked = false;  // one effect each, carried out once
  GlobalStep last_checkpoint;
  double loss = kNoValue;
  std::map<std::string, StatusDocument::Condition> conditions;
  // Hellos of a unit at its present incarnation by other sessions: the latest, at most
  // kCollisions. Two processes each think that they are the unit.
  struct Collisions {
    Incarnation incarnation;
    std::deque<TimePoint> at;
  };
  std::map<std::string, Collisions> collisions;  // by unit that is known

  static constexpr std::size_t kCollisions = 3;
  static constexpr Duration kCollisionWindow = seconds(600);
  static constexpr std::size_t kRecords = 4096;
  static constexpr std::size_t kPersistedRecords = 8;
};

}  // namespace archipelago::diloco
