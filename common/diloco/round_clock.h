#pragma once
// The lead's half of a round (protocol.md §2.1, §2.4): announces early, waits for the quorum and
// the grace window, names the members. It never touches a tensor; what becomes of uploads it hears
// from the fragment owner.
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/diloco/grace.h"
#include "common/diloco/unit_table.h"

namespace archipelago::diloco {

// p(t): the fragment due at global step t, kNoFragment where none is (P < H).
[[nodiscard]] std::int32_t fragment_at(GlobalStep t, std::int32_t fragments, std::int32_t interval);
// The newest step <= t at which fragment p was due; 0 (the seed) if none.
[[nodiscard]] GlobalStep version_at(GlobalStep t, std::int32_t fragment, std::int32_t fragments,
                                    std::int32_t interval);

struct Round {
  GlobalStep t;
  std::int32_t fragment = kNoFragment;
  GlobalStep base = kNoVersion;
  std::int32_t quorum = 1;  // as announced, or lower
  bool open = true;
  bool reopened = false;
  TimePoint announced_at{};
  std::optional<TimePoint> quorum_at;
  TimePoint closed_at{};
  std::set<std::string> complete;  // units whose upload the owner holds
  std::set<std::string>
      stalled;  // after a reopen: they count again when complete or with a new attempt
};

// clock -> owner
struct AnnounceMessage {
  GlobalStep t;
  std::int32_t fragment = kNoFragment;
  GlobalStep base;
  std::int32_t quorum = 1;
};
struct CloseMessage {
  GlobalStep t;
  std::set<std::string> members;
};

class RoundClock {
 public:
  RoundClock(const SyncerConfig& config, GlobalStep committed, TimePoint now);

  // Rounds that may be announced now: at most max(1, overlap) uncommitted, and the start gate open.
  [[nodiscard]] std::vector<AnnounceMessage> announce(UnitTable& units, TimePoint now);
  // Rounds whose quorum and grace are over.
  [[nodiscard]] std::vector<CloseMessage> close_due(UnitTable& units, TimePoint now);

  // owner -> clock
  void uploaded(GlobalStep t, const std::string& unit);
  void reopen(GlobalStep t, const UnitTable& units);  // fewer than K uploads came
  void committed(GlobalStep t, double step_seconds, TimePoint now);
  void new_attempt(GlobalStep t,
                   const std::string& unit);  // a unit counts again in a reopened round
  void fenced(const std::string& unit);
  // A round that waits for more than `quorum` units waits for so many; none waits for more than it
  // was announced with.
  void lower_quorum(std::int32_t quorum);

  [[nodiscard]] GlobalStep committed() const { return committed_; }
  [[nodiscard]] const std::deque<Round>& rounds() const { return rounds_; }
  [[nodiscard]] const Round* find(GlobalStep t) const;
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  [[nodiscard]] Round* find_round(GlobalStep t);
  [[nodiscard]] bool gate_open(const UnitTable& units, TimePoint now);
  [[nodiscard]] std::set<std::string> contributors(const Round& round,
                                                   const UnitTable& units) const;
  [[nodiscard]] bool everybody_spoke(const Round& round, const std::set<std::string>& who,
                                     const UnitTable& units, TimePoint now) const;
  [[nodiscard]] bool due(Round& round, const std::set<std::string>& who, UnitTable& units,
                         TimePoint now);

  const SyncerConfig* config_;
  GlobalStep committed_;
  bool committed_in_epoch_ = false;
  bool gate_open_ = false;
  std::optional<TimePoint> first_ready_;
  std::deque<Round> rounds_;
  GraceAverages averages_;
  TimePoint last_close_;
  std::string reason_ = "waiting for the first learner";
};

}  // namespace archipelago::diloco
