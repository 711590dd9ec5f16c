#include "outer-optimizer/options.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "common/config/parse.h"
#include "common/config/syncer_settings.h"

namespace archipelago::outer {
namespace {

// The spec and the codecs use the same names.
codec::Codec codec_of(config::CodecName name) {
  return codec::parse_codec(config::to_string(name)).value();
}

// Merge threads: the pod's CPU limit, else the machine's.
int threads_of(const config::OuterOptimizerSpec& spec) {
  const int machine = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (spec.cpu_limit <= 0) return machine;
  return std::clamp(static_cast<int>(std::ceil(spec.cpu_limit)), 1, machine);
}

diloco::SyncerConfig core_of(const Flags& flags, const config::TrainingSpec& spec) {
  diloco::SyncerConfig core = config::syncer_settings(spec);
  core.run_id = flags.run_id;
  core.settings_source = flags.run_id;  // before an adopted run gives its own id
  core.lineage_draw = 1 + static_cast<std::int64_t>(std::random_device{}());
  return core;
}

}  // namespace

Result<DaemonOptions> make_options(const Flags& flags, const config::DecoupledTraining& training) {
  const config::TrainingSpec& spec = training.spec;
  if (flags.run_id.empty() || flags.run_id.size() > 255) {
    return fail(ErrorKind::kRefused,
                "--run-id: '" + flags.run_id + "' given, 1 to 255 characters are allowed");
  }
  DaemonOptions out;
  out.flags = flags;
  out.core = core_of(flags, spec);
  out.core.settings_generation = std::max<std::int64_t>(1, training.generation);
  out.uplink = codec_of(spec.sync.uplink);
  out.linger = seconds(spec.outer_optimizer.finished_linger_seconds);
  out.checkpoint_every = spec.outer_optimizer.checkpoint.every_steps;
  out.resolved = config::to_json(training).dump();
  out.adopt = spec.outer_optimizer.storage.adopt;
  out.store.folder = flags.data_dir;
  out.store.journal_gradients = spec.outer_optimizer.checkpoint.journal;
  out.store.run_id = flags.run_id;
  out.store.fragments = spec.sync.fragments;
  out.store.interval = spec.sync.interval;
  ARCH_TRY(out.store.scheme, diloco::parse_scheme(spec.sync.fragmentation));
  out.store.published_bf16 = spec.sync.published == config::Precision::kBf16;
  out.store.rules.step = {static_cast<float>(spec.outer.learning_rate),
                          static_cast<float>(spec.outer.momentum), spec.outer.nesterov};
  out.store.rules.radial = {spec.sync.merge == config::MergeRule::kRda,
                            spec.sync.embedding_merge == config::MergeRule::kRda};
  out.store.rules.downlink = codec_of(spec.sync.downlink);
  out.store.threads = threads_of(spec.outer_optimizer);
  out.store.checkpoint_every = out.checkpoint_every;
  out.store.keep = spec.outer_optimizer.checkpoint.keep;
  const auto units = static_cast<std::size_t>(std::max(1, config::total_units(spec)));
  out.limits.units = units;
  out.limits.held_replies = std::min<std::size_t>(units + 4, 320);
  out.limits.uploads_at_once = std::min<std::size_t>(2 * units + 2, 128);
  out.limits.threads = out.limits.held_replies + out.limits.uploads_at_once + 6;
  out.limits.upload_rounds = static_cast<std::uint64_t>(spec.sync.overlap) + 2;
  return out;
}

}  // namespace archipelago::outer
