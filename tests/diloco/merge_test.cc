#include "common/diloco/merge.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "common/base/rng.h"
#include "common/diloco/weights.h"

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

using Vector = std::vector<double>;

double norm(const Vector& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

Vector random_vector(Rng& rng, std::size_t n, double length) {
  Vector v(n);
  for (double& x : v) x = rng.normal();
  const double scale = length / norm(v);
  for (double& x : v) x *= scale;
  return v;
}

}  // namespace

TEST_CASE("weight: tokens per step count squared, steps count once") {
  const double base = contribution_weight(1000, 10);
  CHECK(base == 1000.0 * 1000.0 / 10.0);
  CHECK(contribution_weight(2000, 10) == 4 * base);  // twice the tokens a step
  CHECK(contribution_weight(2000, 20) == 2 * base);  // twice the steps at the same rate
}

TEST_CASE("weight: counters that make no sense weigh nothing") {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  for (const auto& [tokens, steps] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 10},
           {10, 0},
           {-5, 3},
           {5, -3},
           {0, 0},
           {kMax, 1},
           {std::numeric_limits<std::int64_t>::min(), 1}}) {
    CAPTURE(tokens, steps);
    CHECK(contribution_weight(tokens, steps) == 0.0);
  }
}

TEST_CASE("M = 1, learning rate 1, no momentum: the global value becomes the learner's, exactly") {
  const double theta_old = 1.0;
  const double theta_new = 0.9;
  for (const auto& merge : {merge_mean, merge_rda}) {
    const std::vector<Vector> gradients{{theta_old - theta_new}};
    const Vector delta = merge(gradients, std::vector<double>{12345.678});
    const OuterState state =
        outer_sgd({1.0F, 0.0F}, static_cast<float>(delta[0]), 1.0F, 0.0F, true);
    CHECK(state.master == Approx(0.9F).margin(0));  // 1.1 with the wrong sign
    CHECK(delta[0] == gradients[0][0]);
  }
}

TEST_CASE("two rounds of Nesterov against hand-worked numbers") {
  // lr 0.7, mu 0.9, gradients 0.1 then 0.2 from master 1:
  // b = 0.1, step 0.1 + 0.09 = 0.19, master 1 - 0.133 = 0.867
  // b = 0.09 + 0.2 = 0.29, step 0.2 + 0.261 = 0.461, master 0.867 - 0.3227 = 0.5443
  OuterState s = outer_sgd({1.0F, 0.0F}, 0.1F, 0.7F, 0.9F, true);
  CHECK(s.momentum == Approx(0.1));
  CHECK(s.master == Approx(0.867));
  s = outer_sgd(s, 0.2F, 0.7F, 0.9F, true);
  CHECK(s.momentum == Approx(0.29));
  CHECK(s.master == Approx(0.5443));
  // Plain momentum: b = 0.1, master 0.93; b = 0.29, master 0.727
  s = outer_sgd(outer_sgd({1.0F, 0.0F}, 0.1F, 0.7F, 0.9F, false), 0.2F, 0.7F, 0.9F, false);
  CHECK(s.master == Approx(0.727));
}

TEST_CASE("the mean divides by what was merged") {
  // Four islands, two arrived, both all ones: 1, not 0.5.
  CHECK(merge_mean(std::vector<Vector>{{1.0}, {1.0}}, std::vector<double>{3.0, 5.0})[0] ==
        Approx(1.0));
  CHECK(merge_mean(std::vector<Vector>{{1.0}, {4.0}}, std::vector<double>{2.0, 1.0})[0] ==
        Approx(2.0));
}

TEST_CASE("RDA of vectors of equal norm has that norm, for every M, RDA of one vector is itself") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const std::size_t members = 1 + rng.below(16);
    const std::size_t n = 1 + rng.below(300);
    std::vector<Vector> gradients;
    Vector weights;
    for (std::size_t m = 0; m < members; ++m) {
      gradients.push_back(random_vector(rng, n, 3.5));
      weights.push_back(rng.uniform(0.1, 100));
    }
    const Vector merged = merge_rda(gradients, weights);
    // n = 1 can cancel exactly: then the direction is undefined and nothing moves.
    if (norm(merged) != 0) CHECK(norm(merged) == Approx(3.5).epsilon(1e-12));
    CHECK(merge_rda(std::vector<Vector>{gradients[0]}, std::vector<double>{weights[0]}) ==
          gradients[0]);
  }
}

TEST_CASE("scaling all weights changes nothing, a zero weight equals absence, bit for bit") {
  Rng rng(7);
  const std::vector<Vector> three{random_vector(rng, 50, 1), random_vector(rng, 50, 2),
                                  random_vector(rng, 50, 9)};
  const std::vector<Vector> two{three[0], three[1]};
  for (const auto& merge : {merge_mean, merge_rda}) {
    const Vector base = merge(three, std::vector<double>{1, 2, 3});
    const Vector scaled =
        merge(three, std::vector<double>{1024, 2048, 3072});  // a power of two: exact
    CHECK(base == scaled);
    CHECK(merge(three, std::vector<double>{1, 2, 0}) == merge(two, std::vector<double>{1, 2}));
    CHECK(merge(three, std::vector<double>{1, 2, -4}) == merge(two, std::vector<double>{1, 2}));
    CHECK(merge(three, std::vector<double>{1, 2, std::nan("")}) ==
          merge(two, std::vector<double>{1, 2}));
  }
}

TEST_CASE("RDA drops zero vectors and survives opposites") {
  const Vector v{3.0, 4.0};
  const Vector zero{0.0, 0.0};
  CHECK(merge_rda(std::vector<Vector>{v, zero}, std::vector<double>{1, 5}) == v);
  CHECK(merge_rda(std::vector<Vector>{zero, zero}, std::vector<double>{1, 1}) == zero);
  CHECK(merge_rda(std::vector<Vector>{v, {-3.0, -4.0}}, std::vector<double>{1, 1}) == zero);
}

TEST_CASE("nobody with weight is no update, all gradients zero is an update by zero") {
  CHECK_FALSE(mean_coefficients(std::vector<double>{0, 0}).any);
  CHECK_FALSE(rda_coefficients(std::vector<double>{0, 0}, std::vector<double>{1, 1}).any);
  CHECK_FALSE(mean_coefficients(std::vector<double>{}).any);
  CHECK(rda_coefficients(std::vector<double>{1, 1}, std::vector<double>{0, 0}).any);
}

TEST_CASE("huge and odd inputs give finite coefficients") {
  const double huge = 1e300;
  const auto mean = mean_coefficients(
      std::vector<double>{huge, huge, 1.0, std::numeric_limits<double>::infinity()});
  double sum = 0;
  for (const double c : mean.per_member) {
    CHECK(std::isfinite(c));
    sum += c;
  }
  CHECK(sum == Approx(1.0));
  CHECK(mean.per_member[3] == 0);
  const auto rda =
      rda_coefficients(std::vector<double>{1, 1}, std::vector<double>{std::nan(""), 2.0});
  CHECK(rda.identity);
  CHECK(rda.per_member[0] == 0);
  CHECK(rda_scale(rda_coefficients(std::vector<double>{1, 1}, std::vector<double>{2.0, 2.0}),
                  std::numeric_limits<double>::infinity()) == 0.0);
}
