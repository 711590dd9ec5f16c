// Tokens a second of the learner's training step: hidden 256, 6 layers, 8 heads, 4 KV heads,
// intermediate 688, vocabulary 256, context 256, batch 16 (docs/performance.md). Prints one JSON
// line as bench/pytorch_eager.py does. The fourth argument is the inner optimizer.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "learner/torch_trainer.h"

int main(int argc, char** argv) {
  using namespace archipelago;
  const std::string precision = argc > 1 ? argv[1] : "fp32";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const int steps = argc > 3 ? std::atoi(argv[3]) : 6;
  if ((precision != "fp32" && precision != "bf16") || threads < 1 || steps < 1) {
    std::fprintf(stderr, "usage: training_step_bench [fp32|bf16] [THREADS] [STEPS] [adamw|muon]\n");
    return 2;
  }
  learner::tune_allocator();
  learner::set_torch_threads(threads);
  const config::ModelSpec model;
  config::InnerSpec inner;
  inner.optimizer = argc > 4 ? argv[4] : "adamw";
  inner.precision = precision == "bf16" ? config::Precision::kBf16 : config::Precision::kFp32;
  auto trainer = learner::make_torch_trainer(model, inner);
  if (!trainer) {
    std::fprintf(stderr, "%s\n", trainer.error().describe().c_str());
    return 1;
  }
  (*trainer)->initialise(1);
  Rng rng(1);
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(inner.batch_size * (model.context_length + 1)));
  for (auto& token : tokens) token = static_cast<std::int32_t>(rng.below(256));
  const SystemClock clock;
  std::vector<double> times;
  double loss = 0;
  for (int i = 0; i < steps + 2; ++i) {
    const TimePoint start = clock.now();
    auto result = (*trainer)->step(tokens, 3e-4);
    if (!result) {
      std::fprintf(stderr, "%s\n", result.error().describe().c_str());
      return 1;
    }
    loss = result->loss;
    if (i >= 2) times.push_back(to_seconds(clock.now() - start));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  const double seconds_a_step = times[times.size() / 2];
  std::printf(
      "{\"precision\": \"%s\", \"threads\": %d, \"tokens_per_second\": %.1f, \"loss\": %.6f}\n",
      precision.c_str(), threads,
      static_cast<double>(inner.batch_size * model.context_length) / seconds_a_step, loss);
  return 0;
}
