#include "operator/api/outer_status.h"

#include <nlohmann/json.hpp>

#include "operator/api/conditions.h"
#include "operator/api/json.h"
#include "operator/api/status.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr std::size_t kMaxConditions = 32;
constexpr std::size_t kMaxRecoveries = 1024;

std::optional<double> optional_number(const json& value, std::string_view name) {
  const json& v = at(value, {name});
  if (!v.is_number()) return std::nullopt;
  return v.get<double>();
}

OuterUnit parse_unit(const json& v) {
  OuterUnit u;
  u.name = string_at(v, {"name"});
  u.datacenter = string_at(v, {"datacenter"});
  u.incarnation = int_at(v, {"incarnation"});
  u.phase = string_at(v, {"phase"});
  u.local_step = int_at(v, {"localStep"});
  u.step_seconds = number_at(v, {"stepSeconds"});
  u.tokens = int_at(v, {"tokens"});
  u.merged_rounds = int_at(v, {"mergedRounds"});
  u.last_heard_seconds = number_at(v, {"lastHeardSeconds"});
  u.stepping_seconds = number_at(v, {"steppingSeconds"});
  u.step_seconds_total = number_at(v, {"stepSecondsTotal"});
  u.tokens_per_second = number_at(v, {"tokensPerSecond"});
  u.uplink_mbps = number_at(v, {"uplinkMbps"});
  const json& recoveries = at(v, {"recoverySeconds"});
  if (recoveries.is_array())
    for (const json& r : recoveries)
      if (r.is_number() && u.recovery_seconds.size() < kMaxRecoveries)
        u.recovery_seconds.push_back(r.get<double>());
  return u;
}

void parse_lists(const json& document, OuterStatus& out) {
  const json& conditions = at(document, {"conditions"});
  if (conditions.is_array())
    for (const json& c : conditions) {
      if (out.conditions.size() >= kMaxConditions) break;
      const json& status = at(c, {"status"});
      OuterCondition condition{string_at(c, {"type"}), bool_at(c, {"status"}),
                               string_at(c, {"reason"}), string_at(c, {"message"})};
      if (status.is_string()) condition.status = status.get<std::string>() == "True";
      if (!condition.type.empty()) out.conditions.push_back(std::move(condition));
    }
  const json& units = at(document, {"units"});
  if (units.is_array())
    for (const json& u : units)
      if (out.units.size() < kMaxStatusUnits) out.units.push_back(parse_unit(u));
  const json& fenced = at(document, {"fenced"});
  if (fenced.is_array())
    for (const json& f : fenced)
      if (out.fenced.size() < kMaxStatusUnits)
        out.fenced.push_back({string_at(f, {"name"}), int_at(f, {"highest"})});
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

std::optional<OuterStatus> parse_outer_status(const json& document) {
  OuterStatus out;
  out.phase = string_at(document, {"phase"});
  if (out.phase != "waiting" && out.phase != "running" && out.phase != "finishing" &&
      out.phase != "finished")
    return std::nullopt;
  out.run_id = string_at(document, {"runId"});
  out.epoch = int_at(document, {"epoch"});
  out.global_step = int_at(document, {"globalStep"});
  out.budget = int_at(document, {"budget"});
  out.tokens = int_at(document, {"tokens"});
  out.loss = optional_number(document, "loss");
  out.validation_loss = optional_number(document, "validationLoss");
  out.merged_fraction = optional_number(document, "mergedFraction");
  out.bytes_up = int_at(document, {"bytesUp"});
  out.bytes_down = int_at(document, {"bytesDown"});
  out.last_checkpoint_step = int_at(document, {"lastCheckpointStep"});
  out.rounds = int_at(document, {"rounds"});
  out.mean_participants = number_at(document, {"meanParticipants"});
  out.settings_generation = int_at(document, {"settingsGeneration"});
  parse_lists(document, out);
  return out;
}

}  // namespace archipelago::op
