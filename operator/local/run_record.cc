#include "operator/local/run_record.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::op {

namespace {

using nlohmann::json;

constexpr double kMinCalmSeconds = 3;         // below it a rate is noise
constexpr std::size_t kMaxSegments = 20'000;  // of one unit; a sampler makes a few a minute

// A pause of the sampler itself (a suspended machine) is not the run's.
constexpr double kMaxGap = 10;

json optional_number(const std::optional<double>& v) {
  return v && std::isfinite(*v) ? json(*v) : json(nullptr);
}
json number_or_null(const json& document, std::string_view key) {
  const json& v = at(document, {key});
  return v.is_number() ? v : json(nullptr);
}

}  // namespace

const char* to_string(IslandState state) {
  switch (state) {
    case IslandState::kStepping:
      return "stepping";
    case IslandState::kWaiting:
      return "waiting";
    case IslandState::kRecovering:
      return "recovering";
    case IslandState::kDown:
      return "down";
  }
  return "down";
}

IslandState island_state(const std::optional<std::string>& phase) {
  if (!phase) return IslandState::kDown;
  if (*phase == "Stepping" || *phase == "Starved" || *phase == "Validating")
    return IslandState::kStepping;
  if (*phase == "Waiting" || *phase == "Finished") return IslandState::kWaiting;
  if (*phase == "Recovering" || *phase == "Joining" || *phase == "Seeding")
    return IslandState::kRecovering;
  return IslandState::kDown;
}

void RunRecord::observe_outer(const json& document) {
  outer_text_ = to_text(document);
  global_step_ = std::max(global_step_, int_at(document, {"globalStep"}));
  budget_ = int_at(document, {"budget"}, budget_);
  merged_tokens_ = std::max(merged_tokens_, number_at(document, {"mergedTokens"}));
  for (const auto& unit : at(document, {"units"})) {
    Unit& known = units_[string_at(unit, {"name"})];
    UnitTotals& told = known.told;
    if (const std::string dc = string_at(unit, {"datacenter"}); !dc.empty()) known.datacenter = dc;
    // Cumulative and journaled; a document from just after its restart may be a little behind what
    // was seen.
    told.incarnation = std::max(told.incarnation, int_at(unit, {"incarnation"}));
    told.steps = std::max(told.steps, int_at(unit, {"steps"}));
    told.tokens = std::max(told.tokens, int_at(unit, {"tokens"}));
    told.seconds_in_steps = std::max(told.seconds_in_steps, number_at(unit, {"stepSecondsTotal"}));
    told.exchange_seconds =
        std::max(told.exchange_seconds, number_at(unit, {"exchangeSecondsTotal"}));
    told.merged_rounds = std::max(told.merged_rounds, int_at(unit, {"mergedRounds"}));
    std::vector<double> recoveries;
    for (const auto& s : at(unit, {"recoverySeconds"})) {
      if (s.is_number()) recoveries.push_back(s.get<double>());
    }
    if (recoveries.size() >= told.recovery_seconds.size())
      told.recovery_seconds = std::move(recoveries);
  }
}

void RunRecord::observe_unit(const UnitSample& sample, double t) {
  Unit& unit = units_[sample.name];
  unit.datacenter = sample.datacenter;
  if (sample.incarnation > 0) {
    Incarnation& own = unit.own[sample.incarnation];
    own.steps = std::max(own.steps, sample.steps);
    own.tokens = std::max(own.tokens, sample.tokens);
    own.seconds_in_steps = std::max(own.seconds_in_steps, sample.seconds_in_steps);
    own.exchange_seconds = std::max(own.exchange_seconds, sample.exchange_seconds);
  }
  auto& segments = timeline_[sample.name];
  if (!segments.empty()) segments.back().to = t;
  const bool same =
      !segments.empty() && segments.back().state == sample.state &&
      (segments.back().incarnation == sample.incarnation || sample.state == IslandState::kDown);
  if (!same && segments.size() < kMaxSegments)
    segments.push_back({t, t, sample.state, sample.incarnation});
}

void RunRecord::observe_rate(const RunSample& sample, double dt) {
  const auto well =
      std::count_if(sample.units.begin(), sample.units.end(), [](const UnitSample& u) {
        return u.state == IslandState::kStepping || u.state == IslandState::kWaiting;
      });
  up_seconds_ += static_cast<double>(std::min<std::int64_t>(well, sample.desired_units)) * dt;
  const bool calm = sample.outer != nullptr && well >= sample.desired_units;
  if (!calm) {
    calm_from_ = global_step_ + interval_ + 1;
    calm_last_tokens_.reset();
  }
  if (!calm || global_step_ < calm_from_) return;
  if (calm_last_tokens_) {
    calm_seconds_ += dt;
    calm_tokens_ += merged_tokens_ - *calm_last_tokens_;
  }
  calm_last_tokens_ = merged_tokens_;
}

void RunRecord::observe(const RunSample& sample) {
  const double dt = any_ ? std::clamp(sample.t - last_t_, 0.0, kMaxGap) : 0;
  any_ = true;
  last_t_ = std::max(last_t_, sample.t);
  outer_incarnations_ = std::max(outer_incarnations_, sample.outer_incarnation);
  if (sample.outer != nullptr) observe_outer(*sample.outer);
  for (const auto& unit : sample.units) observe_unit(unit, sample.t);
  const bool stepped = std::any_of(units_.begin(), units_.end(), [](const auto& u) {
    return u.second.told.steps > 0 || std::any_of(u.second.own.begin(), u.second.own.end(),
                                                  [](const auto& i) { return i.second.steps > 0; });
  });
  if (!first_step_ && stepped) {
    first_step_ = sample.t;
    seconds_before_ = seconds_in_steps();
    calm_from_ = interval_ + 1;
    return;
  }
  if (!first_step_ || complete_) return;
  active_ += dt;
  desired_seconds_ += sample.desired_units * dt;
  observe_rate(sample, dt);
  if (budget_ > 0 && global_step_ >= budget_) complete_ = true;
}

UnitTotals RunRecord::totals(const std::string& name) const {
  const auto it = units_.find(name);
  if (it == units_.end()) return {};
  UnitTotals out = it->second.told;
  out.datacenter = it->second.datacenter;
  UnitTotals own;
  for (const auto& [number, incarnation] : it->second.own) {
    out.incarnation = std::max(out.incarnation, number);
    own.steps += incarnation.steps;
    own.tokens += incarnation.tokens;
    own.seconds_in_steps += incarnation.seconds_in_steps;
    own.exchange_seconds += incarnation.exchange_seconds;
  }
  // Either side may have missed the last moments of an incarnation, neither says too much.
  out.steps = std::max(out.steps, own.steps);
  out.tokens = std::max(out.tokens, own.tokens);
  out.seconds_in_steps = std::max(out.seconds_in_steps, own.seconds_in_steps);
  out.exchange_seconds = std::max(out.exchange_seconds, own.exchange_seconds);
  return out;
}

std::optional<double> RunRecord::goodput() const {
  if (desired_seconds_ <= 0) return std::nullopt;
  return (seconds_in_steps() - seconds_before_) / desired_seconds_;
}

double RunRecord::seconds_in_steps() const {
  double sum = 0;
  for (const auto& [name, unit] : units_) sum += totals(name).seconds_in_steps;
  return sum;
}

std::optional<double> RunRecord::useful_goodput() const {
  if (calm_seconds_ < kMinCalmSeconds || calm_tokens_ <= 0 || active_ <= 0) return std::nullopt;
  return merged_tokens_ / (calm_tokens_ / calm_seconds_ * active_);
}

std::optional<double> RunRecord::exchange_overhead() const {
  double exchange = 0;
  double steps = 0;
  for (const auto& [name, unit] : units_) {
    exchange += totals(name).exchange_seconds;
    steps += totals(name).seconds_in_steps;
  }
  if (steps <= 0) return std::nullopt;
  return exchange / steps;
}

std::optional<double> RunRecord::uptime() const {
  if (desired_seconds_ <= 0) return std::nullopt;
  return up_seconds_ / desired_seconds_;
}

json RunRecord::outer_document() const {
  return outer_text_.empty() ? json() : json::parse(outer_text_, nullptr, false);
}

json RunRecord::summary(const json& status) const {
  const json outer = outer_document();
  const auto count = [&](const char* unit_key, const std::string& unit) {
    for (const auto& u : at(status, {"units"})) {
      if (string_at(u, {"name"}) == unit) return int_at(u, {unit_key});
    }
    return std::int64_t{0};
  };
  json learners = json::array();
  std::int64_t tokens = 0;
  for (const auto& [name, unit] : units_) {
    const UnitTotals t = totals(name);
    tokens += t.tokens;
    learners.push_back({{"name", name},
                        {"datacenter", t.datacenter},
                        {"incarnations", std::max(t.incarnation, count("incarnation", name))},
                        {"steps", t.steps},
                        {"tokens", t.tokens},
                        {"secondsInSteps", t.seconds_in_steps},
                        {"restarts", count("restarts", name)},
                        {"disruptions", count("disruptions", name)},
                        {"recoverySeconds", t.recovery_seconds},
                        {"mergedRounds", t.merged_rounds}});
  }
  return {
      {"phase", string_at(status, {"phase"}, "Pending")},
      {"runId", string_at(outer, {"runId"}, string_at(status, {"runId"}))},
      {"globalStep", global_step_},
      {"budget", budget_},
      {"tokens", std::max(tokens, int_at(outer, {"tokens"}))},
      {"mergedFraction", number_or_null(outer, "mergedFraction")},
      {"trainLoss", number_or_null(outer, "loss")},
      {"validationLoss", number_or_null(outer, "validationLoss")},
      {"goodput", optional_number(goodput())},
      {"usefulGoodput", optional_number(useful_goodput())},
      {"uptime", optional_number(uptime())},
      {"elapsedSeconds", last_t_},
      {"secondsSinceFirstStep", active_},
      {"bytesUp", int_at(outer, {"bytesUp"})},
      {"bytesDown", int_at(outer, {"bytesDown"})},
      {"exchangeOverhead", optional_number(exchange_overhead())},
      {"learners", learners},
      {"outerOptimizer",
       {{"incarnations", std::max<std::int64_t>(outer_incarnations_,
                                                int_at(status, {"outerOptimizer", "incarnation"}))},
        {"rounds", int_at(outer, {"rounds"})},
        {"meanParticipants", number_or_null(outer, "meanParticipants")}}}};
}

json RunRecord::save() const {
  json units = json::object();
  for (const auto& [name, unit] : units_) {
    json own = json::array();
    for (const auto& [number, i] : unit.own)
      own.push_back({number, i.steps, i.tokens, i.seconds_in_steps, i.exchange_seconds});
    json segments = json::array();
    if (const auto it = timeline_.find(name); it != timeline_.end()) {
      for (const auto& s : it->second)
        segments.push_back({s.from, s.to, static_cast<int>(s.state), s.incarnation});
    }
    units[name] = {{"datacenter", unit.datacenter}, {"own", own}, {"segments", segments}};
  }
  return {{"version", 1},
          {"interval", interval_},
          {"lastT", last_t_},
          {"firstStep", optional_number(first_step_)},
          {"secondsBefore", seconds_before_},
          {"complete", complete_},
          {"desiredSeconds", desired_seconds_},
          {"upSeconds", up_seconds_},
          {"active", active_},
          {"calmSeconds", calm_seconds_},
          {"calmTokens", calm_tokens_},
          {"mergedTokens", merged_tokens_},
          {"outerIncarnations", outer_incarnations_},
          {"outer", outer_text_},
          {"units", units}};
}

Result<RunRecord> RunRecord::load(const json& saved) {
  if (int_at(saved, {"version"}) != 1)
    return fail(ErrorKind::kCorrupt, "no run record of a known version");
  try {
    return read(saved);
  } catch (const json::exception&) {
    return fail(ErrorKind::kCorrupt, "the run record has values of other types");
  }
}

RunRecord RunRecord::read(const json& saved) {
  RunRecord r(std::max<std::int64_t>(1, int_at(saved, {"interval"}, 1)));
  r.last_t_ = number_at(saved, {"lastT"});
  if (at(saved, {"firstStep"}).is_number()) r.first_step_ = number_at(saved, {"firstStep"});
  r.seconds_before_ = number_at(saved, {"secondsBefore"});
  r.complete_ = bool_at(saved, {"complete"});
  r.desired_seconds_ = number_at(saved, {"desiredSeconds"});
  r.up_seconds_ = number_at(saved, {"upSeconds"});
  r.active_ = number_at(saved, {"active"});
  r.calm_seconds_ = number_at(saved, {"calmSeconds"});
  r.calm_tokens_ = number_at(saved, {"calmTokens"});
  r.outer_incarnations_ = static_cast<int>(int_at(saved, {"outerIncarnations"}));
  r.outer_text_ = string_at(saved, {"outer"});
  if (const json outer = r.outer_document(); outer.is_object()) r.observe_outer(outer);
  r.merged_tokens_ = number_at(saved, {"mergedTokens"});
  r.calm_from_ = r.global_step_ + r.interval_ + 1;
  const json& units = at(saved, {"units"});
  if (!units.is_object()) return r;
  for (const auto& [name, unit] : units.items()) {
    Unit& u = r.units_[name];
    u.datacenter = string_at(unit, {"datacenter"});
    for (const auto& i : at(unit, {"own"})) {
      if (i.is_array() && i.size() == 5 && i[0].is_number_integer())
        u.own[i[0].get<std::int64_t>()] = {i[1].get<std::int64_t>(), i[2].get<std::int64_t>(),
                                           i[3].get<double>(), i[4].get<double>()};
    }
    for (const auto& s : at(unit, {"segments"})) {
      if (s.is_array() && s.size() == 4)
        r.timeline_[name].push_back({s[0].get<double>(), s[1].get<double>(),
                                     static_cast<IslandState>(std::clamp(s[2].get<int>(), 0, 3)),
                                     s[3].get<std::int64_t>()});
    }
  }
  return r;
}

}  // namespace archipelago::op
