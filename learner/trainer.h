#pragma once
// The port between the learner's loop and whatever trains the model. The loop knows named tensors
// in a flat order and nothing of libtorch; TorchTrainer is the product, FakeTrainer serves tests.
// Main thread only: parameters may be read and overwritten between two steps, never during one.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "learner/tensor_shape.h"

namespace archipelago::learner {

struct StepResult {
  double loss = 0;           // mean nats per token over the whole step
  double gradient_norm = 0;  // before clipping
  std::int64_t tokens = 0;   // predicted tokens: sequences x context
  bool skipped = false;      // loss or gradient not finite: parameters and moments unchanged
};

// What the bits of a step depend on besides its inputs; replay compares it (docs/tape.md).
struct Numerics {
  std::string kernels;  // library, version, instructions
  std::int32_t threads = 1;
};

struct EvalResult {
  double loss = 0;  // mean nats per token
  std::int64_t tokens = 0;
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  [[nodiscard]] virtual const std::vector<TensorShape>& tensors() const = 0;
  [[nodiscard]] virtual std::int64_t context_length() const = 0;
  [[nodiscard]] virtual Numerics numerics() const = 0;
  // Initial parameters, a function of the seed alone; moments fresh.
  virtual void initialise(std::uint64_t seed) = 0;

  // One optimizer step. tokens: sequences x (context + 1), row-major, inputs and targets
  // overlapping by all but one; split into micro-batches of the configured batch size.
  [[nodiscard]] virtual Result<StepResult> step(std::span<const std::int32_t> tokens,
                                                double learning_rate) = 0;

  // Ranges of the flat buffer, concatenated in that order; sizes must match exactly.
  virtual void read(std::span<const TensorRange> ranges, std::span<float> out) const = 0;
  virtual void write(std::span<const TensorRange> ranges, std::span<const float> in) = 0;
  // The same for whole tensors: `indices` into tensors().
  void read(std::span<const std::int32_t> indices, std::span<float> out) const {
    read(ranges_of(indices), out);
  }
  void write(std::span<const std::int32_t> indices, std::span<const float> in) {
    write(ranges_of(indices), in);
  }

  // Mean loss of `tokens` (as in step) under `weights` (the whole flat buffer), or under the
  // present ones when empty.
  [[nodiscard]] virtual Result<EvalResult> evaluate(std::span<const float> weights,
                                                    std::span<const std::int32_t> tokens) = 0;

  // Moments and step count, self-describing with checksum (inner_state.h); restore refuses another
  // model's.
  [[nodiscard]] virtual std::vector<std::byte> inner_state(config::Precision precision) const = 0;
  [[nodiscard]] virtual Status restore_inner_state(std::span<const std::byte> bytes) = 0;

  // Continues the prompt by n tokens; temperature 0 takes the likeliest.
  [[nodiscard]] virtual Result<std::vector<std::int32_t>> sample(
      std::span<const std::int32_t> prompt, std::int64_t n, double temperature,
      std::uint64_t seed) = 0;

 private:
  [[nodiscard]] std::vector<TensorRange> ranges_of(std::span<const std::int32_t> indices) const {
    std::vector<TensorRange> ranges;
    for (const std::int32_t index : indices) {
      const TensorShape& tensor = tensors().at(static_cast<std::size_t>(index));
      ranges.push_back({tensor.offset, tensor.elements});
    }
    return ranges;
  }
};

}  // namespace archipelago::learner
