#pragma once
// Names, shapes and order of a Llama-family decoder's tensors, as Hugging Face's LlamaForCausalLM
// names them. The order is also the order in the learner's flat parameter buffer: q, k, v of a
// layer are adjacent, and gate and up, so one matrix multiply does them together.
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "learner/tensor_shape.h"

namespace archipelago::learner {

[[nodiscard]] std::vector<TensorShape> llama_shapes(const config::ModelSpec& model);

// The initial value of a tensor: depends on (seed, index of the tensor, element) alone, so it is
// the same everywhere. Linear layers normal(0, 0.02), those that write into the residual stream
// 0.02/sqrt(2·layers), norms 1.
void initialise(const TensorShape& tensor, std::uint64_t seed, std::int64_t index, float* out);

// Hugging Face's config.json for the model, as text.
[[nodiscard]] std::string hf_config_json(const config::ModelSpec& model);
// And back; refuses what this decoder does not do (other norms' eps, RoPE scaling, biases).
[[nodiscard]] Result<config::ModelSpec> parse_hf_config(const std::string& text);

}  // namespace archipelago::learner
