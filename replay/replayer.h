#pragma once
// Trains again under a tape (protocol.md §10; paper E.2): the events of each learner in their
// order, everything else when something rests on it, so no clock, network or scheduling matters.
// After each global step the published bytes are compared with the tape's digest; the first that
// differs ends it.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "learner/trainer.h"
#include "replay/tape_content.h"

namespace archipelago::replay {

class Engine;

struct ReplayOptions {
  std::optional<GlobalStep> until;  // nullopt: to the tape's end
  std::string train;                // instead of the spec's data.train.path; empty: that
  std::string weights;              // instead of the spec's model.initFrom.path
  int merge_threads = 1;
};

struct ReplayHooks {
  std::function<std::vector<learner::TensorShape>(const config::ModelSpec&)> shapes;
  // `threads`: what the learner trained with.
  std::function<Result<std::unique_ptr<learner::Trainer>>(const config::ModelSpec&,
                                                          const config::InnerSpec&, int threads)>
      trainer;
  std::function<void(int)> use_threads = [](int) {
  };  // before a step of a learner with another count
  std::function<void(GlobalStep t, GlobalStep until)> progress = [](GlobalStep, GlobalStep) {};
  // After each global step, and after the final publication (its version).
  std::function<void(GlobalStep t, const Engine& engine)> made = [](GlobalStep, const Engine&) {};
};

struct ReplayReport {
  GlobalStep reached;         // global steps 1..reached were made again
  std::int64_t compared = 0;  // published fragments whose digest was compared and is the same
  std::int64_t learner_steps = 0;
  std::int64_t learners = 0;
  std::string divergence;  // the first, with step, fragment and members; empty: none
  std::string stopped;     // why the tape does not go further; empty: it was followed to the end
  std::vector<std::string> warnings;
};

// kInvalid, kUnsupported: the tape's settings, data or model are not what is here, by name.
[[nodiscard]] Result<ReplayReport> replay(const TapeContent& tape, const ReplayOptions& options,
                                          const ReplayHooks& hooks);

}  // namespace archipelago::replay
