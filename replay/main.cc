// archipelago-replay: trains again under an event tape, or compares two. Exit codes: 0 the same, 1
// they differ, or the tape could not be followed to where it was asked to, 2 refused (damaged,
// foreign, not a tape, an argument).
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <thread>

#include <CLI/CLI.hpp>

#include "common/base/clock.h"
#include "learner/llama_shapes.h"
#include "learner/torch_trainer.h"
#include "replay/replayer.h"

namespace archipelago::replay {
namespace {

constexpr int kSame = 0;
constexpr int kDiffers = 1;
constexpr int kRefused = 2;

struct CommandLine {
  std::string tape, other, train, weights;
  std::int64_t until = 0;
  bool quiet = false;
};

int refuse(const Error& error) {
  std::cerr << "archipelago replay: " << error.message << "\n";
  return kRefused;
}

ReplayHooks torch_hooks(bool quiet) {
  ReplayHooks hooks;
  hooks.shapes = learner::llama_shapes;
  hooks.trainer = [first = true](const config::ModelSpec& model, const config::InnerSpec& inner,
                                 int threads) mutable {
    if (first) {
      learner::tune_allocator();
      learner::set_torch_threads(std::max(1, threads));
    }
    first = false;
    learner::change_torch_threads(std::max(1, threads));  // the trainer says what it runs with
    return learner::make_torch_trainer(model, inner);
  };
  hooks.use_threads = [](int threads) { learner::change_torch_threads(std::max(1, threads)); };
  if (!quiet)
    hooks.progress = [](GlobalStep t, GlobalStep until) {
      if (t.value % 100 == 0)
        std::cerr << "global step " << t.value << " of " << until.value << "\n";
    };
  return hooks;
}

int compare(const TapeContent& tape, const TapeContent& other) {
  if (tape.scan.run_id != other.scan.run_id)
    std::cout << "runs " << tape.scan.run_id << " | " << other.scan.run_id << "\n";
  const auto lines = differences(tape, other);
  for (const auto& line : lines) std::cout << line << "\n";
  if (lines.empty()) std::cout << "the same events, rounds and published bytes\n";
  return lines.empty() ? kSame : kDiffers;
}

int train_again(const CommandLine& line, const TapeContent& tape) {
  ReplayOptions options;
  options.train = line.train;
  options.weights = line.weights;
  if (line.until > 0) options.until = GlobalStep(line.until);
  options.merge_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const SystemClock clock;
  const TimePoint begin = clock.now();
  const auto report = replay(tape, options, torch_hooks(line.quiet));
  if (!report) return refuse(report.error());
  for (const auto& warning : report->warnings) std::cerr << "warning: " << warning << "\n";
  std::printf(
      "global steps 1 to %lld: %lld learner steps of %lld incarnations in %.1f s, "
      "%lld published fragments compared\n",
      static_cast<long long>(report->reached.value), static_cast<long long>(report->learner_steps),
      static_cast<long long>(report->learners), to_seconds(clock.now() - begin),
      static_cast<long long>(report->compared));
  if (!report->divergence.empty()) std::cout << report->divergence << "\n";
  if (!report->stopped.empty()) std::cout << "not further: " << report->stopped << "\n";
  if (report->divergence.empty() && report->stopped.empty()) {
    std::cout << "every one has the tape's bytes\n";
    return kSame;
  }
  return kDiffers;
}

int run(const CommandLine& line) {
  const auto tape = load_tape(line.tape);
  if (!tape) return refuse(tape.error());
  if (tape->scan.torn > 0)
    std::cerr << "warning: the last " << tape->scan.torn << " bytes are a torn block, from offset "
              << tape->scan.end << "\n";
  if (line.other.empty()) return train_again(line, *tape);
  const auto other = load_tape(line.other);
  if (!other) return refuse(other.error());
  return compare(*tape, *other);
}

}  // namespace
}  // namespace archipelago::replay

int main(int argc, char** argv) {
  CLI::App app("Trains again under an event tape and compares the published bytes",
               "archipelago replay");
  archipelago::replay::CommandLine line;
  app.add_option("tape", line.tape, "events.tape, or the folder of its run")->required();
  app.add_option("--until", line.until, "last global step (default: the tape's)")
      ->check(CLI::PositiveNumber);
  app.add_option("--diff", line.other, "another tape: compare the records, train nothing");
  app.add_option("--train", line.train,
                 "the training data, when they are no longer where they were");
  app.add_option("--weights", line.weights,
                 "the model folder of initFrom.path, when it is no longer where it was");
  app.add_flag("--quiet", line.quiet, "no line every 100 global steps");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : archipelago::replay::kRefused;
  }
  try {
    return archipelago::replay::run(line);
  } catch (const std::exception& error) {
    std::cerr << "archipelago replay: " << error.what() << "\n";
    return archipelago::replay::kRefused;
  }
}
