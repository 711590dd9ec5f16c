#include "operator/api/outer_status.h"

#include <algorithm>
#include <cmath>

#include "common/wire/messages_json.h"
#include "operator/api/status.h"

namespace archipelago::op {
namespace {

std::optional<double> known(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

OuterUnit take_unit(diloco::UnitStatus& u) {
  OuterUnit out;
  out.name = std::move(u.name);
  out.datacenter = std::move(u.datacenter);
  out.incarnation = u.incarnation.value;
  out.phase = std::move(u.phase);
  out.local_step = u.local_step.value;
  out.step_seconds = u.step_seconds;
  out.tokens = u.tokens;
  out.merged_rounds = u.merged_rounds;
  out.last_heard_seconds = u.last_heard_seconds;
  out.stepping_seconds = u.stepping_seconds;
  out.step_seconds_total = u.seconds_in_steps;
  out.tokens_per_second = u.tokens_per_second;
  out.uplink_mbps = u.uplink_bytes_per_second * 8e-6;
  out.recovery_seconds = std::move(u.recovery_seconds);
  return out;
}

void take_lists(diloco::StatusDocument& document, OuterStatus& out) {
  for (auto& c : document.conditions)
    out.conditions.push_back(
        {std::move(c.type), c.status == "True", std::move(c.reason), std::move(c.message)});
  for (auto& u : document.units)
    if (out.units.size() < kMaxStatusUnits) out.units.push_back(take_unit(u));
  for (auto& f : document.fenced)
    if (out.fenced.size() < kMaxStatusUnits)
      out.fenced.push_back({std::move(f.name), f.highest.value});
}
}  // namespace

const OuterUnit* OuterStatus::unit(const std::string& name) const {
  for (const OuterUnit& u : units)
    if (u.name == name) return &u;
  return nullptr;
}

std::int64_t OuterStatus::highest(const std::string& name) const {
  std::int64_t out = 0;
  for (const FencedUnit& f : fenced)
    if (f.name == name) out = std::max(out, f.highest);
  if (const OuterUnit* u = unit(name)) out = std::max(out, u->incarnation);
  return out;
}

Result<OuterStatus> read_outer_status(std::string_view text) {
  ARCH_TRY(diloco::StatusDocument document, wire::parse_status(text));
  OuterStatus out;
  out.phase = std::move(document.phase);
  if (out.phase != "waiting" && out.phase != "running" && out.phase != "finishing" &&
      out.phase != "finished")
    return fail(ErrorKind::kInvalid, "status.phase: given '" + out.phase +
                                         "', allowed waiting, running, finishing, finished");
  out.run_id = std::move(document.run_id);
  out.epoch = document.epoch;
  out.global_step = document.global_step.value;
  out.budget = document.budget.value;
  out.tokens = document.tokens;
  out.loss = known(document.loss);
  out.validation_loss = known(document.validation_loss);
  out.merged_fraction = known(document.merged_fraction);
  out.bytes_up = document.bytes_up;
  out.bytes_down = document.bytes_down;
  out.last_checkpoint_step = document.last_checkpoint_step.value;
  out.rounds = document.rounds;
  out.mean_participants = document.mean_participants;
  out.settings_generation = document.settings.generation;
  take_lists(document, out);
  return out;
}

}  // namespace archipelago::op
