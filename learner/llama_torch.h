#pragma once
// The decoder as functions over views of a flat buffer. Includes libtorch: only torch_trainer.cc
// and llama_torch.cc may include this.
#include <vector>

#include <torch/torch.h>

#include "common/config/spec.h"
#include "learner/tensor_shape.h"

namespace archipelago::learner {

// Leaves of the graph. q, k, v are one matrix, gate and up another: adjacent in the flat buffer
// (llama_shapes.h).
struct LlamaLayer {
  at::Tensor qkv, o, gate_up, down, input_norm, post_norm;
  at::Tensor qkv_bias, o_bias, q_norm, k_norm;  // undefined where the model has none
};
struct LlamaWeights {
  at::Tensor embed, norm, head;  // head is embed when tied
  std::vector<LlamaLayer> layers;
};

// Views of `flat`; when `gradients` is given the views are leaves whose .grad are views of it, so
// backward accumulates straight into the flat gradient buffer. Both must outlive the result.
[[nodiscard]] LlamaWeights llama_views(const config::ModelSpec& model,
                                       const std::vector<TensorShape>& shapes, float* flat,
                                       float* gradients);

class Llama {
 public:
  Llama(const config::ModelSpec& model, bool bf16);
  // ids: int64 [batch, time], time <= context length; logits [batch·time, vocab] in the compute
  // type.
  [[nodiscard]] at::Tensor logits(const LlamaWeights& weights, const at::Tensor& ids) const;
  // Mean cross entropy, fp32 scalar. targets: int64 [batch·time].
  [[nodiscard]] static at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets);

 private:
  [[nodiscard]] at::Tensor attention(const at::Tensor& x, const LlamaLayer& layer,
                                     std::int64_t batch, std::int64_t time) const;
  [[nodiscard]] at::Tensor normalise_heads(const at::Tensor& qkv, const LlamaLayer& layer) const;
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias = {}) const;

  config::ModelSpec model_;
  bool bf16_;
  at::Tensor cos_, sin_;  // [context, head/2] fp32
};

}  // namespace archipelago::learner
