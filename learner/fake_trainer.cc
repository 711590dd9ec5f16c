#include "learner/fake_trainer.h"

#include <cmath>
#include <thread>

#include "common/base/rng.h"

namespace archipelago::learner {
namespace {

float target(std::size_t i) { return 0.5F * std::sin(static_cast<float>(i)); }

}  // namespace

std::vector<TensorShape> fake_tensors(int count) {
  std::vector<TensorShape> out;
  std::int64_t offset = 0;
  for (int i = 0; i <= count; ++i) {
    TensorShape tensor;
    tensor.name = "tensor." + std::to_string(i);
    tensor.shape = i < count ? std::vector<std::int64_t>{8 + i, 16} : std::vector<std::int64_t>{16};
    tensor.elements = i < count ? (8 + i) * 16 : 16;
    tensor.embedding = i == 0;
    tensor.hidden_matrix = i > 0 && i < count;
    tensor.decays = false;
    tensor.init_std = 0.02;
    tensor.offset = offset;
    offset += tensor.elements;
    out.push_back(std::move(tensor));
  }
  return out;
}

FakeTrainer::FakeTrainer(FakeTrainerOptions options)
    : options_(std::move(options)), state_(options_.tensors, options_.optimizer) {}

double FakeTrainer::loss_of(std::span<const float> weights) const {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double apart = static_cast<double>(weights[i] - target(i));
    sum += apart * apart;
  }
  return 0.5 * sum / static_cast<double>(weights.size());
}

Result<StepResult> FakeTrainer::step(std::span<const std::int32_t> tokens, double learning_rate) {
  const auto row = static_cast<std::size_t>(options_.context_length + 1);
  if (tokens.empty() || tokens.size() % row != 0)
    return fail(ErrorKind::kInvalid, "batch of " + std::to_string(tokens.size()) + " tokens");
  if (options_.step_time > Duration{}) std::this_thread::sleep_for(options_.step_time);
  std::uint64_t key = 0;
  for (const std::int32_t token : tokens) key = mix64(key + static_cast<std::uint64_t>(token));
  Rng rng(key);
  const auto weights = state_.weights().span();
  const auto gradients = state_.gradients().span();
  const auto noise = static_cast<float>(options_.noise);
  for (std::size_t i = 0; i < weights.size(); ++i)
    gradients[i] = weights[i] - target(i) + noise * static_cast<float>(rng.uniform(-1, 1));
  StepResult result;
  result.loss = loss_of(weights);
  result.tokens = static_cast<std::int64_t>(tokens.size() / row) * options_.context_length;
  const auto applied = state_.apply(learning_rate, 1.0, serially);
  result.gradient_norm = applied.gradient_norm;
  result.skipped = applied.skipped;
  return result;
}

Result<EvalResult> FakeTrainer::evaluate(std::span<const float> weights,
                                         std::span<const std::int32_t> tokens) {
  EvalResult result;
  result.loss =
      loss_of(weights.empty() ? std::span<const float>(state_.weights().span()) : weights);
  result.tokens = static_cast<std::int64_t>(tokens.size()) / (options_.context_length + 1) *
                  options_.context_length;
  return result;
}

Result<std::vector<std::int32_t>> FakeTrainer::sample(std::span<const std::int32_t> prompt,
                                                      std::int64_t n, double, std::uint64_t) {
  if (prompt.empty()) return fail(ErrorKind::kInvalid, "sample: the prompt is empty");
  return std::vector<std::int32_t>(static_cast<std::size_t>(n), prompt.back());
}

}  // namespace archipelago::learner
