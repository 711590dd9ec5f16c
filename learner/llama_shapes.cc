#include "learner/llama_shapes.h"

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"

namespace archipelago::learner {

std::vector<TensorShape> llama_shapes(const config::ModelSpec& model) {
  std::vector<TensorShape> out;
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t head = model.head_size();
  constexpr double kStd = 0.02;
  const double residual_std = kStd / std::sqrt(2.0 * static_cast<double>(model.layers));
  std::int64_t offset = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, double init_std,
                       bool embedding) {
    TensorShape tensor;
    tensor.name = name;
    tensor.elements = 1;
    for (const std::int64_t dim : shape) tensor.elements *= dim;
    tensor.decays = shape.size() > 1 && !embedding;
    tensor.embedding = embedding;
    tensor.hidden_matrix = shape.size() == 2 && name.starts_with("model.layers.");
    tensor.init_std = init_std;
    tensor.init_value = name.ends_with(".bias") ? 0.0F : 1.0F;
    tensor.shape = std::move(shape);
    tensor.offset = offset;
    offset += tensor.elements;
    out.push_back(std::move(tensor));
  };
  add("model.embed_tokens.weight", {model.vocab_size, hidden}, kStd, true);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "self_attn.q_proj.weight", {model.heads * head, hidden}, kStd, false);
    add(layer + "self_attn.k_proj.weight", {model.kv_heads * head, hidden}, kStd, false);
    add(layer + "self_attn.v_proj.weight", {model.kv_heads * head, hidden}, kStd, false);
    if (model.attention_bias != config::AttentionBias::kNone) {
      add(layer + "self_attn.q_proj.bias", {model.heads * head}, 0, false);
      add(layer + "self_attn.k_proj.bias", {model.kv_heads * head}, 0, false);
      add(layer + "self_attn.v_proj.bias", {model.kv_heads * head}, 0, false);
    }
    add(layer + "self_attn.o_proj.weight", {hidden, model.heads * head}, residual_std, false);
    if (model.attention_bias == config::AttentionBias::kAll)
      add(layer + "self_attn.o_proj.bias", {hidden}, 0, false);
    if (model.qk_norm) {
      add(layer + "self_attn.q_norm.weight", {head}, 0, false);
      add(layer + "self_attn.k_norm.weight", {head}, 0, false);
    }
    add(layer + "mlp.gate_proj.weight", {model.intermediate_size, hidden}, kStd, false);
    add(layer + "mlp.up_proj.weight", {model.intermediate_size, hidden}, kStd, false);
    add(layer + "mlp.down_proj.weight", {hidden, model.intermediate_size}, residual_std, false);
    add(layer + "input_layernorm.weight", {hidden}, 0, false);
    add(layer + "post_attention_layernorm.weight", {hidden}, 0, false);
  }
  add("model.norm.weight", {hidden}, 0, false);
  if (!model.tie_embeddings) add("lm_head.weight", {model.vocab_size, hidden}, kStd, false);
  return out;
}

void initialise(const TensorShape& tensor, std::uint64_t seed, std::int64_t index, float* out) {
  if (tensor.init_std == 0) {
    std::fill_n(out, tensor.elements, tensor.init_value);
    return;
  }
  Rng rng(mix64(mix64(seed) + static_cast<std::uint64_t>(index)));
  // Both values of each Box-Muller pair are used: half the logarithms.
  for (std::int64_t i = 0; i < tensor.elements; i += 2) {
    const double radius = tensor.init_std * std::sqrt(-2.0 * std::log(1.0 - rng.uniform()));
    const double angle = 6.283185307179586 * rng.uniform();
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < tensor.elements) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

std::vector<double> rope_frequencies(const config::RopeSpec& rope, std::int64_t head_size) {
  constexpr double kTwoPi = 6.283185307179586;
  const std::int64_t half = head_size / 2;
  std::vector<double> out;
  for (std::int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(half));
    if (rope.scaling == config::RopeScaling::kLinear) {
      frequency /= rope.factor;
    } else if (rope.scaling == config::RopeScaling::kLlama3) {
      const double waves =  // of this frequency in the original context
          static_cast<double>(rope.original_context_length) * frequency / kTwoPi;
      const double kept = std::clamp(
          (waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
          1.0);
      frequency *= kept + (1 - kept) / rope.factor;
    }
    out.push_back(frequency);
  }
  return out;
}

}  // namespace archipelago::learner
