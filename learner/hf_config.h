#pragma once
// Hugging Face's config.json, out and in: the families that this decoder computes exactly (llama,
// mistral without a sliding window, qwen2, qwen3). What a config.json asks for and the decoder does
// not do is refused by its name, never ignored; a key that is absent has transformers' default.
#include <string>

#include "common/base/result.h"
#include "common/config/spec.h"

namespace archipelago::learner {

// The text that loads in transformers with equal logits. The family is the smallest that has what
// the model has: head norms make it qwen3, biases of q, k and v alone qwen2, else llama.
[[nodiscard]] std::string hf_config_json(const config::ModelSpec& model);

// And back; contextLength is max_position_embeddings. kInvalid: no such model; kUnsupported: a
// model that this decoder does not compute.
[[nodiscard]] Result<config::ModelSpec> parse_hf_config(const std::string& text);

// Whether a run of `spec` may start from weights of `stored`: kInvalid names the first field of
// spec.model that differs. A shorter context is allowed, another source of weights, too.
[[nodiscard]] Status same_model(const config::ModelSpec& spec, const config::ModelSpec& stored);

// The fields of spec.model for that config.json, as YAML.
[[nodiscard]] std::string model_yaml(const config::ModelSpec& model);

}  // namespace archipelago::learner
