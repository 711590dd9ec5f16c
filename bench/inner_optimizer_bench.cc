// Validation loss and time a step of AdamW and Muon, each at several learning rates, on one learner
// without any exchange (docs/performance.md). hidden 128, 4 layers, context 128, batch 8; cosine
// over the given steps. A JSON line a run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/diloco/data_ledger.h"
#include "learner/data.h"
#include "learner/lr_schedule.h"
#include "learner/torch_trainer.h"

namespace {

using namespace archipelago;

struct Data {
  learner::TokenFile train, validation;
};

std::vector<std::int32_t> rows(const learner::TokenFile& file, std::uint64_t first,
                               std::int64_t count, std::uint64_t seed) {
  const auto row = static_cast<std::size_t>(128 + 1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count) * row);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t at = first + static_cast<std::uint64_t>(i);
    const std::uint64_t sequence =
        seed == 0 ? at % file.sequences()
                  : diloco::sequence_index(seed, file.sequences(), at / 256,
                                           static_cast<std::uint32_t>(at % 256));
    if (!file.read(sequence, std::span(tokens).subspan(static_cast<std::size_t>(i) * row, row)))
      std::abort();
  }
  return tokens;
}

int run(const Data& data, const config::ModelSpec& model, const std::string& optimizer, double rate,
        std::int64_t steps) {
  config::InnerSpec inner;
  inner.optimizer = optimizer;
  inner.learning_rate = rate;
  inner.batch_size = 8;
  inner.warmup_steps = std::min<std::int64_t>(20, steps);
  auto trainer = learner::make_torch_trainer(model, inner);
  if (!trainer) return std::fprintf(stderr, "%s\n", trainer.error().describe().c_str()), 1;
  (*trainer)->initialise(1);
  const SystemClock clock;
  std::vector<double> times;
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto tokens = rows(data.train, static_cast<std::uint64_t>(8 * i), 8, 1);
    const TimePoint begin = clock.now();
    const auto done =
        (*trainer)->step(tokens, learner::learning_rate(inner, GlobalStep(i), GlobalStep(steps)));
    if (!done) return std::fprintf(stderr, "%s\n", done.error().describe().c_str()), 1;
    times.push_back(to_seconds(clock.now() - begin));
  }
  const auto loss = (*trainer)->evaluate({}, rows(data.validation, 0, 256, 0));
  if (!loss) return std::fprintf(stderr, "%s\n", loss.error().describe().c_str()), 1;
  std::sort(times.begin(), times.end());
  std::printf(
      "{\"optimizer\": \"%s\", \"learning_rate\": %g, \"steps\": %lld, "
      "\"validation_loss\": %.4f, \"step_milliseconds\": %.1f}\n",
      optimizer.c_str(), rate, static_cast<long long>(steps), loss->loss,
      1e3 * times[times.size() / 2]);
  return std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: inner_optimizer_bench TRAIN.txt VALIDATION.txt [STEPS] [THREADS] "
                 "[OPTIMIZER] [RATE]\n");
    return 2;
  }
  const std::int64_t steps = argc > 3 ? std::max(1, std::atoi(argv[3])) : 300;
  learner::tune_allocator();
  learner::set_torch_threads(argc > 4 ? std::max(1, std::atoi(argv[4])) : 2);
  config::ModelSpec model;
  model.hidden_size = 128;
  model.layers = 4;
  model.heads = 4;
  model.kv_heads = 2;
  model.intermediate_size = 352;
  model.context_length = 128;
  Data data;
  for (auto [file, path] :
       {std::pair{&data.train, argv[1]}, std::pair{&data.validation, argv[2]}}) {
    auto opened = learner::TokenFile::open(path, config::DataFormat::kText, model.context_length,
                                           model.vocab_size);
    if (!opened) return std::fprintf(stderr, "%s\n", opened.error().describe().c_str()), 1;
    *file = std::move(*opened);
  }
  for (const std::string optimizer : {"adamw", "muon"}) {
    if (argc > 5 && optimizer != argv[5]) continue;
    for (const double rate : {1e-3, 3e-3, 1e-2}) {
      if (argc > 6 && rate != std::strtod(argv[6], nullptr)) continue;
      if (const int failed = run(data, model, optimizer, rate, steps); failed != 0) return failed;
    }
  }
  return 0;
}
