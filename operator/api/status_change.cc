#include "operator/api/status_change.h"

#include <algorithm>

namespace archipelago::op {
namespace {

// What only says how far the run is. Everything else is a decision or its evidence.
TrainingStatus without_progress(TrainingStatus s) {
  s.global_step = s.tokens = 0;
  s.loss = s.validation_loss = s.goodput = s.merged_fraction = "";
  s.outer.last_checkpoint_step = 0;
  for (DatacenterStatus& d : s.datacenters) {
    d.tokens_per_second = 0;
    d.uplink_mbps.clear();
  }
  for (UnitStatus& u : s.units) u.local_step = 0;
  for (Condition& c : s.conditions)
    if (c.type == condition::kProgressing) c.message.clear();
  return s;
}

bool is_coming_up(UnitPhase phase) {
  return phase == UnitPhase::kPending || phase == UnitPhase::kStarting ||
         phase == UnitPhase::kRecovering || is_live(phase);
}

// Follows from the pods and the outer optimizer as they are, so that a restart of the operator
// finds it again.
bool is_derived(const Condition& c) {
  return c.type == condition::kOuterOptimizerReady || c.type == condition::kQuorumAvailable ||
         c.type == condition::kProgressing;
}

// A pod's uid that was not noted before: a replaced one is a decision.
void forget_new_pods(TrainingStatus& s, const TrainingStatus& stored) {
  for (std::size_t i = 0; i < s.units.size(); ++i)
    if (i < stored.units.size() && stored.units[i].pod_uids.empty()) s.units[i].pod_uids.clear();
  if (stored.outer.pod_uid.empty()) {
    s.outer.pod.clear();
    s.outer.pod_uid.clear();
  }
  if (!stored.active_since) s.active_since.reset();
}

TrainingStatus without_settling(TrainingStatus s, const TrainingStatus& stored) {
  s = without_progress(std::move(s));
  forget_new_pods(s, stored);
  for (UnitStatus& u : s.units) {
    u.reason.clear();
    if (!is_coming_up(u.phase)) continue;
    u.phase = UnitPhase::kPending;
    u.stepping_since.reset();
  }
  s.learners = {};
  for (DatacenterStatus& d : s.datacenters) d.stepping = 0;
  s.outer.since.reset();
  s.outer.epoch = 0;
  s.outer.settings_generation = 0;
  std::erase_if(s.conditions, is_derived);
  return s;
}

}  // namespace

StatusChange status_change(const TrainingStatus& next, const TrainingStatus& stored) {
  if (next == stored) return StatusChange::kNone;
  if (without_progress(next) == without_progress(stored)) return StatusChange::kProgress;
  if (without_settling(next, stored) == without_settling(stored, stored))
    return StatusChange::kSettling;
  return StatusChange::kDecision;
}

}  // namespace archipelago::op
