#include "learner/llama_shapes.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/base/rng.h"

namespace archipelago::learner {

std::vector<TensorShape> llama_shapes(const config::ModelSpec& model) {
  std::vector<TensorShape> out;
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t head = hidden / model.heads;
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
    add(layer + "self_attn.o_proj.weight", {hidden, model.heads * head}, residual_std, false);
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
    std::fill_n(out, tensor.elements, 1.0F);
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

std::string hf_config_json(const config::ModelSpec& model) {
  const nlohmann::ordered_json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"hidden_size", model.hidden_size},
      {"intermediate_size", model.intermediate_size},
      {"max_position_embeddings", model.context_length},
      {"num_attention_heads", model.heads},
      {"num_hidden_layers", model.layers},
      {"num_key_value_heads", model.kv_heads},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", 10000.0},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"tie_word_embeddings", model.tie_embeddings},
      {"torch_dtype", "float32"},
      {"vocab_size", model.vocab_size},
  };
  return config.dump(2) + "\n";
}

namespace {

Status read_int(const nlohmann::json& config, const char* key, std::int64_t max,
                std::int64_t* out) {
  if (!config.contains(key))
    return fail(ErrorKind::kInvalid, std::string("config.json lacks ") + key);
  const auto& value = config[key];
  if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
      value.get<std::int64_t>() > max)
    return fail(ErrorKind::kInvalid, std::string("config.json: ") + key + " is " + value.dump() +
                                         ", allowed: 1 to " + std::to_string(max));
  *out = value.get<std::int64_t>();
  return {};
}

Status refuse_other(const nlohmann::json& config, const char* key, const nlohmann::json& only) {
  if (!config.contains(key) || config[key].is_null() || config[key] == only) return {};
  return fail(ErrorKind::kUnsupported, std::string("config.json: ") + key + " is " +
                                           config[key].dump() + ", supported: " + only.dump());
}

}  // namespace

Result<config::ModelSpec> parse_hf_config(const std::string& text) {
  const auto config = nlohmann::json::parse(text, nullptr, false);
  if (!config.is_object()) return fail(ErrorKind::kInvalid, "config.json is not a JSON object");
  config::ModelSpec model;
  ARCH_TRY_VOID(refuse_other(config, "model_type", "llama"));
  ARCH_TRY_VOID(refuse_other(config, "hidden_act", "silu"));
  ARCH_TRY_VOID(refuse_other(config, "rms_norm_eps", 1e-5));
  ARCH_TRY_VOID(refuse_other(config, "rope_theta", 10000.0));
  ARCH_TRY_VOID(refuse_other(config, "rope_scaling", nullptr));
  ARCH_TRY_VOID(refuse_other(config, "attention_bias", false));
  ARCH_TRY_VOID(refuse_other(config, "mlp_bias", false));
  ARCH_TRY_VOID(read_int(config, "hidden_size", 1 << 20, &model.hidden_size));
  ARCH_TRY_VOID(read_int(config, "intermediate_size", 1 << 22, &model.intermediate_size));
  ARCH_TRY_VOID(read_int(config, "max_position_embeddings", 1 << 24, &model.context_length));
  ARCH_TRY_VOID(read_int(config, "num_attention_heads", 1 << 12, &model.heads));
  ARCH_TRY_VOID(read_int(config, "num_hidden_layers", 1 << 12, &model.layers));
  model.kv_heads = model.heads;
  if (config.contains("num_key_value_heads"))
    ARCH_TRY_VOID(read_int(config, "num_key_value_heads", 1 << 12, &model.kv_heads));
  ARCH_TRY_VOID(read_int(config, "vocab_size", 1 << 24, &model.vocab_size));
  if (model.hidden_size % (2 * model.heads) != 0 || model.heads % model.kv_heads != 0)
    return fail(ErrorKind::kInvalid,
                "config.json: hidden_size must be an even multiple of num_attention_heads, and "
                "that a multiple of num_key_value_heads");
  const auto tie = config.find("tie_word_embeddings");
  model.tie_embeddings = tie != config.end() && tie->is_boolean() && tie->get<bool>();
  return model;
}

}  // namespace archipelago::learner
