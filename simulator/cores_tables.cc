#include "simulator/cores_tables.h"

#include <algorithm>

#include "simulator/paper_tables.h"

namespace archipelago::simulator {

using namespace diloco;

namespace {

CoresConfig base(std::uint64_t seed, int learners) {
  CoresConfig config;
  config.seed = seed;
  config.sync.run_id = "table";
  config.sync.start_units = learners;
  config.sync.validate_every = 0;
  config.units.resize(static_cast<std::size_t>(learners));
  return config;
}

// Every learner in a datacenter of its own, the hub's link unlimited; one fragment of 1 bit takes
// `up` seconds up and `down` down.
void spread(CoresConfig& config, double up, double down) {
  config.links.assign(config.units.size() + 1, CoresLink{1 / up, 1 / down});
  config.links.front() = CoresLink{};
  config.hub = 0;
  for (std::size_t u = 0; u < config.units.size(); ++u)
    config.units[u].datacenter = static_cast<int>(u) + 1;
  config.upload_bits = config.publish_bits = 1;
  config.keyframe_bits = 8;
}

}  // namespace

CoresResult cores_availability(std::uint64_t seed, int learners, double chips, bool elastic,
                               const AvailabilityConstants& constants) {
  constexpr int kSlices = 128;
  constexpr double kLearnerSteps = 60'000;
  CoresConfig config = base(seed, learners);
  for (auto& unit : config.units) unit.step_seconds = constants.step_seconds;
  config.constants = constants;
  config.elastic = elastic;
  config.slices = kSlices / learners;
  config.failures_per_second = chips / paper::kYear / learners;
  config.seconds = kLearnerSteps * constants.step_seconds / learners;
  return run_cores(config);
}

double cores_scavenging_time(std::uint64_t seed, double extra) {
  constexpr int kBase = 4;
  constexpr double kTokens = 8000;
  const auto time = [&](int more) {
    CoresConfig config = base(seed, kBase + more);
    config.sync.start_units = kBase;
    for (std::size_t u = kBase; u < config.units.size(); ++u) {
      config.units[u].scavenging = true;
      config.units[u].join_at_tokens = kTokens / 2;
    }
    config.jitter = 0.1;
    config.tokens = kTokens;
    return run_cores(config).seconds;
  };
  return time(static_cast<int>(extra * kBase + 0.5)) / time(0);
}

CoresResult cores_quorum(std::uint64_t seed, const QuorumSetting& setting) {
  constexpr int kLearners = 8;
  CoresConfig config = base(seed, kLearners);
  for (std::size_t u = kLearners / 2; u < kLearners; ++u) config.units[u].step_seconds = 1 / 0.82;
  spread(config, 0.05, 0.05);
  config.jitter = 0.1;
  config.sync.quorum = setting.quorum;
  config.sync.grace = setting.grace;
  config.lockstep = setting.lockstep;
  config.seconds = 1500;
  return run_cores(config);
}

CoresResult cores_hub(std::uint64_t seed, int datacenters, double round_steps, int quorum) {
  constexpr int kLearners = 8;
  CoresConfig config = base(seed, kLearners);
  const int remote = kLearners - kLearners / datacenters;
  const double rate = remote / round_steps;  // fragments a second; a step is a second
  config.links.assign(static_cast<std::size_t>(datacenters), CoresLink{rate, rate});
  for (int u = 0; u < kLearners; ++u)
    config.units[static_cast<std::size_t>(u)].datacenter = u % datacenters;
  config.upload_bits = config.publish_bits = 1;
  config.keyframe_bits = 1;  // the start is no part of the question
  config.jitter = 0.1;
  config.sync.quorum = quorum;
  config.seconds = 800;
  return run_cores(config);
}

double cores_hub_steps(std::uint64_t seed, int datacenters, double utilisation) {
  constexpr int kLearners = 8;
  const auto share = [&](double steps) {
    const auto r = cores_hub(seed, datacenters, steps, kLearners);
    return r.global_per_step * r.mean_participants / kLearners;
  };
  const double whole = share(0.01);
  double low = 0.1, high = 4;
  for (int i = 0; i < 12; ++i) {
    const double middle = 0.5 * (low + high);
    (share(middle) >= utilisation * whole ? low : high) = middle;
  }
  return low;
}

Joining cores_joining(std::uint64_t seed, double copy_steps) {
  constexpr int kLearners = 8, kFragments = 24;
  constexpr std::size_t kMeasured = 200;
  constexpr double kJoinAt = 100, kHorizon = 1500;
  const auto world = [&](bool joins) {
    CoresConfig config = base(seed, kLearners + (joins ? 1 : 0));
    config.sync.start_units = kLearners;
    // A fragment of 1 bit is a bf16 copy's 24th; published in bf16, keyframes fp32, two moments in
    // bf16.
    spread(config, copy_steps / kFragments, copy_steps / kFragments);
    config.keyframe_bits = 2;
    config.state_bits = 2 * kFragments;
    if (joins) config.units.back().join_at = kJoinAt;
    config.jitter = 0.1;
    config.seconds = kHorizon;
    return run_cores(config);
  };
  const auto reached = [&](const CoresResult& r) {
    const auto first = std::lower_bound(r.commit_times.begin(), r.commit_times.end(), kJoinAt);
    const auto index =
        std::min(static_cast<std::size_t>(first - r.commit_times.begin()) + kMeasured,
                 r.commit_times.size() - 1);
    return r.commit_times[index] - kJoinAt;
  };
  const CoresResult without = world(false), with = world(true);
  return {reached(with) - reached(without), with.recovery_seconds.back()};
}

}  // namespace archipelago::simulator
