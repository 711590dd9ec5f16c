// The merge kernels against their formulas.
#include "common/codec/kernels.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "tests/codec/codec_fixtures.h"

namespace archipelago::codec {
namespace {
using namespace test;

TEST_CASE("sumsq adds chunks in index order, so it can be computed piece by piece") {
  Rng rng(2);
  const auto x = random_tensor(rng, 5 * kChunk + 123);
  double pieces = 0.0;
  for (std::size_t first = 0; first < x.size(); first += kChunk) {
    pieces += sumsq(std::span(x).subspan(first, std::min(kChunk, x.size() - first)));
  }
  CHECK(sumsq(x) == pieces);
  CHECK(sumsq(std::vector<float>{3.0F, 4.0F}) == 25.0);
  CHECK(sumsq({}) == 0.0);
  CHECK(sumsq(std::vector<float>(10000, kMax)) ==
        Approx(10000.0 * static_cast<double>(kMax) * static_cast<double>(kMax)));
}

TEST_CASE("all_finite sees one bad element at any place") {
  for (const std::size_t n : lengths()) {
    std::vector<float> x(n, kMax);
    CHECK(all_finite(x));
    for (std::size_t at = 0; at < n; at += 1 + n / 5) {
      x[at] = at % 2 == 0 ? kNan : -kInf;
      CHECK_FALSE(all_finite(x));
      x[at] = 0.0F;
    }
  }
}

TEST_CASE("the outer step is torch's SGD with and without Nesterov") {
  // Two steps by hand: lr 0.5, mu 0.5, gradient 1 then 2, from 10 (exact in binary).
  for (const bool nesterov : {true, false}) {
    std::vector<float> gradient(33, 1.0F);
    std::vector<float> momentum(33, 0.0F);
    std::vector<float> master(33, 10.0F);
    const OuterStep step{.learning_rate = 0.5F, .momentum = 0.5F, .nesterov = nesterov};
    outer_step(step, gradient, momentum, master);
    CHECK(momentum == std::vector<float>(33, 1.0F));
    CHECK(master == std::vector<float>(33, nesterov ? 9.25F : 9.5F));
    gradient.assign(33, 2.0F);
    outer_step(step, gradient, momentum, master);
    CHECK(momentum == std::vector<float>(33, 2.5F));
    CHECK(master == std::vector<float>(33, nesterov ? 9.25F - 0.5F * 3.25F : 9.5F - 1.25F));
  }
}

TEST_CASE("with lr 1 and momentum 0 the master takes the gradient exactly") {
  Rng rng(9);
  const auto gradient = random_tensor(rng, 1000);
  auto master = random_tensor(rng, 1000);
  std::vector<float> momentum(1000, 0.0F);
  auto expected = master;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= gradient[i];
  outer_step({.learning_rate = 1.0F, .momentum = 0.0F, .nesterov = true}, gradient, momentum,
             master);
  CHECK(same_bits(master, expected));
}

TEST_CASE("subtract may write over either operand") {
  Rng rng(13);
  const auto a = random_tensor(rng, 777);
  const auto b = random_tensor(rng, 777);
  std::vector<float> out(777);
  subtract(a, b, out);
  auto over_a = a;
  subtract(over_a, b, over_a);
  auto over_b = b;
  subtract(a, over_b, over_b);
  CHECK(same_bits(out, over_a));
  CHECK(same_bits(out, over_b));
}

TEST_CASE("axpy and scale_inplace round product and sum separately") {
  // With a fused multiply-add y would be 2^-24 * 2^-24 off from this.
  const float x = 1.0F + 0x1p-12F;
  std::vector<float> y(64, -1.0F);
  axpy(x, std::vector<float>(64, x), y);
  const float product = x * x;
  CHECK(y == std::vector<float>(64, product - 1.0F));
  scale_inplace(y, 4.0F);
  CHECK(y == std::vector<float>(64, 4.0F * (product - 1.0F)));
}

}  // namespace
}  // namespace archipelago::codec
