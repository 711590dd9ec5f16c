#pragma once
// The product's Trainer: a Llama-family decoder in libtorch (no libtorch in this header). RMSNorm,
// RoPE in Hugging Face's rotate_half convention, grouped-query attention with or without biases and
// head norms, SwiGLU, embeddings tied or not. Parameters are fp32; with precision bf16 matrix
// multiplies and attention run in bf16 on copies of the weights, residual stream, norms, loss,
// gradients of parameters and AdamW stay fp32 (what autocast does).
#include <memory>

#include "common/config/spec.h"
#include "learner/trainer.h"

namespace archipelago::learner {

// Threads of one process's tensor work. Call once, first thing, before any other use of libtorch.
void set_torch_threads(int threads);

// Between two steps, afterwards: for who trains as several processes did (replay).
void change_torch_threads(int threads);

// Keeps freed activations mapped: without it each step pays page faults for buffers of several MB.
// Call before training.
void tune_allocator();

// kInvalid when the model's sizes don't fit each other; kInternal carries libtorch's own text.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_torch_trainer(const config::ModelSpec& model,
                                                                  const config::InnerSpec& inner);

// For the golden test: loss and logits of one batch [sequences, context + 1], and the gradients as
// the flat buffer.
struct ForwardBackward {
  double loss = 0;
  std::vector<float> logits;     // [sequences · context, vocab]
  std::vector<float> gradients;  // flat
};
[[nodiscard]] Result<ForwardBackward> forward_backward(Trainer& trainer,
                                                       std::span<const std::int32_t> tokens);

}  // namespace archipelago::learner
