#include "learner/hf_config.h"

#include <cmath>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/config/parse.h"

namespace archipelago::learner {
namespace {

using Json = nlohmann::json;
using config::AttentionBias;
using config::RopeScaling;

const char* family_of(const config::ModelSpec& model) {
  if (model.qk_norm) return "qwen3";
  return model.attention_bias == AttentionBias::kQkv ? "qwen2" : "llama";
}

nlohmann::ordered_json rope_scaling_json(const config::RopeSpec& rope) {
  if (rope.scaling == RopeScaling::kNone) return nullptr;
  nlohmann::ordered_json out{{"rope_type", config::to_string(rope.scaling)},
                             {"factor", rope.factor}};
  if (rope.scaling == RopeScaling::kLlama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
    out["original_max_position_embeddings"] = rope.original_context_length;
  }
  return out;
}

// One JSON object with the errors of reading it; `where` is its name in messages.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[nodiscard]] bool has(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }
  [[nodiscard]] const Json& at(const char* key) const { return object_.at(key); }

  Status integer(const char* key, std::int64_t max, std::int64_t* out) const {
    if (!has(key)) return fail(ErrorKind::kInvalid, where_ + " lacks " + key);
    const Json& value = object_.at(key);
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
        value.get<std::int64_t>() > max)
      return refuse(key, "allowed: 1 to " + std::to_string(max));
    *out = value.get<std::int64_t>();
    return {};
  }
  // Above `over`, at most `most`; absent: *out stays.
  Status number(const char* key, double over, double most, double* out) const {
    if (!has(key)) return {};
    const Json& value = object_.at(key);
    if (!value.is_number() || !(value.get<double>() > over) || value.get<double>() > most)
      return refuse(
          key, "allowed: a number above " + Json(over).dump() + ", at most " + Json(most).dump());
    *out = value.get<double>();
    return {};
  }
  Status boolean(const char* key, bool* out) const {
    if (!has(key)) return {};
    if (!object_.at(key).is_boolean()) return refuse(key, "allowed: true, false");
    *out = object_.at(key).get<bool>();
    return {};
  }
  Status only(const char* key, const Json& value) const {
    if (!has(key) || object_.at(key) == value) return {};
    return fail(ErrorKind::kUnsupported, where_ + ": " + key + " is " + object_.at(key).dump() +
                                             ", supported: " + value.dump());
  }
  [[nodiscard]] tl::unexpected<Error> refuse(const char* key, const std::string& allowed) const {
    return fail(ErrorKind::kInvalid,
                where_ + ": " + key + " is " + object_.at(key).dump() + ", " + allowed);
  }

 private:
  const Json& object_;
  std::string where_;
};

Status read_scaling(const Reader& in, config::RopeSpec* rope) {
  const char* key = in.has("rope_type") ? "rope_type" : "type";
  if (!in.has(key)) return {};
  const Json& type = in.at(key);
  if (type == "default") return {};
  if (type != "linear" && type != "llama3")
    return fail(ErrorKind::kUnsupported, "config.json: rope scaling of type " + type.dump() +
                                             ", supported: default, linear, llama3");
  rope->scaling = type == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  if (!in.has("factor")) return fail(ErrorKind::kInvalid, "config.json: rope scaling lacks factor");
  constexpr double kMost = 1e6;
  ARCH_TRY_VOID(in.number("factor", std::nextafter(1.0, 0.0), kMost, &rope->factor));
  if (rope->scaling == RopeScaling::kLinear) return {};
  for (const char* needed : {"low_freq_factor", "high_freq_factor"})
    if (!in.has(needed))
      return fail(ErrorKind::kInvalid, std::string("config.json: rope scaling lacks ") + needed);
  ARCH_TRY_VOID(in.number("low_freq_factor", 0, kMost, &rope->low_freq_factor));
  ARCH_TRY_VOID(in.number("high_freq_factor", 0, kMost, &rope->high_freq_factor));
  ARCH_TRY_VOID(
      in.integer("original_max_position_embeddings", 1 << 24, &rope->original_context_length));
  if (rope->low_freq_factor >= rope->high_freq_factor)
    return in.refuse("low_freq_factor", "allowed: less than high_freq_factor");
  return {};
}

// Newer files have rope_parameters with all of it, older ones rope_theta and rope_scaling.
Status read_rope(const Json& config, config::RopeSpec* rope) {
  const Reader top(config, "config.json");
  ARCH_TRY_VOID(top.number("rope_theta", 1, 1e9, &rope->theta));
  ARCH_TRY_VOID(top.only("partial_rotary_factor", 1.0));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!top.has(key)) continue;
    if (!top.at(key).is_object()) return top.refuse(key, "allowed: an object");
    const Reader in(top.at(key), std::string("config.json: ") + key);
    ARCH_TRY_VOID(in.number("rope_theta", 1, 1e9, &rope->theta));
    ARCH_TRY_VOID(in.only("partial_rotary_factor", 1.0));
    ARCH_TRY_VOID(read_scaling(in, rope));
  }
  return {};
}

// Windows that look at less than the whole context.
Status refuse_windows(const Reader& in, const std::string& family) {
  if (family == "mistral") return in.only("sliding_window", nullptr);
  ARCH_TRY_VOID(in.only("use_sliding_window", false));
  if (!in.has("layer_types")) return {};
  if (!in.at("layer_types").is_array()) return in.refuse("layer_types", "allowed: a list");
  for (const Json& type : in.at("layer_types"))
    if (type != "full_attention")
      return fail(ErrorKind::kUnsupported, "config.json: layer_types has " + type.dump() +
                                               ", supported: \"full_attention\"");
  return {};
}

Status read_attention(const Json& config, const std::string& family, config::ModelSpec* model) {
  const Reader in(config, "config.json");
  if (family == "mistral" && !config.contains("sliding_window"))
    return fail(ErrorKind::kUnsupported,
                "config.json lacks sliding_window, which then is 4096, supported: null");
  ARCH_TRY_VOID(refuse_windows(in, family));
  bool biased = false;
  ARCH_TRY_VOID(in.boolean("attention_bias", &biased));
  model->attention_bias = biased ? AttentionBias::kAll : AttentionBias::kNone;
  if (family == "qwen2") model->attention_bias = AttentionBias::kQkv;
  model->qk_norm = family == "qwen3";
  if (in.has("head_dim")) ARCH_TRY_VOID(in.integer("head_dim", 65536, &model->head_dim));
  if (model->head_dim == 0 && family == "qwen3") model->head_dim = 128;  // its default
  if (model->heads % model->kv_heads != 0)
    return in.refuse("num_key_value_heads", "allowed: a divisor of num_attention_heads");
  if (model->head_dim % 2 != 0) return in.refuse("head_dim", "allowed: an even number");
  if (model->head_dim == 0 && model->hidden_size % (2 * model->heads) != 0)
    return in.refuse("num_attention_heads", "allowed: hidden_size an even multiple of it");
  // One way to say the same, so that specs can be compared.
  if (model->head_dim * model->heads == model->hidden_size) model->head_dim = 0;
  return {};
}

Status refuse_unknown(const Reader& in) {
  ARCH_TRY_VOID(in.only("hidden_act", "silu"));
  ARCH_TRY_VOID(in.only("mlp_bias", false));
  ARCH_TRY_VOID(in.only("attention_dropout", 0.0));
  ARCH_TRY_VOID(in.only("quantization_config", nullptr));
  return {};
}

}  // namespace

std::string hf_config_json(const config::ModelSpec& model) {
  const std::string family = family_of(model);
  const std::string type = family == "llama"   ? "LlamaForCausalLM"
                           : family == "qwen2" ? "Qwen2ForCausalLM"
                                               : "Qwen3ForCausalLM";
  const nlohmann::ordered_json config = {
      {"architectures", {type}},
      {"model_type", family},
      {"hidden_act", "silu"},
      {"hidden_size", model.hidden_size},
      {"head_dim", model.head_size()},
      {"intermediate_size", model.intermediate_size},
      {"max_position_embeddings", model.context_length},
      {"num_attention_heads", model.heads},
      {"num_hidden_layers", model.layers},
      {"num_key_value_heads", model.kv_heads},
      {"rms_norm_eps", model.rms_norm_eps},
      {"rope_theta", model.rope.theta},
      {"rope_scaling", rope_scaling_json(model.rope)},
      {"attention_bias", model.attention_bias == AttentionBias::kAll},
      {"mlp_bias", false},
      {"tie_word_embeddings", model.tie_embeddings},
      {"torch_dtype", "float32"},
      {"vocab_size", model.vocab_size},
  };
  return config.dump(2) + "\n";
}

Result<config::ModelSpec> parse_hf_config(const std::string& text) {
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) return fail(ErrorKind::kInvalid, "config.json is not a JSON object");
  const Reader in(config, "config.json");
  const std::string family = in.has("model_type") && in.at("model_type").is_string()
                                 ? in.at("model_type").get<std::string>()
                                 : "llama";
  if (family != "llama" && family != "mistral" && family != "qwen2" && family != "qwen3")
    return fail(ErrorKind::kUnsupported, "config.json: model_type is \"" + family +
                                             "\", supported: llama, mistral, qwen2, qwen3");
  ARCH_TRY_VOID(refuse_unknown(in));
  config::ModelSpec model;
  ARCH_TRY_VOID(in.integer("hidden_size", 65536, &model.hidden_size));
  ARCH_TRY_VOID(in.integer("intermediate_size", 1 << 20, &model.intermediate_size));
  ARCH_TRY_VOID(in.integer("max_position_embeddings", 1 << 24, &model.context_length));
  ARCH_TRY_VOID(in.integer("num_attention_heads", 1024, &model.heads));
  ARCH_TRY_VOID(in.integer("num_hidden_layers", 1024, &model.layers));
  model.kv_heads = model.heads;
  if (in.has("num_key_value_heads"))
    ARCH_TRY_VOID(in.integer("num_key_value_heads", 1024, &model.kv_heads));
  ARCH_TRY_VOID(in.integer("vocab_size", 1 << 24, &model.vocab_size));
  model.rms_norm_eps = 1e-6;  // where the key is absent
  ARCH_TRY_VOID(in.number("rms_norm_eps", 0, 0.1, &model.rms_norm_eps));
  model.tie_embeddings = false;
  ARCH_TRY_VOID(in.boolean("tie_word_embeddings", &model.tie_embeddings));
  ARCH_TRY_VOID(read_attention(config, family, &model));
  ARCH_TRY_VOID(read_rope(config, &model.rope));
  return model;
}

namespace {

// spec.model's fields that make it the model that it is, by their names in the resource.
nlohmann::ordered_json fields_of(const config::ModelSpec& model) {
  nlohmann::ordered_json out{{"hiddenSize", model.hidden_size},
                             {"layers", model.layers},
                             {"heads", model.heads},
                             {"kvHeads", model.kv_heads},
                             {"intermediateSize", model.intermediate_size},
                             {"vocabSize", model.vocab_size},
                             {"contextLength", model.context_length},
                             {"tieEmbeddings", model.tie_embeddings},
                             {"headDim", model.head_size()},
                             {"rmsNormEps", model.rms_norm_eps},
                             {"attentionBias", config::to_string(model.attention_bias)},
                             {"qkNorm", model.qk_norm},
                             {"rope.theta", model.rope.theta},
                             {"rope.scaling", config::to_string(model.rope.scaling)}};
  if (model.rope.scaling == RopeScaling::kNone) return out;
  out["rope.factor"] = model.rope.factor;
  if (model.rope.scaling == RopeScaling::kLinear) return out;
  out["rope.lowFreqFactor"] = model.rope.low_freq_factor;
  out["rope.highFreqFactor"] = model.rope.high_freq_factor;
  out["rope.originalContextLength"] = model.rope.original_context_length;
  return out;
}

}  // namespace

Status same_model(const config::ModelSpec& spec, const config::ModelSpec& stored) {
  const auto mine = fields_of(spec);
  const auto theirs = fields_of(stored);
  for (const auto& [name, value] : theirs.items()) {
    if (name == "contextLength") {
      if (spec.context_length > stored.context_length)
        return fail(ErrorKind::kInvalid, "spec.model.contextLength is " + mine[name].dump() +
                                             ", allowed: at most max_position_embeddings " +
                                             value.dump() + " of config.json");
      continue;
    }
    if (mine.contains(name) && mine[name] == value) continue;
    return fail(ErrorKind::kInvalid,
                "spec.model." + name + " is " +
                    (mine.contains(name) ? mine[name].dump() : std::string("not given")) +
                    ", config.json says " + value.dump());
  }
  return {};
}

std::string model_yaml(const config::ModelSpec& model) {
  const auto fields = fields_of(model);
  std::string out = "model:\n";
  std::string rope;
  constexpr std::string_view kRope = "rope.";
  for (const auto& [name, value] : fields.items()) {
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    if (name.starts_with(kRope)) {
      rope += (rope.empty() ? "" : ", ") + name.substr(kRope.size()) + ": " + word;
    } else {
      out += "  " + name + ": " + word + "\n";
    }
  }
  return out + "  rope: {" + rope + "}\n";
}

}  // namespace archipelago::learner
