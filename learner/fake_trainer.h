#pragma once
// A Trainer without libtorch: the loss is half the mean squared distance of the parameters from a
// fixed target plus a little noise from the batch. It really descends, with the same AdamW, so
// whole runs can be tested in milliseconds.
#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "learner/flat_state.h"
#include "learner/trainer.h"

namespace archipelago::learner {

struct FakeTrainerOptions {
  std::vector<TensorShape> tensors;
  std::int64_t context_length = 16;
  OptimizerSettings optimizer;
  Duration step_time{};  // slept in each step
  double noise = 0.01;
};

class FakeTrainer final : public Trainer {
 public:
  explicit FakeTrainer(FakeTrainerOptions options);
  [[nodiscard]] const std::vector<TensorShape>& tensors() const override {
    return state_.tensors();
  }
  [[nodiscard]] std::int64_t context_length() const override { return options_.context_length; }
  [[nodiscard]] Numerics numerics() const override { return {"fake", 1}; }
  void initialise(std::uint64_t seed) override { state_.initialise(seed); }
  [[nodiscard]] Result<StepResult> step(std::span<const std::int32_t> tokens,
                                        double learning_rate) override;
  using Trainer::read;
  using Trainer::write;
  void read(std::span<const TensorRange> ranges, std::span<float> out) const override {
    state_.read(ranges, out);
  }
  void write(std::span<const TensorRange> ranges, std::span<const float> in) override {
    state_.write(ranges, in);
  }
  [[nodiscard]] Result<EvalResult> evaluate(std::span<const float> weights,
                                            std::span<const std::int32_t> tokens) override;
  [[nodiscard]] std::vector<std::byte> inner_state(config::Precision precision) const override {
    return state_.inner_state(precision);
  }
  [[nodiscard]] Status restore_inner_state(std::span<const std::byte> bytes) override {
    return state_.restore_inner_state(bytes);
  }
  [[nodiscard]] Result<std::vector<std::int32_t>> sample(std::span<const std::int32_t> prompt,
                                                         std::int64_t n, double temperature,
                                                         std::uint64_t seed) override;
  [[nodiscard]] const FlatState& state() const { return state_; }

 private:
  [[nodiscard]] double loss_of(std::span<const float> weights) const;
  FakeTrainerOptions options_;
  FlatState state_;
};

// `count` matrices of growing size, the first an embedding, and one vector.
[[nodiscard]] std::vector<TensorShape> fake_tensors(int count);

}  // namespace archipelago::learner
