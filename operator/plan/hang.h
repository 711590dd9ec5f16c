#pragma once
// The operator's hang detector, third after the liveness probe and the learner's watchdog
// (resource.md "Failures"). Silence alone is phase Unreachable: a cut link or an absent outer
// optimizer must not kill healthy islands.
#include <optional>

#include "operator/plan/observed.h"

namespace archipelago::op {

struct HangInput {
  const ObservedPod* pod = nullptr;  // Running
  const OuterUnit* unit =
      nullptr;  // heard at this incarnation; null: never heard, which is not judged here
  bool outer_served = false;  // the outer optimizer itself served for all of stallSeconds
  bool neighbour_heard =
      false;  // another unit of the same datacenter was heard within stallSeconds
  const ObservedProbe* probe = nullptr;  // of its admin port, may be old or of another pod
  double stall_seconds = 300;
  WallTime now{};
};
enum class HangAction { kNone, kProbe, kReplace };

[[nodiscard]] HangAction judge_silence(const HangInput& input);

}  // namespace archipelago::op
