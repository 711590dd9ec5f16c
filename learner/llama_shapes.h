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

// Radians a position of each pair of a head's elements (head_size / 2 of them), stretched as
// rope.scaling says (llama3: the published rule of Llama 3.1, a ramp between the two borders).
[[nodiscard]] std::vector<double> rope_frequencies(const config::RopeSpec& rope,
                                                   std::int64_t head_size);

}  // namespace archipelago::learner
