#pragma once
// How soon a changed status must be written. Pure.
#include "operator/api/status.h"

namespace archipelago::op {

enum class StatusChange {
  kNone,
  kProgress,  // counters only: at most every ten seconds
  kSettling,  // pods come up and are noted: a second's worth goes into one write
  kDecision,  // a charge, an incarnation, an end, a phase, a condition: at once
};

[[nodiscard]] StatusChange status_change(const TrainingStatus& next, const TrainingStatus& stored);

}  // namespace archipelago::op
