#include "common/config/syncer_settings.h"

namespace archipelago::config {
namespace {

diloco::GraceKind grace_of(GraceRule rule) {
  switch (rule) {
    case GraceRule::kSteps:
      return diloco::GraceKind::kSteps;
    case GraceRule::kSlack:
      return diloco::GraceKind::kSlack;
    case GraceRule::kOff:
      return diloco::GraceKind::kOff;
  }
  return diloco::GraceKind::kSteps;
}

}  // namespace

diloco::SyncerConfig syncer_settings(const TrainingSpec& spec) {
  const SyncSpec& sync = spec.sync;
  diloco::SyncerConfig out;
  out.fragments = sync.fragments;
  out.interval = sync.interval;
  out.overlap = sync.overlap;
  out.quorum = sync.quorum;
  out.grace = grace_of(sync.grace.rule);
  out.grace_steps = sync.grace.steps;
  out.grace_fraction = sync.grace.fraction;
  out.budget = GlobalStep(spec.budget.global_steps);
  out.max_lead = sync.max_lead;
  out.start_units = sync.start_units;
  out.start_timeout = seconds(sync.start_timeout_seconds);
  out.recovery_timeout = seconds(spec.recovery.timeout_seconds);
  out.validate_at_end = !spec.data.validation.empty();
  out.validate_every = spec.data.validation.empty() ? 0 : spec.data.validation.front().every_steps;
  out.data_seed = spec.inner.seed;
  return out;
}

}  // namespace archipelago::config
