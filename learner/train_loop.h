#pragma once
// The training thread (protocol.md §2.2): step, then at the boundary what LearnerCore says, in its
// order: snapshot, overwrites, validation, donation. Nothing here waits for the network but a
// pause, and during a pause snapshots and overwrites go on as news arrives.
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/config/spec.h"
#include "common/diloco/learner_core.h"
#include "learner/data.h"
#include "learner/exit_code.h"
#include "learner/fragments.h"
#include "learner/hub.h"
#include "learner/trainer.h"

namespace archipelago::learner {

struct TrainLoopOptions {
  config::InnerSpec inner;  // batch sizes of this datacenter
  GlobalStep budget;
  std::uint64_t init_seed = 1;
  std::string init_path;        // the model folder of the first weights instead; empty: the seed
  std::uint64_t data_seed = 1;  // of the permutation that the outer optimizer leases from
  double blend = 0;             // overwrite: blend · own + (1 - blend) · published
  std::int64_t validation_sequences = 256;
  config::Precision recovery_precision = config::Precision::kBf16;
  Duration recovery_timeout{};  // 0: max(60 s, H x step time)
  std::int32_t interval = 24;
  std::int64_t log_every = 100;    // steps
  diloco::tape::Start tape_start;  // without what the trainer knows
};

class TrainLoop {
 public:
  // `alive` is told about each begin of a step (mean step time) and each pause (nullopt): the
  // watchdog.
  TrainLoop(TrainLoopOptions options, const FragmentMap& fragments, Trainer& trainer,
            const TokenFile& train, const TokenFile* validation, Hub& hub, const Clock& clock,
            Logger log, std::function<void(std::optional<Duration>)> alive);

  // Until the run is finished (kFinished), stop (kLeft), or the hub says otherwise.
  [[nodiscard]] ExitCode run(const std::stop_token& stop);

 private:
  // One optimizer step; nullopt: not enough data leased. An error ends the process with `failed_`.
  std::optional<diloco::BoundaryPlan> step(const diloco::BoundaryPlan& plan);
  bool read_batch(const std::vector<diloco::SequenceRef>& refs);
  // `stepping`: training waits for it, so its time is the exchange's cost.
  void carry_out(const diloco::BoundaryPlan& plan, bool stepping, const std::stop_token& stop);
  void add_cost(TimePoint begin);
  void take_snapshot(const diloco::SnapshotOrder& order);
  void overwrite(const diloco::ApplyOrder& order);
  void validate(GlobalStep version, const std::vector<Base>& bases, const std::stop_token& stop);
  void tend_recovery();
  void record_start();
  void record_step(const std::vector<diloco::SequenceRef>& refs, const diloco::BoundaryPlan& plan,
                   GlobalStep budget, const StepResult& result);
  void seed_if_asked();
  void publish_stats(const std::string& pause_reason);
  void log_step(const StepResult& result);

  TrainLoopOptions options_;
  const FragmentMap& fragments_;
  Trainer& trainer_;
  const TokenFile& train_;
  const TokenFile* validation_;
  Hub& hub_;
  const Clock& clock_;
  Logger log_;
  std::function<void(std::optional<Duration>)> alive_;
  TimePoint started_;
  bool recovered_ = false;
  LoopStats stats_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> scratch_;
  std::optional<ExitCode> failed_;
};

}  // namespace archipelago::learner
