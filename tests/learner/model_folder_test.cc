// Models in Hugging Face's form: what config.json may say, and weights from folders that are whole
// or broken.
#include "learner/model_folder.h"

#include <fstream>
#include <limits>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/config/parse.h"
#include "common/wire/safetensors.h"
#include "learner/fake_trainer.h"
#include "learner/hf_config.h"
#include "learner/llama_shapes.h"

namespace archipelago::learner {
namespace {

using Json = nlohmann::json;
using config::AttentionBias;

Json llama() {
  return {{"model_type", "llama"},         {"hidden_size", 64},        {"intermediate_size", 96},
          {"max_position_embeddings", 32}, {"num_attention_heads", 4}, {"num_hidden_layers", 2},
          {"num_key_value_heads", 2},      {"vocab_size", 100},        {"rms_norm_eps", 1e-5}};
}

Json with(Json config, const Json& more) {
  config.update(more);
  return config;
}

std::string refusal(const Json& config) {
  const auto model = parse_hf_config(config.dump());
  return model ? "" : model.error().message;
}

config::ModelSpec tiny(bool tied) {
  config::ModelSpec model;
  model.hidden_size = 8;
  model.layers = 1;
  model.heads = 2;
  model.kv_heads = 1;
  model.intermediate_size = 12;
  model.vocab_size = 10;
  model.tie_embeddings = tied;
  return model;
}

FakeTrainer trainer_of(const std::vector<TensorShape>& shapes) {
  FakeTrainerOptions options;
  options.tensors = shapes;
  return FakeTrainer(options);
}

// A folder with a model whose tensor i is full of i + 1.
struct Folder {
  explicit Folder(bool tied) : shapes(llama_shapes(tiny(tied))), values(shapes.size()) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      values[i].assign(static_cast<std::size_t>(shapes[i].elements), static_cast<float>(i + 1));
      tensors.push_back({shapes[i].name, shapes[i].shape, values[i]});
    }
  }
  void write(const std::string& name, std::size_t first, std::size_t count) const {
    REQUIRE(wire::write_safetensors(dir.path() / name, std::span(tensors).subspan(first, count)));
  }
  void write() const { write("model.safetensors", 0, tensors.size()); }
  void text(const std::string& name, const std::string& what) const {
    std::ofstream(dir.path() / name) << what;
  }
  std::string load() const {
    FakeTrainer trainer = trainer_of(shapes);
    const Status loaded = load_weights(dir.path(), trainer);
    if (!loaded) return loaded.error().message;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      std::vector<float> got(values[i].size());
      trainer.read(std::span(&index, 1), got);
      CHECK(got == values[i]);
    }
    return "";
  }
  TempDir dir;
  std::vector<TensorShape> shapes;
  std::vector<std::vector<float>> values;
  std::vector<wire::SafeTensorView> tensors;
};

}  // namespace

TEST_CASE("config.json of each family comes back") {
  config::ModelSpec model;
  model.tie_embeddings = false;
  SECTION("Llama") { model.kv_heads = 2; }
  SECTION("Llama 3.1") {
    model.attention_bias = AttentionBias::kAll;
    model.rope = {5e5, config::RopeScaling::kLlama3, 32, 2, 8, 4096};
  }
  SECTION("linear") {
    model.rope.scaling = config::RopeScaling::kLinear;
    model.rope.factor = 2.5;
  }
  SECTION("Qwen2") { model.attention_bias = AttentionBias::kQkv; }
  SECTION("Qwen3") {
    model.qk_norm = true;
    model.head_dim = 128;
    model.rms_norm_eps = 1e-6;
  }
  const auto back = parse_hf_config(hf_config_json(model));
  if (!back) FAIL(back.error().message);
  CHECK(*back == model);
  CHECK(same_model(model, *back));
}

TEST_CASE("absent keys of config.json have transformers' defaults") {
  Json config = llama();
  config.erase("rms_norm_eps");
  config.erase("num_key_value_heads");
  const auto model = parse_hf_config(config.dump());
  REQUIRE(model);
  CHECK(model->rms_norm_eps == 1e-6);
  CHECK(model->kv_heads == 4);
  CHECK_FALSE(model->tie_embeddings);
  CHECK(parse_hf_config(with(llama(), {{"model_type", "qwen3"}}).dump())->head_dim == 128);
  CHECK(parse_hf_config(with(llama(), {{"head_dim", 16}}).dump())->head_dim == 0);  // 64 / 4
}

TEST_CASE("rope is read in the older and the newer form") {
  const Json scaling{{"rope_type", "llama3"},
                     {"factor", 32},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4},
                     {"original_max_position_embeddings", 8192}};
  const auto older =
      parse_hf_config(with(llama(), {{"rope_theta", 5e5}, {"rope_scaling", scaling}}).dump());
  const auto newer = parse_hf_config(
      with(llama(), {{"rope_parameters", with(scaling, {{"rope_theta", 5e5}})}}).dump());
  REQUIRE(older);
  REQUIRE(newer);
  CHECK(*older == *newer);
  CHECK(older->rope.theta == 5e5);
  CHECK(older->rope.factor == 32);
  const auto linear = parse_hf_config(
      with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}).dump());
  REQUIRE(linear);
  CHECK(linear->rope.scaling == config::RopeScaling::kLinear);
}

TEST_CASE("what the decoder does not compute is refused by name") {
  const auto [more, message] = GENERATE(table<Json, std::string>({
      {{{"model_type", "gemma"}},
       "config.json: model_type is \"gemma\", supported: llama, mistral, qwen2, qwen3"},
      {{{"hidden_act", "gelu"}}, "config.json: hidden_act is \"gelu\", supported: \"silu\""},
      {{{"mlp_bias", true}}, "config.json: mlp_bias is true, supported: false"},
      {{{"attention_dropout", 0.1}}, "config.json: attention_dropout is 0.1, supported: 0.0"},
      {{{"quantization_config", {{"bits", 4}}}},
       "config.json: quantization_config is {\"bits\":4}, supported: null"},
      {{{"model_type", "qwen2"}, {"use_sliding_window", true}},
       "config.json: use_sliding_window is true, supported: false"},
      {{{"model_type", "qwen3"}, {"layer_types", {"full_attention", "sliding_attention"}}},
       "config.json: layer_types has \"sliding_attention\", supported: \"full_attention\""},
      {{{"model_type", "mistral"}},
       "config.json lacks sliding_window, which then is 4096, supported: null"},
      {{{"model_type", "mistral"}, {"sliding_window", 4096}},
       "config.json: sliding_window is 4096, supported: null"},
      {{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}}},
       "config.json: rope scaling of type \"yarn\", supported: default, linear, llama3"},
      {{{"rope_scaling", {{"rope_type", "linear"}}}}, "config.json: rope scaling lacks factor"},
      {{{"rope_scaling", "dynamic"}},
       "config.json: rope_scaling is \"dynamic\", allowed: an object"},
      {{{"partial_rotary_factor", 0.5}},
       "config.json: partial_rotary_factor is 0.5, supported: 1.0"},
      {{{"hidden_size", "64"}}, "config.json: hidden_size is \"64\", allowed: 1 to 65536"},
      {{{"hidden_size", 0}}, "config.json: hidden_size is 0, allowed: 1 to 65536"},
      {{{"num_attention_heads", 3}, {"num_key_value_heads", 1}},
       "config.json: num_attention_heads is 3, allowed: hidden_size an even multiple of it"},
      {{{"num_key_value_heads", 3}},
       "config.json: num_key_value_heads is 3, allowed: a divisor of num_attention_heads"},
      {{{"head_dim", 7}}, "config.json: head_dim is 7, allowed: an even number"},
      {{{"rms_norm_eps", -1}},
       "config.json: rms_norm_eps is -1, allowed: a number above 0.0, at most 0.1"},
      {{{"tie_word_embeddings", "yes"}},
       "config.json: tie_word_embeddings is \"yes\", allowed: true, false"},
  }));
  CHECK(refusal(with(llama(), more)) == message);
}

TEST_CASE("a config.json that is none is refused") {
  CHECK_FALSE(parse_hf_config("[]"));
  CHECK_FALSE(parse_hf_config("{\"hidden_size\": 64"));
  CHECK(refusal(Json::object()) == "config.json lacks hidden_size");
}

TEST_CASE("a run must describe the model whose weights it takes") {
  const auto stored = parse_hf_config(llama().dump());
  REQUIRE(stored);
  config::ModelSpec spec = *stored;
  spec.context_length = 16;  // a shorter one is allowed
  spec.init_seed = 5;
  CHECK(same_model(spec, *stored));
  spec.context_length = 33;
  CHECK(same_model(spec, *stored).error().message ==
        "spec.model.contextLength is 33, allowed: at most max_position_embeddings 32 of "
        "config.json");
  spec = *stored;
  spec.rope.theta = 5e5;
  CHECK(same_model(spec, *stored).error().message ==
        "spec.model.rope.theta is 500000.0, config.json says 10000.0");
  spec = *stored;
  spec.tie_embeddings = true;
  CHECK_FALSE(same_model(spec, *stored));
}

TEST_CASE("the printed model part of a spec is that model") {
  const auto stored =
      parse_hf_config(with(llama(), {{"rope_theta", 5e5}, {"attention_bias", true}}).dump());
  REQUIRE(stored);
  const std::string yaml =
      "apiVersion: archipelago.training/v1alpha1\nkind: DecoupledTraining\nmetadata: {name: a}\n"
      "spec:\n  data: {train: {path: t, format: tokens-u16}}\n"
      "  sync: {fragments: 4, interval: 4}\n  datacenters: [{name: a, learnerUnits: 1}]\n";
  std::string model = model_yaml(*stored);
  for (std::size_t at = 0;
       (at = model.find('\n', at)) != std::string::npos && at + 1 < model.size();)
    model.insert(++at, "  ");
  const auto training = config::parse_training(yaml + "  " + model);
  if (!training) FAIL(config::format_errors(training.error()));
  CHECK(same_model(training->spec.model, *stored));
  CHECK(training->spec.model.attention_bias == AttentionBias::kAll);
}

TEST_CASE("weights load from one file and from shards") {
  const bool tied = GENERATE(true, false);
  const Folder folder(tied);
  SECTION("one file") { folder.write(); }
  SECTION("shards") {
    folder.write("part-1.safetensors", 0, 4);
    folder.write("part-2.safetensors", 4, folder.tensors.size() - 4);
    Json map;
    for (std::size_t i = 0; i < folder.tensors.size(); ++i)
      map[folder.tensors[i].name] = i < 4 ? "part-1.safetensors" : "part-2.safetensors";
    folder.text("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  }
  CHECK(folder.load().empty());
}

TEST_CASE("a head beside tied embeddings and rotary tables are left alone") {
  Folder folder(true);
  const std::vector<float> spare(80, 1.0F);
  folder.tensors.push_back({"lm_head.weight", {10, 8}, spare});
  folder.tensors.push_back(
      {"model.layers.0.self_attn.rotary_emb.inv_freq", {2}, std::span(spare).first(2)});
  folder.write();
  CHECK(folder.load().empty());
}

TEST_CASE("a broken model folder is refused, naming the tensor") {
  Folder folder(false);
  const auto message = [&] {
    folder.write();
    return folder.load();
  };
  SECTION("no folder") {
    FakeTrainer trainer = trainer_of(folder.shapes);
    CHECK(load_weights("/nowhere/model", trainer).error().message ==
          "/nowhere/model is not a folder");
    CHECK(read_model_config("/nowhere/model").error().kind == ErrorKind::kNotFound);
  }
  SECTION("no files") { CHECK_FALSE(folder.load().empty()); }
  SECTION("missing") {
    folder.tensors.pop_back();
    CHECK(message() == "no file has lm_head.weight (tied embeddings: tieEmbeddings: true)");
  }
  SECTION("another shape") {
    folder.tensors[0].shape = {8, 10};
    CHECK(message() ==
          "model.safetensors: model.embed_tokens.weight has the shape [8, 10], the model has "
          "[10, 8]");
  }
  SECTION("not finite") {
    folder.values[1][3] = std::numeric_limits<float>::infinity();
    CHECK(message() ==
          "model.safetensors: model.layers.0.self_attn.q_proj.weight holds a value that is not "
          "finite");
  }
  SECTION("more than the model has") {
    folder.tensors.push_back(
        {"model.layers.1.input_layernorm.weight", {8}, std::span(folder.values[0]).first(8)});
    CHECK(message() ==
          "model.safetensors has model.layers.1.input_layernorm.weight, which the model has not (1 "
          "such tensors)");
  }
  SECTION("truncated") {
    folder.write();
    std::filesystem::resize_file(folder.dir.path() / "model.safetensors", 200);
    CHECK_FALSE(folder.load().empty());
  }
}

TEST_CASE("an index of shards is not trusted") {
  const Folder folder(true);
  folder.write("part.safetensors", 0, folder.tensors.size());
  const auto [index, message] = GENERATE(table<std::string, std::string>({
      {"{", "model.safetensors.index.json has no object weight_map"},
      {R"({"weight_map": []})", "model.safetensors.index.json has no object weight_map"},
      {R"({"weight_map": {"a": 3}})", "model.safetensors.index.json: a has no file"},
      {R"({"weight_map": {"a": "../part.safetensors"}})",
       "model.safetensors.index.json: ../part.safetensors is not the name of a file of its folder"},
      {R"({"weight_map": {"a": "part.safetensors"}})",
       "part.safetensors lacks a, which model.safetensors.index.json says it has"},
      {R"({"weight_map": {}})", "no file has model.embed_tokens.weight"},
  }));
  folder.text("model.safetensors.index.json", index);
  CHECK(folder.load() == message);
}

}  // namespace archipelago::learner
