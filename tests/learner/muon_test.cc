// Muon: the orthogonalisation against singular values that are known by construction, steps against
// plain double arithmetic and against torch.optim.Muon, and its state.
#include "learner/muon.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "common/base/rng.h"
#include "common/wire/safetensors.h"
#include "learner/fake_trainer.h"
#include "learner/flat_state.h"
#include "learner/llama_shapes.h"

namespace archipelago::learner {
namespace {

using Matrix = std::vector<double>;

std::vector<double> unit_vector(std::size_t n, Rng& rng) {
  std::vector<double> v(n);
  double norm = 0;
  for (double& x : v) {
    x = rng.normal();
    norm += x * x;
  }
  for (double& x : v) x /= std::sqrt(norm);
  return v;
}

// H(u) diag(s) H(v)^T with Householder reflections H(u) = I - 2 u u^T: singular values |s|.
Matrix compose(const std::vector<double>& u, const std::vector<double>& v,
               const std::vector<double>& s) {
  const std::size_t rows = u.size();
  const std::size_t cols = v.size();
  Matrix out(rows * cols);
  const auto reflect = [](const std::vector<double>& w, std::size_t i, std::size_t j) {
    return (i == j ? 1.0 : 0.0) - 2 * w[i] * w[j];
  };
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      for (std::size_t k = 0; k < s.size(); ++k)
        out[i * cols + j] += reflect(u, i, k) * s[k] * reflect(v, j, k);
  return out;
}

// What one singular value, relative to the Frobenius norm, becomes.
double driven(double s) {
  for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
  return s;
}

std::vector<float> floats(const Matrix& m) { return {m.begin(), m.end()}; }

double norm_of(const std::vector<float>& x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

// An optimizer step as the papers write it, in double, one tensor at a time.
struct Reference {
  std::size_t rows, cols;
  bool muon, decays;
  std::vector<double> w, m, v;
  int steps = 0;

  Matrix times(const Matrix& a, const Matrix& b, std::size_t n, std::size_t k, std::size_t p) {
    Matrix out(n * p);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < p; ++j)
        for (std::size_t l = 0; l < k; ++l) out[i * p + j] += a[i * k + l] * b[l * p + j];
    return out;
  }
  // X <- a X + b (X X^T) X + c (X X^T)^2 X, without transposing tall ones.
  Matrix orthogonal(Matrix x) {
    double norm = 0;
    for (const double value : x) norm += value * value;
    for (double& value : x) value /= std::sqrt(norm);
    for (int i = 0; i < 5; ++i) {
      Matrix flipped(x.size());
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < cols; ++c) flipped[c * rows + r] = x[r * cols + c];
      const Matrix gram = times(x, flipped, rows, cols, rows);
      const Matrix first = times(gram, x, rows, rows, cols);
      const Matrix second = times(gram, first, rows, rows, cols);
      for (std::size_t j = 0; j < x.size(); ++j)
        x[j] = 3.4445 * x[j] - 4.7750 * first[j] + 2.0315 * second[j];
    }
    return x;
  }
  void step(const std::vector<double>& g, double rate) {
    ++steps;
    const double decay = decays ? 0.1 : 0.0;
    for (double& x : w) x *= 1 - rate * decay;
    if (muon) {
      Matrix nesterov(g.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        m[i] = 0.95 * m[i] + 0.05 * g[i];
        nesterov[i] = 0.05 * g[i] + 0.95 * m[i];
      }
      const Matrix update = orthogonal(nesterov);
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
      for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * scale * update[i];
      return;
    }
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
      w[i] -= rate * (m[i] / (1 - std::pow(0.9, steps))) /
              (std::sqrt(v[i] / (1 - std::pow(0.95, steps))) + 1e-8);
    }
  }
};

OptimizerSettings muon_settings(double clip = 1.0) {
  OptimizerSettings settings;
  settings.muon = true;
  settings.clip = clip;
  return settings;
}

config::ModelSpec small_model() {
  config::ModelSpec model;
  model.hidden_size = 16;
  model.layers = 1;
  model.heads = 2;
  model.kv_heads = 1;
  model.intermediate_size = 24;
  model.vocab_size = 20;
  model.tie_embeddings = false;
  return model;
}

void fill(std::span<float> gradients, Rng& rng) {
  for (float& g : gradients) g = static_cast<float>(rng.normal());
}

void train(FlatState& state, std::uint64_t seed, int steps,
           const FlatState::Parallel& parallel = serially) {
  Rng rng(seed);
  for (int i = 0; i < steps; ++i) {
    fill(state.gradients().span(), rng);
    state.apply(0.01, 1.0, parallel);
  }
}

}  // namespace

TEST_CASE("orthogonalisation drives each singular value by the quintic and keeps the vectors") {
  const auto [rows, cols] = GENERATE(std::pair<std::size_t, std::size_t>{12, 20},
                                     std::pair<std::size_t, std::size_t>{20, 12},
                                     std::pair<std::size_t, std::size_t>{12, 12});
  CAPTURE(rows, cols);
  Rng rng(3);
  const auto u = unit_vector(rows, rng);
  const auto v = unit_vector(cols, rng);
  std::vector<double> s, expected;
  double norm = 0;
  for (int k = 0; k < 12; ++k) {
    s.push_back(std::pow(0.6, k));  // 1 down to 0.0036
    norm += s.back() * s.back();
  }
  for (const double value : s) {
    const double now = driven(value / std::sqrt(norm));
    CHECK(now > 0.67);
    CHECK(now < 1.21);
    expected.push_back(now);
  }
  auto x = floats(compose(u, v, s));
  auto large = x;
  for (float& value : large) value *= 1024.0F;
  newton_schulz(x.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
  newton_schulz(large.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
  CHECK(x == large);  // the scale does not matter; a power of two not even in the last bit
  const Matrix want = compose(u, v, expected);
  // The smallest values grow by up to 3.4445^5 = 485; fp32's roundings of 6e-8 grow with them.
  for (std::size_t i = 0; i < x.size(); ++i)
    CHECK(static_cast<double>(x[i]) == Approx(want[i]).margin(12 * 485 * 6e-8));
}

TEST_CASE("an orthogonalised matrix has AdamW's root mean square, and nothing stays nothing") {
  Rng rng(5);
  for (const auto& [rows, cols] : {std::pair{48, 96}, std::pair{96, 48}, std::pair{64, 64}}) {
    std::vector<float> x(static_cast<std::size_t>(rows * cols));
    for (float& value : x) value = static_cast<float>(rng.normal());
    newton_schulz(x.data(), rows, cols);
    const double rms = muon_scale(rows, cols) * norm_of(x) / std::sqrt(rows * cols);
    CHECK(rms > 0.2 * 0.67);
    CHECK(rms < 0.2 * 1.21);
  }
  std::vector<float> zero(12, 0.0F);
  newton_schulz(zero.data(), 3, 4);
  CHECK(zero == std::vector<float>(12, 0.0F));
}

TEST_CASE("Muon takes a decoder's hidden matrices, AdamW the embedding, the norms and the head") {
  std::string muons, others;
  for (const TensorShape& tensor : llama_shapes(small_model()))
    (tensor.hidden_matrix ? muons : others) +=
        tensor.name.substr(tensor.name.rfind('.', tensor.name.size() - 8) + 1) + " ";
  CHECK(muons ==
        "q_proj.weight k_proj.weight v_proj.weight o_proj.weight gate_proj.weight up_proj.weight "
        "down_proj.weight ");
  CHECK(others ==
        "embed_tokens.weight input_layernorm.weight post_attention_layernorm.weight norm.weight "
        "lm_head.weight ");
}

TEST_CASE("three Muon steps of a decoder end where double arithmetic ends") {
  const auto shapes = llama_shapes(small_model());
  FlatState state(shapes, muon_settings());
  state.initialise(7);
  std::vector<Reference> references;
  for (const TensorShape& tensor : shapes) {
    Reference r;
    r.rows = static_cast<std::size_t>(tensor.shape[0]);
    r.cols = tensor.shape.size() > 1 ? static_cast<std::size_t>(tensor.shape[1]) : 1;
    r.muon = tensor.hidden_matrix;
    r.decays = tensor.decays;
    const auto weights = state.weights().span().subspan(static_cast<std::size_t>(tensor.offset),
                                                        static_cast<std::size_t>(tensor.elements));
    r.w.assign(weights.begin(), weights.end());
    r.m.resize(r.w.size());
    r.v.resize(r.w.size());
    references.push_back(std::move(r));
  }
  Rng rng(9);
  for (const double rate : {0.01, 0.02, 0.015}) {
    fill(state.gradients().span(), rng);
    const auto gradients = state.gradients().span();
    double norm = 0;
    for (const float g : gradients) norm += std::pow(0.5 * static_cast<double>(g), 2);
    const double scale = 0.5 / (std::sqrt(norm) + 1e-6);  // clipped to 1: the norm is about 25
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      std::vector<double> g;
      for (std::int64_t j = 0; j < shapes[i].elements; ++j)
        g.push_back(scale *
                    static_cast<double>(gradients[static_cast<std::size_t>(shapes[i].offset + j)]));
      references[i].step(g, rate);
    }
    CHECK(state.apply(rate, 0.5, serially).gradient_norm == Approx(std::sqrt(norm)));
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    CAPTURE(shapes[i].name);
    for (std::size_t j = 0; j < references[i].w.size(); ++j) {
      const auto at = static_cast<std::size_t>(shapes[i].offset) + j;
      // A step is of size rate; its error that of the orthogonalisation: 485 roundings of 6e-8.
      CHECK(static_cast<double>(state.weights().data()[at]) ==
            Approx(references[i].w[j]).margin(0.045 * 485 * 6e-8 * 10));
    }
  }
}

TEST_CASE("three Muon steps end where torch.optim.Muon's end") {
  auto opened =
      wire::SafetensorsFile::open(ARCHIPELAGO_SOURCE_DIR "/tests/golden/muon.safetensors");
  REQUIRE(opened);
  const auto get = [&](const std::string& name) {
    auto values = opened->read(name);
    REQUIRE(values);
    return *values;
  };
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> all = {
      {"wide", {24, 40}}, {"tall", {40, 24}}, {"square", {32, 32}}};
  for (const auto& [name, shape] : all) {
    CAPTURE(name);
    TensorShape tensor;
    tensor.name = name;
    tensor.shape = shape;
    tensor.elements = shape[0] * shape[1];
    tensor.hidden_matrix = true;
    FlatState state({tensor}, muon_settings(0));
    const auto start = get("weight." + name);
    std::copy(start.begin(), start.end(), state.weights().data());
    int i = 0;
    for (const double rate : {1e-2, 2e-2, 1.5e-2}) {
      const auto gradient = get("gradient." + std::to_string(i++) + "." + name);
      std::copy(gradient.begin(), gradient.end(), state.gradients().data());
      state.apply(rate, 1.0, serially);
    }
    const auto end = get("after." + name);
    std::vector<float> apart, moved;
    for (std::size_t j = 0; j < end.size(); ++j) {
      apart.push_back(state.weights().data()[j] - end[j]);
      moved.push_back(end[j] - start[j]);
    }
    // PyTorch iterates in bf16 (roundings of 0.2%, three products an iteration, five iterations).
    CHECK(norm_of(apart) < 0.03 * norm_of(moved));
  }
}

TEST_CASE("Muon continues bit for bit from its state, which AdamW refuses, and the other way") {
  FlatState a(fake_tensors(4), muon_settings());
  FlatState b(fake_tensors(4), muon_settings());
  a.initialise(3);
  train(a, 5, 4);
  const auto exact = a.inner_state(config::Precision::kFp32);
  REQUIRE(b.restore_inner_state(exact));
  CHECK(b.steps() == 4);
  CHECK(b.inner_state(config::Precision::kFp32) == exact);
  std::copy_n(a.weights().data(), a.size(), b.weights().data());
  train(a, 6, 2);
  train(b, 6, 2);
  CHECK(std::equal(a.weights().span().begin(), a.weights().span().end(), b.weights().data()));
  CHECK(a.inner_state(config::Precision::kFp32) == b.inner_state(config::Precision::kFp32));

  FlatState adamw(fake_tensors(4), {});
  adamw.initialise(3);
  const auto other = adamw.inner_state(config::Precision::kFp32);
  CHECK(exact.size() < other.size());  // the matrices have one momentum, not two moments
  const Status refused = b.restore_inner_state(other);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "inner state: is of AdamW, this run's inner.optimizer is Muon");
  CHECK(b.inner_state(config::Precision::kFp32) == a.inner_state(config::Precision::kFp32));
  const Status back = adamw.restore_inner_state(exact);
  REQUIRE_FALSE(back);
  CHECK(back.error().message == "inner state: is of Muon, this run's inner.optimizer is AdamW");
  auto damaged = exact;
  damaged[200] ^= std::byte{1};
  CHECK(b.restore_inner_state(damaged).error().message == "inner state: checksum differs");
}

TEST_CASE("a Muon step does not depend on how the work is split") {
  std::vector<TensorShape> tensors(2);
  tensors[0] = {"embedding", {300, 64}, true, false, 0.02, 0, 300 * 64};
  tensors[1] = {"matrix", {1200, 64}, false, true, 0.02, 300 * 64, 1200 * 64, true};
  FlatState a(tensors, muon_settings()), b(tensors, muon_settings());
  a.initialise(1);
  b.initialise(1);
  train(a, 2, 2);
  train(b, 2, 2, [](std::int64_t n, const auto& body) {
    for (std::int64_t i = n; i > 0; --i) body(i - 1, i);
  });
  CHECK(std::equal(a.weights().span().begin(), a.weights().span().end(), b.weights().data()));
}

}  // namespace archipelago::learner
