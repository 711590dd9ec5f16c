#include "simulator/spec_world.h"

#include "common/base/rng.h"
#include "common/config/syncer_settings.h"

namespace archipelago::simulator {
namespace {

diloco::SyncerConfig sync_of(const config::TrainingSpec& spec) {
  diloco::SyncerConfig sync = config::syncer_settings(spec);
  sync.run_id = "simulated";
  sync.validate_at_end = false;  // values are somebody else's
  sync.validate_every = 0;
  return sync;
}

// Kills of one unit until `horizon`: up and away in turn.
void add_kills(WorldConfig& world, int unit, const SpecWorldOptions& options, double horizon,
               Rng& rng) {
  const double up = options.away * options.availability / (1 - options.availability);
  for (double at = rng.exponential(up); at < horizon;) {
    const double away = rng.exponential(options.away);
    world.faults.push_back({at, FaultKind::kKillLearner, unit, away});
    at += away + rng.exponential(up);
  }
}

}  // namespace

Result<WorldConfig> world_of(const config::TrainingSpec& spec, const SpecWorldOptions& options) {
  if (options.availability <= 0.05 || options.availability > 1)
    return fail(ErrorKind::kInvalid, "availability: " + std::to_string(options.availability) +
                                         " given, allowed: above 0.05, at most 1");
  if (options.jitter < 0 || options.jitter >= 1)
    return fail(ErrorKind::kInvalid, "jitter: " + std::to_string(options.jitter) +
                                         " given, allowed: at least 0, below 1");
  WorldConfig world;
  world.seed = options.seed;
  world.sync = sync_of(spec);
  world.jitter = options.jitter;
  world.dataset_sequences = options.dataset_sequences;
  world.tokens_per_sequence = spec.model.context_length;
  for (const auto& datacenter : spec.datacenters) {
    const std::int64_t sequences =
        datacenter.inner.batch_size.value_or(spec.inner.batch_size) *
        datacenter.inner.gradient_accumulation.value_or(spec.inner.gradient_accumulation);
    for (std::int64_t i = 0; i < datacenter.learner_units; ++i) {
      world.datacenters.push_back(datacenter.name);
      world.sequences_per_step.push_back(static_cast<std::uint32_t>(sequences));
    }
  }
  world.step_seconds = options.step_seconds;
  if (world.step_seconds.empty()) world.step_seconds.assign(world.datacenters.size(), 1.0);
  if (world.step_seconds.size() != world.datacenters.size())
    return fail(ErrorKind::kInvalid, "step times: " + std::to_string(world.step_seconds.size()) +
                                         " given, the spec has " +
                                         std::to_string(world.datacenters.size()) + " units");
  for (const double s : world.step_seconds)
    if (!(s > 0) || s > 1000)
      return fail(ErrorKind::kInvalid,
                  "step times: " + std::to_string(s) + " given, allowed: above 0, at most 1000");
  if (options.availability < 1) {
    Rng rng(options.seed ^ 0x6b696c6c73ULL);
    const double horizon =
        4.0 * static_cast<double>(spec.budget.global_steps) / options.availability;
    for (std::size_t u = 0; u < world.datacenters.size(); ++u)
      add_kills(world, static_cast<int>(u), options, horizon, rng);
  }
  return world;
}

}  // namespace archipelago::simulator
