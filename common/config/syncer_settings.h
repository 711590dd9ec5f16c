#pragma once
// What a spec says to SyncerCore: the one place where fields of spec.sync, budget, recovery and
// data become its settings. Identity, version and lineage are the caller's.
#include "common/config/spec.h"
#include "common/diloco/syncer_core.h"

namespace archipelago::config {

[[nodiscard]] diloco::SyncerConfig syncer_settings(const TrainingSpec& spec);

}  // namespace archipelago::config
