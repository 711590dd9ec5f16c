#pragma once
// The decisions of the merge as pure functions over a handful of doubles; the kernel that touches
// tensors only applies the coefficients (Decoupled DiLoCo D.2; algorithm.md §1.3).
//
//   mean: v = sum_m c_m v_m,          c_m = w_m / sum w
//   RDA:  v = scale * s, s = sum_m c_m v_m, c_m = w_m / (sum w * ||v_m||), scale = (sum w_m ||v_m||
//   / sum w) / ||s||
//
// A zero vector has no direction and drops out of the RDA sum, weight and all. One participant that
// counts: coefficient 1 exactly, scale 1 exactly, so the merged gradient is its own, bit for bit.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace archipelago::diloco {

struct MergeCoefficients {
  std::vector<double> per_member;  // 0 for members that count nothing
  // RDA only: what ||s|| has to become. 0: the direction is undefined, the merged gradient is 0.
  double target_norm = 0;
  bool identity = false;  // one member counts: no rescaling
  bool any = false;       // false: nobody counts, no update
};

// Weights >= 0 and finite, others count as 0.
[[nodiscard]] MergeCoefficients mean_coefficients(std::span<const double> weights);
// norms: L2 norm of each member's gradient for this tensor.
[[nodiscard]] MergeCoefficients rda_coefficients(std::span<const double> weights,
                                                 std::span<const double> norms);
// The factor for s, from its squared norm; 0 when s is 0 (or not finite).
[[nodiscard]] double rda_scale(const MergeCoefficients& coefficients, double sum_squared_norm);

// PyTorch's Nesterov SGD, one element: b <- mu b + g; theta <- theta - eta (g + mu b). The
// reference of the kernel.
struct OuterState {
  float master = 0;
  float momentum = 0;
};
[[nodiscard]] inline OuterState outer_sgd(OuterState s, float gradient, float learning_rate,
                                          float mu, bool nesterov) {
  s.momentum = mu * s.momentum + gradient;
  const float step = nesterov ? gradient + mu * s.momentum : s.momentum;
  s.master = s.master - learning_rate * step;
  return s;
}

// The whole merge on plain vectors in double: the oracle of the kernel's tests, and of the scalar
// simulations.
[[nodiscard]] std::vector<double> merge_mean(std::span<const std::vector<double>> gradients,
                                             std::span<const double> weights);
[[nodiscard]] std::vector<double> merge_rda(std::span<const std::vector<double>> gradients,
                                            std::span<const double> weights);

}  // namespace archipelago::diloco
