// Constants from half of the cells: a pattern search on a handful of numbers.
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "simulator/fidelity.h"
#include "simulator/paper_tables.h"

namespace archipelago::simulator {

namespace {

// Multiplies one value at a time while that helps, with ever smaller factors.
std::vector<double> pattern_search(std::vector<double> values,
                                   const std::function<double(const std::vector<double>&)>& cost) {
  double best = cost(values);
  for (double factor = 1.3; factor > 1.0005;) {
    bool better = false;
    for (auto& value : values)
      for (const double f : {factor, 1 / factor}) {
        const double before = value;
        value *= f;
        if (const double now = cost(values); now < best) {
          best = now;
          better = true;
        } else {
          value = before;
        }
      }
    if (!better) factor = std::sqrt(factor);
  }
  return values;
}

}  // namespace

AvailabilityConstants fit_availability() {
  const auto constants = [](const std::vector<double>& v) {
    AvailabilityConstants c;
    c.down_seconds = v[0];
    c.up_seconds = 2 * v[0];
    c.restart_seconds = v[1];
    c.return_seconds_per_slice = v[2];
    return c;
  };
  const auto& rows = paper::table1();
  const auto cost = [&](const std::vector<double>& v) {
    double sum = 0;
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::size_t c = 0; c < paper::kChips.size(); ++c) {
        if (!in_fitted_half(r, c)) continue;
        const double rate = paper::kChips[c] / paper::kYear;
        const auto got =
            expected_availability(constants(v), rate, rows[r].learners, rows[r].elastic);
        const double d = 100 * got.goodput - rows[r].goodput[c];
        sum += d * d;
      }
    return sum;
  };
  const AvailabilityConstants start;
  return constants(pattern_search(
      {start.down_seconds, start.restart_seconds, start.return_seconds_per_slice}, cost));
}

BandwidthFit fit_bandwidth() {
  const auto& cases = paper::table13();
  const auto cost = [&](const std::vector<double>& v) {
    double sum = 0;
    for (std::size_t r = 0; r < cases.size(); ++r)
      for (std::size_t c = 0; c < paper::kUtilisation.size(); ++c) {
        if (!in_fitted_half(r, c)) continue;
        const auto& k = cases[r];
        for (const auto& [bits, paper_value] : {std::pair{16.0, k.bf16[c]}, {4.0, k.int4[c]}}) {
          const double got =
              decoupled_bandwidth(ring_bits(paper::kTable13Parameters, bits, k.datacenters),
                                  k.step_seconds, paper::kUtilisation[c], v[0], v[1]);
          sum += std::pow(std::log(got / 1e9 / paper_value), 2);
        }
      }
    return sum;
  };
  const auto best = pattern_search({80, 30}, cost);
  return {best[0], best[1]};
}

}  // namespace archipelago::simulator
