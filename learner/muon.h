#pragma once
// Muon's orthogonalisation: five Newton-Schulz iterations with a quintic polynomial push every
// singular value of a matrix towards 1 (0.68 to 1.21 for those that begin above about 0.003 of the
// Frobenius norm) and leave the singular vectors alone. No libtorch: this is the plain version;
// the product's runs on libtorch's matrix multiply (torch_trainer.cc).
#include <cstdint>
#include <functional>

namespace archipelago::learner {

struct NewtonSchulz {
  static constexpr int kIterations = 5;
  // x <- a x + (b g + c g g) x with g = x x^T, on the wide one of x and its transpose.
  static constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  static constexpr double kSmallest = 1e-7;  // norms below are taken for this: 0 stays 0
};

inline constexpr double kMuonMomentum = 0.95;  // fixed: the spec has no field for it

// x: rows x cols, row-major, in place. Any scale of x gives the same result.
using Orthogonalise = std::function<void(float* x, std::int64_t rows, std::int64_t cols)>;
void newton_schulz(float* x, std::int64_t rows, std::int64_t cols);

// The factor that gives an orthogonalised matrix AdamW's usual root mean square of 0.2, so that
// AdamW's learning rate carries over: 0.2 sqrt(max(rows, cols)).
[[nodiscard]] double muon_scale(std::int64_t rows, std::int64_t cols);

}  // namespace archipelago::learner
