#include "cli/step_trace.h"

#include <nlohmann/json.hpp>

namespace archipelago::cli {

void StepTrace::add(double t, const std::vector<op::UnitSample>& units) {
  nlohmann::json means = nlohmann::json::object();
  for (const auto& unit : units) {
    if (unit.steps == 0) continue;
    Seen& seen = seen_[unit.name];
    if (seen.incarnation == unit.incarnation && unit.steps > seen.steps)
      means[unit.name] =
          (unit.seconds_in_steps - seen.seconds) / static_cast<double>(unit.steps - seen.steps);
    seen = {unit.incarnation, unit.steps, unit.seconds_in_steps};
  }
  if (!means.empty()) out_ << nlohmann::json{{"t", t}, {"stepSeconds", means}}.dump() << std::endl;
}

}  // namespace archipelago::cli
