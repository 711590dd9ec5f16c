#include <algorithm>
#include <sstream>

#include "common/base/rng.h"
#include "simulator/world.h"

namespace archipelago::simulator {

namespace {

struct Shape {
  std::int32_t fragments, interval, overlap;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {1, 4, 1}, {2, 4, 2}, {4, 4, 2},
                             {3, 6, 1}, {6, 6, 3}, {8, 8, 2}, {2, 8, 2}};

Fault random_fault(Rng& rng, int units, double horizon) {
  Fault fault;
  fault.at = rng.uniform(0.5, horizon);
  fault.unit = static_cast<int>(rng.below(static_cast<std::uint64_t>(units)));
  fault.away = rng.uniform(0.2, 15);
  const std::uint64_t dice = rng.below(12);
  fault.kind = dice < 3    ? FaultKind::kKillLearner
               : dice < 5  ? FaultKind::kZombie
               : dice < 7  ? FaultKind::kCutLearner
               : dice < 9  ? FaultKind::kKillSyncer
               : dice < 10 ? FaultKind::kKillAtCommit
               : dice < 11 ? FaultKind::kLoseDisk
                           : FaultKind::kRestoreDisk;
  return fault;
}

const char* name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillLearner:
      return "kill learner";
    case FaultKind::kZombie:
      return "zombie";
    case FaultKind::kCutLearner:
      return "cut learner";
    case FaultKind::kKillSyncer:
      return "kill syncer";
    case FaultKind::kKillAtCommit:
      return "kill syncer at commit";
    case FaultKind::kLoseDisk:
      return "lose disk";
    case FaultKind::kRestoreDisk:
      return "restore disk";
  }
  return "";
}

}  // namespace

WorldConfig random_world(std::uint64_t seed) {
  Rng rng(mix64(seed));
  WorldConfig config;
  config.seed = seed;
  const Shape shape = kShapes[rng.below(std::size(kShapes))];
  config.sync.run_id = "world";
  config.sync.fragments = shape.fragments;
  config.sync.interval = shape.interval;
  config.sync.overlap = shape.overlap;
  config.sync.max_lead =
      std::max(2 * shape.interval, shape.interval / shape.fragments + shape.overlap + 1);
  config.sync.budget = GlobalStep(20 + static_cast<std::int64_t>(rng.below(30)));
  const int units = 1 + static_cast<int>(rng.below(5));
  config.sync.quorum = 1 + static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(units)));
  config.sync.start_units =
      1 + static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(units)));
  config.sync.start_timeout = seconds(20);
  config.sync.validate_every = rng.chance(0.5) ? 7 : 0;
  config.sync.grace = rng.chance(0.2)   ? diloco::GraceKind::kOff
                      : rng.chance(0.2) ? diloco::GraceKind::kSlack
                                        : diloco::GraceKind::kSteps;
  config.step_seconds.clear();
  for (int u = 0; u < units; ++u) {
    config.step_seconds.push_back(rng.chance(0.3) ? rng.uniform(1, 4) : 1.0);
    config.up.push_back(rng.chance(0.3) ? rng.uniform(0.05, 3) : rng.uniform(0.01, 0.3));
    config.down.push_back(rng.chance(0.2) ? rng.uniform(0.05, 1.5) : rng.uniform(0.01, 0.3));
  }
  config.fragment_size.assign(static_cast<std::size_t>(shape.fragments), 1.0);
  if (rng.chance(0.3)) config.fragment_size[0] = rng.uniform(1, 10);
  config.delay = rng.chance(0.5) ? 0 : rng.uniform(0, 0.5);
  config.loss = rng.chance(0.4) ? 0 : rng.uniform(0, 0.15);
  config.duplicate = rng.chance(0.5) ? 0 : rng.uniform(0, 0.2);
  config.merge_seconds = rng.uniform(0, 0.2);
  const auto faults = rng.below(9);
  const double horizon = static_cast<double>(config.sync.budget.value) * 1.5;
  for (std::uint64_t i = 0; i < faults; ++i)
    config.faults.push_back(random_fault(rng, units, horizon));
  std::sort(config.faults.begin(), config.faults.end(),
            [](const auto& a, const auto& b) { return a.at < b.at; });
  config.time_limit = 5000;
  return config;
}

WorldConfig shrink(const WorldConfig& failing) {
  WorldConfig best = failing;
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t i = 0; i < best.faults.size(); ++i) {
      WorldConfig candidate = best;
      candidate.faults.erase(candidate.faults.begin() + static_cast<std::ptrdiff_t>(i));
      if (run_world(candidate).violation.empty()) continue;
      best = std::move(candidate);
      smaller = true;
      break;
    }
  }
  for (double WorldConfig::*rate :
       {&WorldConfig::loss, &WorldConfig::duplicate, &WorldConfig::delay}) {
    WorldConfig candidate = best;
    candidate.*rate = 0;
    if (!run_world(candidate).violation.empty()) best = std::move(candidate);
  }
  return best;
}

std::string describe(const WorldConfig& config) {
  std::ostringstream out;
  out << "seed " << config.seed << ": units " << config.step_seconds.size() << ", P "
      << config.sync.fragments << ", H " << config.sync.interval << ", overlap "
      << config.sync.overlap << ", K " << config.sync.quorum << ", start units "
      << config.sync.start_units << ", T " << config.sync.budget.value << ", delay " << config.delay
      << ", loss " << config.loss << ", duplicate " << config.duplicate;
  for (std::size_t u = 0; u < config.step_seconds.size(); ++u)
    out << "\n  u-" << u << ": step " << config.step_seconds[u]
        << (u < config.up.size() ? ", up " + std::to_string(config.up[u]) : "");
  for (const auto& fault : config.faults)
    out << "\n  " << fault.at << ": " << name(fault.kind) << " u-" << fault.unit << " for "
        << fault.away;
  return out.str();
}

}  // namespace archipelago::simulator
