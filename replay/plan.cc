#include "replay/plan.h"

namespace archipelago::replay {
namespace tape = diloco::tape;
namespace {

class Planner {
 public:
  explicit Planner(const TapeContent& content) : content_(content) {}

  Result<ReplayPlan> run(std::optional<GlobalStep> until);

 private:
  void index();
  // The first `upto` events of a learner are done, and all that they rest on; at global step t only
  // versions below t exist. kConflict says what is missing.
  Status require(const LearnerKey& key, std::size_t upto, GlobalStep t);
  Status require_event(const LearnerKey& key, const tape::LearnerEvent& event, GlobalStep t);
  Status require_round(const tape::Round& round);
  // The lowest step that published something although its round is not on the tape.
  [[nodiscard]] std::optional<GlobalStep> lost_round() const;

  const TapeContent& content_;
  ReplayPlan plan_;
};

void Planner::index() {
  for (const auto& [key, learner] : content_.learners) {
    for (std::size_t i = 0; i < learner.events.size(); ++i) {
      const auto& event = learner.events[i];
      if (const auto* snapshot = std::get_if<tape::Snapshot>(&event))
        plan_.snapshots[{key, snapshot->t, snapshot->attempt}] = i;
      if (const auto* donate = std::get_if<tape::Donate>(&event))
        plan_.donations[{key, donate->id}] = i;
      if (std::holds_alternative<tape::Seed>(event) && !plan_.seeder) plan_.seeder = key;
    }
  }
}

Status Planner::require_event(const LearnerKey& key, const tape::LearnerEvent& event,
                              GlobalStep t) {
  if (const auto* gap = std::get_if<tape::Gap>(&event))
    return fail(ErrorKind::kConflict, std::to_string(gap->events) + " events of " + to_string(key) +
                                          " are not on the tape");
  if (const auto* apply = std::get_if<tape::Apply>(&event)) {
    const auto round = content_.rounds.find(apply->version);
    const bool made = apply->version < t && round != content_.rounds.end() &&
                      round->second.fragment == apply->fragment;
    if (apply->version != GlobalStep(0) && !made)
      return fail(ErrorKind::kConflict, to_string(key) + " took version " +
                                            std::to_string(apply->version.value) + " of fragment " +
                                            std::to_string(apply->fragment) +
                                            ", which no round before made");
    ++plan_.version_uses[{apply->version, apply->fragment}];
  }
  if (const auto* restore = std::get_if<tape::Restore>(&event)) {
    const DonationKey donation{{restore->donor, restore->incarnation}, restore->id};
    const auto at = plan_.donations.find(donation);
    if (at == plan_.donations.end())
      return fail(ErrorKind::kConflict, to_string(key) + " took the inner state of " +
                                            to_string(donation.first) +
                                            ", whose copy is not on the tape");
    ++plan_.donation_uses[donation];
    return require(donation.first, at->second + 1, t);
  }
  return {};
}

Status Planner::require(const LearnerKey& key, std::size_t upto, GlobalStep t) {
  const auto& events = content_.learners.at(key).events;
  std::size_t& needed = plan_.needed[key];
  while (needed < upto) {
    // Counted first: a circle of donors must end (it is found when it is done).
    const std::size_t at = needed++;
    if (Status done = require_event(key, events[at], t); !done) {
      needed = at;
      return done;
    }
  }
  return {};
}

Status Planner::require_round(const tape::Round& round) {
  for (const auto& member : round.members) {
    const LearnerKey key{member.unit, member.incarnation};
    const auto at = plan_.snapshots.find({key, round.t, member.attempt});
    if (at == plan_.snapshots.end())
      return fail(ErrorKind::kConflict,
                  "the contribution of " + to_string(key) + " is not on the tape");
    ARCH_TRY_VOID(require(key, at->second + 1, round.t));
  }
  return {};
}

std::optional<GlobalStep> Planner::lost_round() const {
  for (const auto& [key, digest] : content_.published) {
    const GlobalStep t = key.first;
    const bool other = t == GlobalStep(0) || t == content_.final_version;
    if (!other && !content_.rounds.contains(t) && !content_.rounds.empty() &&
        t < content_.rounds.rbegin()->first)
      return t;
  }
  return std::nullopt;
}

Result<ReplayPlan> Planner::run(std::optional<GlobalStep> until) {
  index();
  if (!plan_.seeder) return fail(ErrorKind::kInvalid, "the tape has no seed of the model");
  const GlobalStep last = content_.rounds.empty() ? GlobalStep(0) : content_.rounds.rbegin()->first;
  if (until && (*until < GlobalStep(1) || *until > last))
    return fail(ErrorKind::kInvalid, "--until: " + std::to_string(until->value) +
                                         " given, allowed: 1 to " + std::to_string(last.value) +
                                         ", the tape's last global step");
  plan_.until = until.value_or(last);
  const auto& seeder = content_.learners.at(*plan_.seeder).events;
  std::size_t seed = 0;
  while (!std::holds_alternative<tape::Seed>(seeder[seed])) ++seed;
  ARCH_TRY_VOID(require(*plan_.seeder, seed + 1, GlobalStep(1)));
  const auto lost = lost_round();
  for (const auto& [t, round] : content_.rounds) {
    if (t > plan_.until) break;
    if (lost && t > *lost) {
      plan_.until = GlobalStep(lost->value - 1);
      plan_.stopped =
          "global step " + std::to_string(lost->value) + ": its round is not on the tape";
      break;
    }
    const bool back = content_.went_back && t >= *content_.went_back;
    const Status done =
        back ? fail(ErrorKind::kConflict, "the run went back and merged this step twice")
             : require_round(round);
    if (done) continue;
    plan_.until = GlobalStep(t.value - 1);
    plan_.stopped = "global step " + std::to_string(t.value) + ": " + done.error().message;
    break;
  }
  return std::move(plan_);
}

}  // namespace

Result<ReplayPlan> plan_replay(const TapeContent& content, std::optional<GlobalStep> until) {
  return Planner(content).run(until);
}

}  // namespace archipelago::replay
