#pragma once
// Parameters, gradients and AdamW's moments as four flat fp32 buffers in the order of the tensors.
// A tensor is a range, so snapshots and overwrites are plain copies, and clipping with AdamW is two
// sweeps over memory. No libtorch.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "learner/tensor_shape.h"

namespace archipelago::learner {

// n floats, 64-byte aligned, zeroed.
class FloatBuffer {
 public:
  explicit FloatBuffer(std::int64_t n);
  [[nodiscard]] float* data() { return data_.get(); }
  [[nodiscard]] const float* data() const { return data_.get(); }
  [[nodiscard]] std::span<float> span() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const float> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float, Free> data_;
  std::size_t size_ = 0;
};

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // global norm; 0 = off
};

class FlatState {
 public:
  // Calls body(begin, end) over [0, n), possibly on several threads; the split must not matter to
  // the body.
  using Parallel = std::function<void(std::int64_t n,
                                      const std::function<void(std::int64_t, std::int64_t)>& body)>;

  FlatState(std::vector<TensorShape> tensors, AdamWSettings settings);

  [[nodiscard]] const std::vector<TensorShape>& tensors() const { return tensors_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] FloatBuffer& weights() { return weights_; }
  [[nodiscard]] const FloatBuffer& weights() const { return weights_; }
  [[nodiscard]] FloatBuffer& gradients() { return gradients_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  void initialise(std::uint64_t seed);
  void read(std::span<const std::int32_t> indices, std::span<float> out) const;
  void write(std::span<const std::int32_t> indices, std::span<const float> in);

  struct Applied {
    double gradient_norm = 0;  // of scale x gradient, before clipping
    bool skipped = false;
  };
  // Clips and applies AdamW with the gradients times `scale` (1/accumulation). A gradient that is
  // not finite changes nothing. Bit-identical for any number of threads.
  Applied apply(double learning_rate, double scale, const Parallel& parallel);

  [[nodiscard]] std::vector<std::byte> inner_state(config::Precision precision) const;
  [[nodiscard]] Status restore_inner_state(std::span<const std::byte> bytes);
  void reset_inner_state();

 private:
  std::vector<TensorShape> tensors_;
  AdamWSettings settings_;
  std::int64_t size_;
  FloatBuffer weights_, gradients_, mean_, square_;
  std::int64_t steps_ = 0;
};

void serially(std::int64_t n, const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace archipelago::learner
