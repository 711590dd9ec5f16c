#pragma once
// Parameters, gradients and the inner optimizer's state as flat fp32 buffers in the order of the
// tensors: AdamW's two moments of every element, or, with Muon, one momentum of the hidden matrices
// and AdamW's two of the rest.
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
#include "learner/muon.h"
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

struct OptimizerSettings {
  bool muon = false;  // on the hidden matrices; AdamW, with the following, on the rest
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

  FlatState(std::vector<TensorShape> tensors, OptimizerSettings settings,
            Orthogonalise orthogonalise = newton_schulz);

  [[nodiscard]] const std::vector<TensorShape>& tensors() const { return tensors_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] FloatBuffer& weights() { return weights_; }
  [[nodiscard]] const FloatBuffer& weights() const { return weights_; }
  [[nodiscard]] FloatBuffer& gradients() { return gradients_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  void initialise(std::uint64_t seed);
  // As Trainer::read and write.
  void read(std::span<const TensorRange> ranges, std::span<float> out) const;
  void write(std::span<const TensorRange> ranges, std::span<const float> in);

  struct Applied {
    double gradient_norm = 0;  // of scale x gradient, before clipping
    bool skipped = false;
  };
  // Clips and applies the optimizer with the gradients times `scale` (1/accumulation). A gradient
  // that is not finite changes nothing. Bit-identical for any number of threads, as far as
  // `orthogonalise` is.
  Applied apply(double learning_rate, double scale, const Parallel& parallel);

  // kCorrupt: damaged, or of another model or optimizer; then nothing has changed.
  [[nodiscard]] std::vector<std::byte> inner_state(config::Precision precision) const;
  [[nodiscard]] Status restore_inner_state(std::span<const std::byte> bytes);
  void reset_inner_state();

 private:
  [[nodiscard]] bool is_muons(const TensorShape& tensor) const {
    return settings_.muon && tensor.hidden_matrix;
  }
  void apply_adamw(double learning_rate, float grad_scale, const Parallel& parallel);
  void apply_muon(double learning_rate, float grad_scale, const Parallel& parallel);

  std::vector<TensorShape> tensors_;
  OptimizerSettings settings_;
  Orthogonalise orthogonalise_;
  std::int64_t size_;
  // Second moments lie one after another without Muon's tensors: offset of each tensor's.
  std::int64_t squares_ = 0;  // before the offsets, whose making counts them
  std::vector<std::int64_t> square_offsets_;
  FloatBuffer weights_, gradients_, mean_, square_;
  FloatBuffer direction_;  // of the largest of Muon's tensors
  std::int64_t steps_ = 0;
};

void serially(std::int64_t n, const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace archipelago::learner
