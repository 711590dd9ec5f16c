#include "common/diloco/merge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/base/check.h"

namespace archipelago::diloco {
namespace {

bool counts(double weight) { return std::isfinite(weight) && weight > 0; }

// Weights relative to the largest: sums stay finite for any finite weights.
std::vector<double> relative(std::span<const double> weights) {
  double largest = 0;
  for (const double w : weights)
    if (counts(w)) largest = std::max(largest, w);
  std::vector<double> result(weights.size(), 0.0);
  for (std::size_t m = 0; m < weights.size(); ++m)
    if (counts(weights[m])) result[m] = weights[m] / largest;
  return result;
}

std::vector<double> weighted_sum(std::span<const std::vector<double>> gradients,
                                 const std::vector<double>& factors) {
  std::vector<double> sum(gradients.empty() ? 0 : gradients[0].size(), 0.0);
  for (std::size_t m = 0; m < gradients.size(); ++m)
    for (std::size_t i = 0; factors[m] != 0 && i < sum.size(); ++i)
      sum[i] += factors[m] * gradients[m][i];
  return sum;
}

double squared_norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return sum;
}

}  // namespace

MergeCoefficients mean_coefficients(std::span<const double> weights) {
  MergeCoefficients result;
  result.per_member = relative(weights);
  double sum = 0;
  std::ptrdiff_t members = 0;
  for (const double w : result.per_member) {
    sum += w;
    members += w > 0 ? 1 : 0;
  }
  result.any = members > 0;
  result.identity = members == 1;
  for (double& w : result.per_member)
    if (w > 0) w /= sum;  // exactly 1 for a single member
  return result;
}

MergeCoefficients rda_coefficients(std::span<const double> weights, std::span<const double> norms) {
  ARCH_CHECK(weights.size() == norms.size());
  std::vector<double> counted(weights.begin(), weights.end());
  bool anybody = false;
  for (std::size_t m = 0; m < counted.size(); ++m) {
    anybody = anybody || counts(counted[m]);
    if (!std::isfinite(norms[m]) || norms[m] <= 0) counted[m] = 0;
  }
  MergeCoefficients result = mean_coefficients(counted);
  // All gradients zero is an update by zero (momentum decays); nobody with weight is no update at
  // all.
  result.any = anybody;
  if (result.identity) return result;
  double radius = 0;
  for (std::size_t m = 0; m < norms.size(); ++m)
    if (result.per_member[m] > 0) radius += result.per_member[m] * norms[m];
  result.target_norm = radius;
  for (std::size_t m = 0; m < norms.size(); ++m)
    if (result.per_member[m] > 0) result.per_member[m] /= norms[m];
  return result;
}

double rda_scale(const MergeCoefficients& coefficients, double sum_squared_norm) {
  if (coefficients.identity) return 1.0;
  if (!std::isfinite(sum_squared_norm) || sum_squared_norm <= 0) return 0.0;
  const double scale = coefficients.target_norm / std::sqrt(sum_squared_norm);
  return std::isfinite(scale) ? scale : 0.0;
}

std::vector<double> merge_mean(std::span<const std::vector<double>> gradients,
                               std::span<const double> weights) {
  return weighted_sum(gradients, mean_coefficients(weights).per_member);
}

std::vector<double> merge_rda(std::span<const std::vector<double>> gradients,
                              std::span<const double> weights) {
  std::vector<double> norms;
  for (const auto& g : gradients) norms.push_back(std::sqrt(squared_norm(g)));
  const auto coefficients = rda_coefficients(weights, norms);
  std::vector<double> sum = weighted_sum(gradients, coefficients.per_member);
  const double scale = rda_scale(coefficients, squared_norm(sum));
  for (double& x : sum) x *= scale;
  return sum;
}

}  // namespace archipelago::diloco
