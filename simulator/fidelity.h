#pragma once
// The paper's tables recomputed: by the closed formulas, by the availability model, by the
// production cores over simulated links and failures. Which constants are fitted, and on what:
// docs/fidelity.md.
#include <cstdint>
#include <vector>

#include "common/diloco/settings.h"
#include "simulator/availability.h"
#include "simulator/comparison.h"
#include "simulator/formulas.h"

namespace archipelago::simulator {

struct FidelityOptions {
  std::uint64_t seed = 1;
  bool formula = true, model = true, cores = true;
  diloco::GraceKind grace = diloco::GraceKind::kSteps;  // of the rows of Table 5 that have it on
};

// Reconfiguration, restart and return times are not published. Step time and the ratio of up to
// down are assumed; the three others fitted by the closed formula on the goodput of half of the
// cells of Table 1, uptime unseen.
[[nodiscard]] AvailabilityConstants fit_availability();
// Interval and hidden steps of the bandwidth model, fitted on half of the decoupled cells of
// Table 13.
struct BandwidthFit {
  double interval = kTable13Interval, hidden = kTable13Hidden;
};
[[nodiscard]] BandwidthFit fit_bandwidth();

[[nodiscard]] std::vector<Comparison> table1(const FidelityOptions& options);
[[nodiscard]] std::vector<Comparison> table4(const FidelityOptions& options);
[[nodiscard]] std::vector<Comparison> table5(const FidelityOptions& options);
[[nodiscard]] std::vector<Comparison> table13(const FidelityOptions& options);
[[nodiscard]] std::vector<Comparison> fig12(const FidelityOptions& options);

}  // namespace archipelago::simulator
