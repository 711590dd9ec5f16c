#include "learner/muon.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "learner/kernels.h"

namespace archipelago::learner {
namespace {

// c (n x m) = alpha a b + beta c0 over plain row-major matrices; a: n x k, b: k x m.
void multiply(const std::vector<float>& a, const std::vector<float>& b, float alpha,
              const std::vector<float>& c0, float beta, std::int64_t k, std::vector<float>* c) {
  const auto inner = static_cast<std::size_t>(k);
  const std::size_t n = a.size() / inner;
  const std::size_t m = b.size() / inner;
  c->resize(n * m);
  for (std::size_t i = 0; i < n; ++i) {
    float* row = c->data() + i * m;
    for (std::size_t j = 0; j < m; ++j) row[j] = beta * c0[i * m + j];
    for (std::size_t l = 0; l < inner; ++l) {
      const float factor = alpha * a[i * inner + l];
      for (std::size_t j = 0; j < m; ++j) row[j] += factor * b[l * m + j];
    }
  }
}

std::vector<float> transposed(const float* x, std::int64_t rows, std::int64_t cols) {
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      out[static_cast<std::size_t>(j * rows + i)] = x[i * cols + j];
  return out;
}

}  // namespace

void newton_schulz(float* x, std::int64_t rows, std::int64_t cols) {
  const std::int64_t n = rows * cols;
  const bool tall = rows > cols;
  const std::int64_t low = std::min(rows, cols);
  const std::int64_t high = std::max(rows, cols);
  std::vector<float> wide = tall ? transposed(x, rows, cols) : std::vector<float>(x, x + n);
  const double norm = std::max(std::sqrt(kernels::sum_of_squares(x, n)), NewtonSchulz::kSmallest);
  for (float& value : wide) value = static_cast<float>(static_cast<double>(value) / norm);
  const std::vector<float> zeros(static_cast<std::size_t>(low * low), 0.0F);
  std::vector<float> gram, polynomial, next;
  for (int i = 0; i < NewtonSchulz::kIterations; ++i) {
    const std::vector<float> flipped = transposed(wide.data(), low, high);
    multiply(wide, flipped, 1.0F, zeros, 0.0F, high, &gram);
    multiply(gram, gram, static_cast<float>(NewtonSchulz::kC), gram,
             static_cast<float>(NewtonSchulz::kB), low, &polynomial);
    multiply(polynomial, wide, 1.0F, wide, static_cast<float>(NewtonSchulz::kA), low, &next);
    wide.swap(next);
  }
  if (tall) wide = transposed(wide.data(), low, high);
  std::copy(wide.begin(), wide.end(), x);
}

double muon_scale(std::int64_t rows, std::int64_t cols) {
  return 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
}

}  // namespace archipelago::learner
