#include "operator/api/status.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr std::array<std::string_view, 6> kRunPhases{"Pending",   "Running",   "Degraded",
                                                     "Suspended", "Succeeded", "Failed"};
constexpr std::array<std::string_view, 10> kUnitPhases{
    "Pending", "Starting", "Recovering",  "Stepping", "Waiting",
    "Starved", "Backoff",  "Unreachable", "Failed",   "Finished"};

template <class Enum, std::size_t N>
std::optional<Enum> parse_enum(const std::array<std::string_view, N>& names,
                               std::string_view text) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return static_cast<Enum>(i);
  return std::nullopt;
}

void put(json& out, const char* name, const std::string& value) {
  if (!value.empty()) out[name] = value;
}
void put(json& out, const char* name, const std::optional<WallTime>& value) {
  if (value) out[name] = format_wall(*value);
}

std::optional<WallTime> time_at(const json& value, std::string_view name) {
  WallTime t{};
  const std::string text = string_at(value, {name});
  if (text.empty() || !parse_wall(text, &t)) return std::nullopt;
  return t;
}
std::int32_t count_at(const json& value, Path path) {
  const std::int64_t v = int_at(value, path);
  return v < 0 ? 0 : static_cast<std::int32_t>(std::min<std::int64_t>(v, 1'000'000'000));
}

json failure_json(const LastFailure& f) {
  json out{{"incarnation", f.incarnation}, {"reason", to_string(f.reason)}};
  put(out, "podUid", f.pod_uid);
  if (f.exit_code) out["exitCode"] = *f.exit_code;
  put(out, "message", f.message);
  put(out, "time", f.time);
  return out;
}

std::optional<LastFailure> parse_failure(const json& v) {
  const auto reason = parse_failure_reason(string_at(v, {"reason"}));
  if (!reason) return std::nullopt;
  LastFailure f;
  f.incarnation = int_at(v, {"incarnation"});
  f.pod_uid = string_at(v, {"podUid"});
  f.reason = *reason;
  if (at(v, {"exitCode"}).is_number())
    f.exit_code = static_cast<int>(int_at(v, {"exitCode"}) & 0xffff);
  f.message = string_at(v, {"message"});
  f.time = time_at(v, "time");
  return f;
}

json unit_json(const UnitStatus& u) {
  json out{{"name", u.name},
           {"incarnation", u.incarnation},
           {"phase", to_string(u.phase)},
           {"localStep", u.local_step},
           {"charged", u.charged},
           {"attempt", u.attempt},
           {"restarts", u.restarts},
           {"disruptions", u.disruptions}};
  if (!u.pod_uids.empty()) out["podUids"] = u.pod_uids;
  put(out, "reason", u.reason);
  put(out, "steppingSince", u.stepping_since);
  put(out, "nextStartTime", u.next_start);
  if (u.last_failure) out["lastFailure"] = failure_json(*u.last_failure);
  return out;
}

UnitStatus parse_unit(const json& v) {
  UnitStatus u;
  u.name = string_at(v, {"name"});
  u.incarnation = int_at(v, {"incarnation"});
  const json& uids = at(v, {"podUids"});
  if (uids.is_array())
    for (const json& uid : uids)
      if (uid.is_string() && u.pod_uids.size() < 64) u.pod_uids.push_back(uid.get<std::string>());
  u.phase = parse_unit_phase(string_at(v, {"phase"})).value_or(UnitPhase::kPending);
  u.reason = string_at(v, {"reason"});
  u.stepping_since = time_at(v, "steppingSince");
  u.local_step = int_at(v, {"localStep"});
  u.charged = count_at(v, {"charged"});
  u.attempt = count_at(v, {"attempt"});
  u.restarts = count_at(v, {"restarts"});
  u.disruptions = count_at(v, {"disruptions"});
  u.next_start = time_at(v, "nextStartTime");
  u.last_failure = parse_failure(at(v, {"lastFailure"}));
  return u;
}

json outer_json(const OuterStatusFields& o) {
  json out{{"incarnation", o.incarnation},
           {"epoch", o.epoch},
           {"lastCheckpointStep", o.last_checkpoint_step},
           {"settingsGeneration", o.settings_generation},
           {"attempt", o.attempt},
           {"restarts", o.restarts}};
  put(out, "pod", o.pod);
  put(out, "podUid", o.pod_uid);
  put(out, "endpoint", o.endpoint);
  put(out, "since", o.since);
  put(out, "nextStartTime", o.next_start);
  if (o.last_failure) out["lastFailure"] = failure_json(*o.last_failure);
  return out;
}

OuterStatusFields parse_outer(const json& v) {
  OuterStatusFields o;
  o.pod = string_at(v, {"pod"});
  o.pod_uid = string_at(v, {"podUid"});
  o.incarnation = int_at(v, {"incarnation"});
  o.epoch = int_at(v, {"epoch"});
  o.last_checkpoint_step = int_at(v, {"lastCheckpointStep"});
  o.endpoint = string_at(v, {"endpoint"});
  o.settings_generation = int_at(v, {"settingsGeneration"});
  o.since = time_at(v, "since");
  o.attempt = count_at(v, {"attempt"});
  o.restarts = count_at(v, {"restarts"});
  o.next_start = time_at(v, "nextStartTime");
  o.last_failure = parse_failure(at(v, {"lastFailure"}));
  return o;
}

json condition_json(const Condition& c) {
  json out{{"type", c.type},
           {"status", c.status ? "True" : "False"},
           {"reason", c.reason},
           {"lastTransitionTime", format_wall(c.last_transition)},
           {"observedGeneration", c.observed_generation}};
  out["message"] = c.message;
  return out;
}

json datacenter_json(const DatacenterStatus& d) {
  json out{{"name", d.name},
           {"desired", d.desired},
           {"stepping", d.stepping},
           {"restarts", d.restarts},
           {"disruptions", d.disruptions},
           {"tokensPerSecond", d.tokens_per_second}};
  put(out, "uplinkMbps", d.uplink_mbps);
  return out;
}

DatacenterStatus parse_datacenter(const json& v) {
  return {string_at(v, {"name"}),      count_at(v, {"desired"}),     count_at(v, {"stepping"}),
          count_at(v, {"restarts"}),   count_at(v, {"disruptions"}), int_at(v, {"tokensPerSecond"}),
          string_at(v, {"uplinkMbps"})};
}

void parse_lists(const json& v, TrainingStatus& s) {
  const json& conditions = at(v, {"conditions"});
  if (conditions.is_array())
    for (const json& c : conditions) {
      Condition out{string_at(c, {"type"}),
                    string_at(c, {"status"}) == "True",
                    string_at(c, {"reason"}),
                    string_at(c, {"message"}),
                    time_at(c, "lastTransitionTime").value_or(WallTime{}),
                    int_at(c, {"observedGeneration"})};
      if (!out.type.empty() && s.conditions.size() < 64) s.conditions.push_back(std::move(out));
    }
  const json& units = at(v, {"units"});
  if (units.is_array())
    for (const json& u : units)
      if (s.units.size() < kMaxStatusUnits) s.units.push_back(parse_unit(u));
  const json& retired = at(v, {"retiredUnits"});
  if (retired.is_array())
    for (const json& r : retired)
      if (s.retired.size() < kMaxStatusUnits)
        s.retired.push_back({string_at(r, {"name"}), int_at(r, {"lastIncarnation"})});
  const json& datacenters = at(v, {"datacenters"});
  if (datacenters.is_array())
    for (const json& d : datacenters)
      if (s.datacenters.size() < 64) s.datacenters.push_back(parse_datacenter(d));
}
}  // namespace

std::string_view to_string(RunPhase phase) { return kRunPhases[static_cast<std::size_t>(phase)]; }
std::string_view to_string(UnitPhase phase) { return kUnitPhases[static_cast<std::size_t>(phase)]; }
std::optional<RunPhase> parse_run_phase(std::string_view text) {
  return parse_enum<RunPhase>(kRunPhases, text);
}
std::optional<UnitPhase> parse_unit_phase(std::string_view text) {
  return parse_enum<UnitPhase>(kUnitPhases, text);
}

json to_json(const TrainingStatus& s) {
  json out{{"phase", to_string(s.phase)},
           {"observedGeneration", s.observed_generation},
           {"activeSeconds", s.active_seconds},
           {"globalStep", s.global_step},
           {"tokens", s.tokens},
           {"restarts", s.restarts}};
  put(out, "runId", s.run_id);
  put(out, "startTime", s.start_time);
  put(out, "completionTime", s.completion_time);
  put(out, "activeSince", s.active_since);
  if (s.first_step_active_seconds) out["firstStepActiveSeconds"] = *s.first_step_active_seconds;
  put(out, "loss", s.loss);
  put(out, "validationLoss", s.validation_loss);
  put(out, "goodput", s.goodput);
  put(out, "mergedFraction", s.merged_fraction);
  out["learners"] = {{"desired", s.learners.desired},
                     {"stepping", s.learners.stepping},
                     {"recovering", s.learners.recovering},
                     {"waiting", s.learners.waiting},
                     {"summary", s.learners.summary}};
  out["outerOptimizer"] = outer_json(s.outer);
  for (const Condition& c : s.conditions) out["conditions"].push_back(condition_json(c));
  for (const DatacenterStatus& d : s.datacenters) out["datacenters"].push_back(datacenter_json(d));
  for (const UnitStatus& u : s.units) out["units"].push_back(unit_json(u));
  for (const RetiredUnit& r : s.retired)
    out["retiredUnits"].push_back({{"name", r.name}, {"lastIncarnation", r.last_incarnation}});
  return out;
}

TrainingStatus parse_status(const json& v) {
  TrainingStatus s;
  s.phase = parse_run_phase(string_at(v, {"phase"})).value_or(RunPhase::kPending);
  s.run_id = string_at(v, {"runId"});
  s.observed_generation = int_at(v, {"observedGeneration"});
  s.start_time = time_at(v, "startTime");
  s.completion_time = time_at(v, "completionTime");
  s.active_seconds = std::max<std::int64_t>(int_at(v, {"activeSeconds"}), 0);
  s.active_since = time_at(v, "activeSince");
  if (at(v, {"firstStepActiveSeconds"}).is_number())
    s.first_step_active_seconds = int_at(v, {"firstStepActiveSeconds"});
  s.global_step = int_at(v, {"globalStep"});
  s.tokens = int_at(v, {"tokens"});
  s.loss = string_at(v, {"loss"});
  s.validation_loss = string_at(v, {"validationLoss"});
  s.goodput = string_at(v, {"goodput"});
  s.merged_fraction = string_at(v, {"mergedFraction"});
  s.restarts = count_at(v, {"restarts"});
  s.learners = {count_at(v, {"learners", "desired"}), count_at(v, {"learners", "stepping"}),
                count_at(v, {"learners", "recovering"}), count_at(v, {"learners", "waiting"}),
                string_at(v, {"learners", "summary"})};
  s.outer = parse_outer(at(v, {"outerOptimizer"}));
  parse_lists(v, s);
  return s;
}

}  // namespace archipelago::op
