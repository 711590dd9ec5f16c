// The learner without libtorch: data, schedule, flat state, kernels, fragments, watchdog, hub.
#include <cmath>
#include <fstream>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "common/base/rng.h"
#include "learner/data.h"
#include "learner/fake_trainer.h"
#include "learner/fragments.h"
#include "learner/inner_of.h"
#include "learner/kernels.h"
#include "learner/llama_shapes.h"
#include "learner/lr_schedule.h"
#include "learner/watchdog.h"

namespace archipelago::learner {
namespace {

std::string write_bytes(const TempDir& dir, const std::string& name, const std::string& content) {
  const auto path = dir.path() / name;
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

}  // namespace

TEST_CASE("a text file's sequences tile it and predict every token but the first once") {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 41; ++i) text.push_back(static_cast<char>('a' + i % 26));
  const auto file =
      TokenFile::open(write_bytes(dir, "t", text), config::DataFormat::kText, 10, 256);
  REQUIRE(file);
  CHECK(file->sequences() == 4);
  std::vector<std::int32_t> row(11);
  std::string targets;
  for (std::uint64_t i = 0; i < 4; ++i) {
    REQUIRE(file->read(i, row));
    for (std::size_t j = 1; j < row.size(); ++j) targets.push_back(static_cast<char>(row[j]));
  }
  CHECK(targets == text.substr(1));
  CHECK_FALSE(file->read(4, row));
}

TEST_CASE("data errors are one clear line") {
  const TempDir dir;
  const auto open = [&](const std::string& path, config::DataFormat format, std::int64_t vocab) {
    return TokenFile::open(path, format, 4, vocab);
  };
  const auto missing = open((dir.path() / "none").string(), config::DataFormat::kText, 256);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message ==
        "data file " + (dir.path() / "none").string() + " does not exist");
  const auto tiny = open(write_bytes(dir, "tiny", "abcd"), config::DataFormat::kText, 256);
  REQUIRE_FALSE(tiny);
  CHECK(tiny.error().message.find("has 4 tokens, shorter than one sequence of 5") !=
        std::string::npos);
  CHECK_FALSE(open(write_bytes(dir, "odd", "abcdefghijk"), config::DataFormat::kTokensU16, 65536));
  CHECK_FALSE(open(dir.path().string(), config::DataFormat::kText, 256));
  // 0x6161 = 24929 as u16.
  const auto wide =
      open(write_bytes(dir, "wide", "aaaaaaaaaaaa"), config::DataFormat::kTokensU16, 100);
  REQUIRE(wide);
  std::vector<std::int32_t> row(5);
  const Status read = wide->read(0, row);
  REQUIRE_FALSE(read);
  CHECK(read.error().message.find("token 24929 at position 0 is not below model.vocabSize 100") !=
        std::string::npos);
}

TEST_CASE("the data set's digest depends on content, not on the path") {
  const TempDir dir;
  const auto digest = [&](const std::string& name, const std::string& text) {
    const auto file =
        TokenFile::open(write_bytes(dir, name, text), config::DataFormat::kText, 4, 256);
    REQUIRE(file);
    return file->digest();
  };
  CHECK(digest("a", "hello world") == digest("b", "hello world"));
  CHECK(digest("a", "hello world") != digest("c", "hello worle"));
}

TEST_CASE("the learning rate warms up, falls as a cosine to a tenth, and stays there") {
  config::InnerSpec inner;
  inner.learning_rate = 1.0;
  inner.warmup_steps = 10;
  const GlobalStep budget(110);
  const auto at = [&](std::int64_t t) { return learning_rate(inner, GlobalStep(t), budget); };
  CHECK(at(0) == Approx(1.0 / 11));
  CHECK(at(9) == Approx(10.0 / 11));
  CHECK(at(10) == Approx(1.0));
  CHECK(at(60) == Approx(0.55));
  CHECK(at(110) == Approx(0.1));
  CHECK(at(100000) == Approx(0.1));
  for (int t = 11; t <= 110; ++t) CHECK(at(t) < at(t - 1));
  inner.schedule = config::LrSchedule::kConstant;
  CHECK(at(100) == 1.0);
}

TEST_CASE("AdamW follows the formula of Loshchilov and Hutter") {
  std::vector<TensorShape> tensors(2);
  tensors[0] = {"w", {1, 3}, false, true, 0.02, 0, 3};
  tensors[1] = {"norm", {2}, false, false, 0, 3, 2};
  OptimizerSettings settings;
  settings.clip = 1.0;
  FlatState state(tensors, settings);
  const std::vector<double> start = {1, -2, 0.5, 1, 1};
  const std::vector<double> gradient = {3, -4, 0, 12, 0};  // norm 13: clipped to 1
  std::vector<double> w = start, m(5), v(5);
  for (std::size_t i = 0; i < 5; ++i) state.weights().data()[i] = static_cast<float>(start[i]);
  for (int step = 1; step <= 3; ++step) {
    for (std::size_t i = 0; i < 5; ++i)
      state.gradients().data()[i] = static_cast<float>(2 * gradient[i]);
    const auto applied = state.apply(0.1, 0.5, serially);  // scale: accumulation over two
    CHECK(applied.gradient_norm == Approx(13));
    for (std::size_t i = 0; i < 5; ++i) {
      const double g = gradient[i] / (13 + 1e-6);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      w[i] *= i < 3 ? 1 - 0.1 * 0.1 : 1;
      w[i] -= 0.1 * (m[i] / (1 - std::pow(0.9, step))) /
              (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8);
    }
  }
  // Three steps of a handful of fp32 roundings on values near 1.
  for (std::size_t i = 0; i < 5; ++i)
    CHECK(static_cast<double>(state.weights().data()[i]) == Approx(w[i]).margin(2e-6));
}

TEST_CASE("a gradient that is not finite changes nothing") {
  FlatState state(fake_tensors(3), {});
  state.initialise(1);
  const std::vector<float> before(state.weights().span().begin(), state.weights().span().end());
  state.gradients().data()[7] = std::nanf("");
  const auto applied = state.apply(0.1, 1.0, serially);
  CHECK(applied.skipped);
  CHECK(state.steps() == 0);
  CHECK(std::equal(before.begin(), before.end(), state.weights().data()));
}

TEST_CASE(
    "inner state comes back exactly in fp32, within bf16's rounding in bf16, and damage is named") {
  FlatState a(fake_tensors(4), {});
  a.initialise(3);
  Rng rng(5);
  for (int step = 0; step < 4; ++step) {
    for (float& g : a.gradients().span()) g = static_cast<float>(rng.normal());
    a.apply(0.01, 1.0, serially);
  }
  const auto exact = a.inner_state(config::Precision::kFp32);
  FlatState b(fake_tensors(4), {});
  REQUIRE(b.restore_inner_state(exact));
  CHECK(b.steps() == 4);
  CHECK(b.inner_state(config::Precision::kFp32) == exact);
  const auto half = a.inner_state(config::Precision::kBf16);
  CHECK(half.size() < exact.size() * 6 / 10);
  FlatState c(fake_tensors(4), {});
  REQUIRE(c.restore_inner_state(half));
  CHECK(c.inner_state(config::Precision::kBf16) == half);
  auto damaged = exact;
  damaged[100] ^= std::byte{1};
  const Status refused = b.restore_inner_state(damaged);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "inner state: checksum differs");
  CHECK_FALSE(b.restore_inner_state(std::span(exact).first(20)));
  CHECK_FALSE(FlatState(fake_tensors(5), {}).restore_inner_state(exact));
  CHECK(b.inner_state(config::Precision::kFp32) == exact);  // a refused state changed nothing
}

TEST_CASE("initial parameters depend on the seed alone") {
  config::ModelSpec model;
  model.hidden_size = 32;
  model.layers = 1;
  model.heads = 4;
  model.kv_heads = 2;
  model.intermediate_size = 48;
  const auto shapes = llama_shapes(model);
  FlatState a(shapes, {}), b(shapes, {}), c(shapes, {});
  a.initialise(1);
  b.initialise(1);
  c.initialise(2);
  CHECK(std::equal(a.weights().span().begin(), a.weights().span().end(), b.weights().data()));
  CHECK_FALSE(std::equal(a.weights().span().begin(), a.weights().span().end(), c.weights().data()));
  // 0.02 ± 5 standard errors of 8,192 normal values.
  double sum = 0;
  for (std::size_t i = 0; i < 8192; ++i)
    sum += static_cast<double>(a.weights().data()[i]) * static_cast<double>(a.weights().data()[i]);
  CHECK(std::sqrt(sum / 8192) == Approx(0.02).epsilon(5 / std::sqrt(2.0 * 8192)));
}

TEST_CASE("silu, norm and rotation kernels agree with double arithmetic") {
  Rng rng(11);
  constexpr std::int64_t kRows = 5, kHidden = 37;
  std::vector<float> gate_up(kRows * 2 * kHidden), out(kRows * kHidden), h(kRows * kHidden),
      sum(kRows * kHidden), normed(kRows * kHidden), weight(kHidden), rstd(kRows);
  for (float& x : gate_up) x = static_cast<float>(rng.uniform(-20, 20));
  for (float& x : h) x = static_cast<float>(rng.normal());
  for (float& x : weight) x = static_cast<float>(rng.normal());
  gate_up[0] = -100;  // beyond the exponential's clamp
  gate_up[1] = 100;
  kernels::swiglu(gate_up.data(), kRows, kHidden, out.data());
  kernels::add_rms_norm(h.data(), h.data(), weight.data(), 1e-5F, kRows, kHidden, sum.data(),
                        normed.data(), rstd.data());
  for (std::int64_t r = 0; r < kRows; ++r) {
    double square = 0;
    for (std::int64_t i = 0; i < kHidden; ++i)
      square += std::pow(2 * static_cast<double>(h[static_cast<std::size_t>(r * kHidden + i)]), 2);
    for (std::int64_t i = 0; i < kHidden; ++i) {
      const auto at = static_cast<std::size_t>(r * kHidden + i);
      const double g = static_cast<double>(gate_up[static_cast<std::size_t>(r * 2 * kHidden + i)]);
      const double u =
          static_cast<double>(gate_up[static_cast<std::size_t>(r * 2 * kHidden + kHidden + i)]);
      CHECK(static_cast<double>(out[at]) ==
            Approx(g / (1 + std::exp(-g)) * u).epsilon(1e-6).margin(1e-30));
      const double expected = 2 * static_cast<double>(h[at]) / std::sqrt(square / kHidden + 1e-5) *
                              static_cast<double>(weight[static_cast<std::size_t>(i)]);
      CHECK(static_cast<double>(normed[at]) == Approx(expected).epsilon(2e-6));
    }
  }
}

TEST_CASE("what one end encodes the other decodes, tensor by tensor") {
  const auto tensors = fake_tensors(6);
  const auto layout = layout_of(tensors);
  REQUIRE(layout);
  const auto fragments = FragmentMap::create(*layout, 3);
  REQUIRE(fragments);
  CHECK(fragments->elements() == total_elements(tensors));
  Rng rng(1);
  for (std::int32_t p = 0; p < 3; ++p) {
    const FragmentView& view = (*fragments)[p];
    std::vector<float> values(static_cast<std::size_t>(view.total)), out(values.size(), 1.0F);
    for (float& x : values) x = static_cast<float>(rng.normal());
    std::vector<std::byte> payload;
    REQUIRE(encode_fragment(view, codec::Codec::kFp32, values, &payload));
    REQUIRE(decode_fragment(view, codec::Codec::kFp32, payload, false, out));
    CHECK(out == values);
    REQUIRE(decode_fragment(view, codec::Codec::kFp32, payload, true, out));
    CHECK(out[0] == values[0] + values[0]);
    CHECK_FALSE(decode_fragment(view, codec::Codec::kInt4, payload, false, out));
    values[3] = std::nanf("");
    CHECK_FALSE(encode_fragment(view, codec::Codec::kInt4, values, &payload));
  }
}

TEST_CASE("the bank keeps versions in order, drops old ones at an apply, and is bounded") {
  BaseBank bank(1);
  const auto base = [](float x) { return std::make_shared<const std::vector<float>>(4, x); };
  REQUIRE(bank.put(0, GlobalStep(3), base(3)));
  REQUIRE(bank.put(0, GlobalStep(1), base(1)));
  CHECK(bank.applied(0) == nullptr);
  CHECK((*bank.apply(0, GlobalStep(1)))[0] == 1.0F);
  REQUIRE(bank.put(0, GlobalStep(3), base(99)));  // a repeat changes nothing
  CHECK((*bank.get(0, GlobalStep(3)))[0] == 3.0F);
  CHECK((*bank.apply(0, GlobalStep(3)))[0] == 3.0F);
  CHECK(bank.get(0, GlobalStep(1)) == nullptr);
  CHECK(bank.apply(0, GlobalStep(2)) == nullptr);
  std::size_t held = 1;
  for (int v = 4; v < 40; ++v) held += bank.put(0, GlobalStep(v), base(0)) ? 1U : 0U;
  CHECK(held == BaseBank::kMaxVersions);
}

TEST_CASE("a datacenter's batch sizes override the run's, the others stay") {
  config::TrainingSpec spec;
  spec.inner.batch_size = 16;
  spec.inner.gradient_accumulation = 2;
  spec.inner.optimizer = "muon";
  spec.datacenters.resize(3);
  spec.datacenters[0].name = "fast";
  spec.datacenters[1].name = "slow";
  spec.datacenters[1].inner.batch_size = 4;
  spec.datacenters[2].name = "small";
  spec.datacenters[2].inner.batch_size = 1;
  spec.datacenters[2].inner.gradient_accumulation = 8;
  CHECK(inner_of(spec, "fast") == spec.inner);
  config::InnerSpec slow = spec.inner;
  slow.batch_size = 4;
  CHECK(inner_of(spec, "slow") == slow);
  CHECK(inner_of(spec, "small").batch_size == 1);
  CHECK(inner_of(spec, "small").gradient_accumulation == 8);
}

TEST_CASE("the watchdog bites only a step that is too long by its own measure") {
  CHECK_FALSE(watchdog_bites(true, seconds(9), seconds(10), seconds(0.1)));
  CHECK(watchdog_bites(true, seconds(11), seconds(10), seconds(0.1)));
  CHECK_FALSE(
      watchdog_bites(true, seconds(11), seconds(10), seconds(1)));  // 20 slow steps are allowed
  CHECK_FALSE(watchdog_bites(false, seconds(1000), seconds(10), seconds(1)));
}

}  // namespace archipelago::learner
