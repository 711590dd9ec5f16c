#include "operator/plan/hang.h"

namespace archipelago::op {
namespace {
constexpr auto kProbeAge = std::chrono::seconds(15);  // an older answer says nothing of now
}

HangAction judge_silence(const HangInput& input) {
  if (input.pod == nullptr || input.unit == nullptr) return HangAction::kNone;
  if (input.pod->phase != PodPhase::kRunning || input.pod->deletion) return HangAction::kNone;
  if (input.unit->incarnation != input.pod->incarnation) return HangAction::kNone;
  if (input.unit->last_heard_seconds < input.stall_seconds) return HangAction::kNone;
  if (!input.outer_served || !input.neighbour_heard) return HangAction::kNone;
  const ObservedProbe* probe = input.probe;
  if (probe == nullptr || probe->pod_uid != input.pod->uid || probe->time + kProbeAge < input.now)
    return HangAction::kProbe;
  return probe->answered && probe->phase == "Waiting" ? HangAction::kNone : HangAction::kReplace;
}

}  // namespace archipelago::op
