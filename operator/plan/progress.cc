#include "operator/plan/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>

#include "common/config/parse.h"
#include "operator/plan/active_clock.h"

namespace archipelago::op {
namespace {

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return "";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, std::clamp(value, -1e15, 1e15));
  return text.data();
}

// Seconds that units spent in completed inner steps over the integral of desired units since the
// first step.
std::string goodput(const OuterStatus& document, std::int64_t units, const TrainingStatus& status,
                    WallTime now) {
  if (!status.first_step_active_seconds) return "";
  const double elapsed =
      static_cast<double>(active_seconds(status, now) - *status.first_step_active_seconds);
  if (elapsed < 1 || units < 1) return "";
  double stepped = 0;
  for (const OuterUnit& u : document.units) stepped += u.step_seconds_total;
  return fixed(std::min(stepped / (elapsed * static_cast<double>(units)), 1.0), 3);
}

bool is_passed_on(const std::string& type) {
  constexpr std::array<std::string_view, 8> kTypes{
      condition::kDuplicateUnit,     condition::kVersionSkew,     condition::kRolledBack,
      condition::kCheckpointStale,   condition::kRebuilt,         condition::kJournalFull,
      condition::kValidationSkipped, condition::kModelNotWritten,
  };
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}
}  // namespace

void copy_progress(const OuterStatus& document, const config::TrainingSpec& spec,
                   TrainingStatus& status, WallTime now) {
  status.outer.epoch = document.epoch;
  status.outer.last_checkpoint_step = document.last_checkpoint_step;
  status.outer.settings_generation = document.settings_generation;
  status.global_step = std::max(document.global_step, std::int64_t{0});
  status.tokens = std::max(document.tokens, std::int64_t{0});
  if (document.loss) status.loss = fixed(*document.loss, 4);
  if (document.validation_loss) status.validation_loss = fixed(*document.validation_loss, 4);
  if (document.merged_fraction) status.merged_fraction = fixed(*document.merged_fraction, 3);
  if (status.global_step > 0 && !status.first_step_active_seconds)
    status.first_step_active_seconds = active_seconds(status, now);
  if (const std::string g = goodput(document, config::total_units(spec), status, now); !g.empty())
    status.goodput = g;
}

void sum_datacenters(const OuterStatus* document, const config::TrainingSpec& spec,
                     TrainingStatus& status) {
  const std::vector<DatacenterStatus> before = std::move(status.datacenters);
  status.datacenters.clear();
  status.restarts = 0;
  std::size_t next = 0;  // status.units stands in the order of the spec
  for (const config::DatacenterSpec& dc : spec.datacenters) {
    DatacenterStatus out;
    out.name = dc.name;
    out.desired = dc.learner_units;
    for (std::int32_t i = 0; i < dc.learner_units && next < status.units.size(); ++i, ++next) {
      const UnitStatus& u = status.units[next];
      if (u.phase == UnitPhase::kStepping || u.phase == UnitPhase::kStarved) ++out.stepping;
      out.restarts += u.restarts;
      out.disruptions += u.disruptions;
    }
    status.restarts += out.restarts;
    const auto old = std::find_if(before.begin(), before.end(),
                                  [&](const DatacenterStatus& d) { return d.name == dc.name; });
    if (document != nullptr) {
      double tokens = 0;
      double mbps = 0;
      for (const OuterUnit& u : document->units) {
        if (u.datacenter != dc.name || u.phase == "Silent" || u.phase == "Left") continue;
        tokens += u.tokens_per_second;
        mbps += u.uplink_mbps;
      }
      out.tokens_per_second = static_cast<std::int64_t>(std::clamp(tokens, 0.0, 1e15));
      out.uplink_mbps = fixed(mbps, 1);
    } else if (old != before.end()) {
      out.tokens_per_second = old->tokens_per_second;
      out.uplink_mbps = old->uplink_mbps;
    }
    status.datacenters.push_back(std::move(out));
  }
}

void copy_conditions(const OuterStatus& document, TrainingStatus& status, std::int64_t generation,
                     WallTime now) {
  std::set<std::string> told;
  for (const OuterCondition& c : document.conditions) {
    if (!is_passed_on(c.type)) continue;
    told.insert(c.type);
    set_trouble(
        status.conditions,
        {c.type, c.status, c.reason.empty() ? "Reported" : c.reason, c.message, {}, generation},
        now);
  }
  const std::vector<Condition> before = status.conditions;
  for (const Condition& c : before)
    if (c.status && is_passed_on(c.type) && told.count(c.type) == 0)
      set_condition(status.conditions, {c.type, false, "NotReported", "", {}, generation}, now);
}

std::optional<nlohmann::json> settings_to_send(const config::DecoupledTraining& run,
                                               const OuterStatus& document) {
  if (document.settings_generation >= run.generation) return std::nullopt;
  const config::SyncSpec& sync = run.spec.sync;
  return nlohmann::json{{"generation", run.generation},
                        {"quorum", sync.quorum},
                        {"grace",
                         {{"rule", config::to_string(sync.grace.rule)},
                          {"steps", sync.grace.steps},
                          {"fraction", sync.grace.fraction}}},
                        {"budget", {{"globalSteps", run.spec.budget.global_steps}}}};
}

}  // namespace archipelago::op
