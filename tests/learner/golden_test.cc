// The decoder against stored values of an independent implementation
// (tests/golden/make_llama_fixture.py, fp64).
#include <algorithm>
#include <cmath>
#include <iostream>

#include <catch2/catch.hpp>

#include "common/wire/safetensors.h"
#include "learner/flat_state.h"
#include "learner/hf_config.h"
#include "learner/model_folder.h"
#include "learner/torch_trainer.h"

namespace archipelago::learner {
namespace {

#define REQUIRE_OK(result)                            \
  do {                                                \
    if (!(result)) FAIL((result).error().describe()); \
  } while (false)

config::ModelSpec fixture_model(bool tied) {
  config::ModelSpec model;
  model.hidden_size = 32;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.intermediate_size = 48;
  model.vocab_size = 64;
  model.context_length = 16;
  model.tie_embeddings = tied;
  return model;
}

struct Fixture {
  // A model as transformers saved it (tests/golden/make_hf_fixture.py, fp64), trained at less than
  // its longest context.
  explicit Fixture(const std::string& family, config::InnerSpec inner_spec = {})
      : inner(inner_spec) {
    const std::string folder = ARCHIPELAGO_SOURCE_DIR "/tests/golden/hf/" + family;
    auto config = read_model_config(folder);
    REQUIRE_OK(config);
    model = *config;
    model.context_length = 16;
    REQUIRE_OK(same_model(model, *config));
    open(folder + "/expected.safetensors");
    REQUIRE_OK(load_weights(folder, *trainer));
  }
  explicit Fixture(bool tied, config::InnerSpec inner_spec = {})
      : model(fixture_model(tied)), inner(inner_spec) {
    open(std::string(ARCHIPELAGO_SOURCE_DIR "/tests/golden/llama/") + (tied ? "tied" : "untied") +
         ".safetensors");
    for (std::size_t i = 0; i < trainer->tensors().size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      trainer->write(std::span(&index, 1), get("weight." + trainer->tensors()[i].name));
    }
  }
  void open(const std::string& path) {
    auto opened = wire::SafetensorsFile::open(path);
    REQUIRE_OK(opened);
    file = std::move(*opened);
    auto made = make_torch_trainer(model, inner);
    REQUIRE_OK(made);
    trainer = std::move(*made);
    for (const float token : get("tokens")) tokens.push_back(static_cast<std::int32_t>(token));
  }
  std::vector<float> get(const std::string& name) const {
    auto values = file.read(name);
    REQUIRE_OK(values);
    return *values;
  }
  config::ModelSpec model;
  config::InnerSpec inner;
  wire::SafetensorsFile file;
  std::unique_ptr<Trainer> trainer;
  std::vector<std::int32_t> tokens;
};

double largest(const std::vector<float>& values) {
  double out = 0;
  for (const float value : values) out = std::max(out, std::fabs(static_cast<double>(value)));
  return out;
}

// Largest |a - b| over the largest |b|.
double difference(std::span<const float> a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double out = 0;
  for (std::size_t i = 0; i < b.size(); ++i)
    out = std::max(out, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return out / largest(b);
}

// fp32 rounds to 2^-24. Every number here passes about 20 roundings in sequence (two layers of
// norm, projection, attention, projection, MLP, forward and back), each summing at most 64 terms
// whose errors add like a random walk: 20 · sqrt(64) · 2^-24 = 1e-5 of the largest value.
constexpr double kFp32Bound = 20.0 * 8.0 / 16777216.0;

}  // namespace

namespace {

void agrees(Fixture& f, const std::string& name) {
  CAPTURE(name);
  auto result = forward_backward(*f.trainer, f.tokens);
  REQUIRE_OK(result);
  const double logits = difference(result->logits, f.get("logits"));
  const double loss = std::fabs(result->loss - static_cast<double>(f.get("loss")[0]));
  CHECK(logits < kFp32Bound);
  CHECK(loss < kFp32Bound * static_cast<double>(f.get("loss")[0]));
  double worst = 0;
  for (const TensorShape& tensor : f.trainer->tensors()) {
    CAPTURE(tensor.name);
    const auto mine = std::span(result->gradients)
                          .subspan(static_cast<std::size_t>(tensor.offset),
                                   static_cast<std::size_t>(tensor.elements));
    const double apart = difference(mine, f.get("gradient." + tensor.name));
    CHECK(apart < kFp32Bound);
    worst = std::max(worst, apart);
  }
  std::cout << name << ": largest difference, relative to the tensor's largest value: logits "
            << logits << ", loss " << loss << ", gradients " << worst << "\n";
}

}  // namespace

TEST_CASE("logits, loss and every gradient agree with the independent implementation") {
  const bool tied = GENERATE(true, false);
  Fixture f(tied);
  agrees(f, tied ? "tied" : "untied");
}

TEST_CASE("models that transformers saved compute what it computes") {
  const std::string family = GENERATE("llama3", "mistral", "qwen2", "qwen3");
  Fixture f(family);
  agrees(f, family);
  // What we say of the model is the model: the same family computes, and the same sizes.
  const auto again = parse_hf_config(hf_config_json(f.model));
  REQUIRE_OK(again);
  auto expected = f.model;
  expected.init_seed = again->init_seed;
  CHECK(*again == expected);
}

TEST_CASE("a model with biases and head norms trains in bf16") {
  config::InnerSpec inner;
  inner.precision = config::Precision::kBf16;
  const std::string family = GENERATE("llama3", "qwen3");
  Fixture f(family, inner);
  auto result = forward_backward(*f.trainer, f.tokens);
  REQUIRE_OK(result);
  CHECK(result->loss == Approx(static_cast<double>(f.get("loss")[0])).epsilon(0.02));
}

TEST_CASE("bf16 gradients point where the fp32 ones point") {
  config::InnerSpec inner;
  inner.precision = config::Precision::kBf16;
  Fixture f(true, inner);
  auto result = forward_backward(*f.trainer, f.tokens);
  REQUIRE_OK(result);
  // bf16 rounds to 2^-9; the same count of roundings in sequence, averaged over a tensor: 20 · 2^-9
  // / 2 = 2%.
  CHECK(result->loss == Approx(static_cast<double>(f.get("loss")[0])).epsilon(0.02));
  for (const TensorShape& tensor : f.trainer->tensors()) {
    CAPTURE(tensor.name);
    const auto expected = f.get("gradient." + tensor.name);
    double apart = 0;
    double norm = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double want = static_cast<double>(expected[i]);
      const double got =
          static_cast<double>(result->gradients[static_cast<std::size_t>(tensor.offset) + i]);
      apart += (got - want) * (got - want);
      norm += want * want;
    }
    CHECK(std::sqrt(apart / norm) <
          0.04);  // twice the mean rounding: gradients pass the graph twice
  }
}

TEST_CASE("three clipped AdamW steps end where PyTorch's end") {
  const bool tied = GENERATE(true, false);
  const bool accumulate = GENERATE(false, true);
  CAPTURE(tied, accumulate);
  config::InnerSpec inner;
  inner.batch_size = accumulate ? 2 : 4;  // two micro-batches of two give the same mean
  Fixture f(tied, inner);
  double rates = 0;
  for (const double rate : {1e-3, 2e-3, 1.5e-3}) {
    auto step = f.trainer->step(f.tokens, rate);
    REQUIRE_OK(step);
    CHECK_FALSE(step->skipped);
    CHECK(step->tokens == 4 * 16);
    rates += rate;
  }
  double worst = 0;
  for (std::size_t i = 0; i < f.trainer->tensors().size(); ++i) {
    const TensorShape& tensor = f.trainer->tensors()[i];
    CAPTURE(tensor.name);
    const auto index = static_cast<std::int32_t>(i);
    std::vector<float> mine(static_cast<std::size_t>(tensor.elements));
    f.trainer->read(std::span(&index, 1), mine);
    const auto expected = f.get("after." + tensor.name);
    const auto gradient = f.get("gradient." + tensor.name);
    // A step moves an element by rate · m/√v, of size 1; an error e of a gradient g moves that by
    // about 2e/g, at most 2.
    const double error = kFp32Bound * largest(gradient);
    for (std::size_t j = 0; j < mine.size(); ++j) {
      const double apart =
          std::fabs(static_cast<double>(mine[j]) - static_cast<double>(expected[j]));
      const double g = std::fabs(static_cast<double>(gradient[j]));
      const double bound = rates * std::min(2.0, 4.0 * error / (g + 1e-12)) + 1e-6;
      if (apart > bound) {
        CAPTURE(j, apart, bound);
        CHECK(apart <= bound);
      }
      worst = std::max(worst, apart);
    }
  }
  std::cout << (tied ? "tied" : "untied") << (accumulate ? ", accumulated" : "")
            << ": largest difference of a weight after three steps " << worst << "\n";
}

TEST_CASE("evaluation of given weights leaves the model alone and agrees with its own") {
  Fixture f(true);
  std::vector<std::int32_t> all(f.trainer->tensors().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  std::vector<float> weights(static_cast<std::size_t>(total_elements(f.trainer->tensors())));
  f.trainer->read(all, weights);
  auto before = f.trainer->evaluate({}, f.tokens);
  REQUIRE_OK(before);
  CHECK(before->loss == Approx(static_cast<double>(f.get("loss")[0])).epsilon(1e-5));
  REQUIRE(f.trainer->step(f.tokens, 1e-2));
  auto copy = f.trainer->evaluate(weights, f.tokens);
  auto now = f.trainer->evaluate({}, f.tokens);
  REQUIRE_OK(copy);
  REQUIRE_OK(now);
  CHECK(copy->loss == before->loss);
  CHECK(now->loss < before->loss);
  CHECK_FALSE(f.trainer->evaluate(std::span(weights).first(3), f.tokens));
}

TEST_CASE("libtorch's Muon steps as the plain one does, and its bf16 goes the same way") {
  const auto precision = GENERATE(config::Precision::kFp32, config::Precision::kBf16);
  config::InnerSpec inner;
  inner.optimizer = "muon";
  inner.precision = precision;
  Fixture f(true, inner);
  std::vector<std::int32_t> all(f.trainer->tensors().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  OptimizerSettings settings;
  settings.muon = true;
  FlatState plain(f.trainer->tensors(), settings);
  std::vector<float> mine(static_cast<std::size_t>(plain.size()));
  for (int i = 0; i < 3; ++i) {
    f.trainer->read(all, mine);
    std::copy(mine.begin(), mine.end(), plain.weights().data());
    auto gradients = forward_backward(*f.trainer, f.tokens);
    REQUIRE_OK(gradients);
    std::copy(gradients->gradients.begin(), gradients->gradients.end(), plain.gradients().data());
    const std::vector<float> before = mine;
    plain.apply(1e-2, 1.0, serially);
    REQUIRE(f.trainer->step(f.tokens, 1e-2));
    f.trainer->read(all, mine);
    double apart = 0, moved = 0;
    for (std::size_t j = 0; j < mine.size(); ++j) {
      apart += std::pow(static_cast<double>(mine[j] - plain.weights().data()[j]), 2);
      moved += std::pow(static_cast<double>(mine[j] - before[j]), 2);
    }
    // Roundings of 2^-24 grow by up to 3.4445^5 = 485 in the smallest singular values; bf16's of
    // 2^-9 stay small in those that matter.
    CHECK(std::sqrt(apart / moved) < (precision == config::Precision::kFp32 ? 1e-3 : 0.1));
    CHECK(moved > 0);
  }
}

TEST_CASE("a trainer continues bit for bit from weights and inner state") {
  config::InnerSpec inner;
  inner.optimizer = GENERATE("adamw", "muon");
  Fixture a(true, inner);
  Fixture b(true, inner);
  REQUIRE(a.trainer->step(a.tokens, 1e-3));
  REQUIRE(a.trainer->step(a.tokens, 1e-3));
  std::vector<std::int32_t> all(a.trainer->tensors().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  std::vector<float> weights(static_cast<std::size_t>(total_elements(a.trainer->tensors())));
  a.trainer->read(all, weights);
  b.trainer->write(all, weights);
  REQUIRE(b.trainer->restore_inner_state(a.trainer->inner_state(config::Precision::kFp32)));
  auto next_a = a.trainer->step(a.tokens, 1e-3);
  auto next_b = b.trainer->step(b.tokens, 1e-3);
  REQUIRE_OK(next_a);
  REQUIRE_OK(next_b);
  CHECK(next_a->loss == next_b->loss);
  std::vector<float> weights_b(weights.size());
  a.trainer->read(all, weights);
  b.trainer->read(all, weights_b);
  CHECK(weights == weights_b);
}

TEST_CASE("bad batches are refused with one clear line") {
  Fixture f(true);
  std::vector<std::int32_t> tokens = f.tokens;
  tokens[3] = 64;
  auto result = f.trainer->step(tokens, 1e-3);
  REQUIRE_FALSE(result);
  CHECK(result.error().message == "token 64 is not below the vocabulary size 64");
  CHECK_FALSE(f.trainer->step(std::span(f.tokens).first(16), 1e-3));
  CHECK_FALSE(f.trainer->sample({}, 3, 1.0, 1));
  auto greedy = f.trainer->sample(std::span(f.tokens).first(5), 20, 0, 1);
  REQUIRE_OK(greedy);
  CHECK(greedy->size() == 20);  // beyond the context length: the window slides
}

}  // namespace archipelago::learner
