#include "operator/local/chaos.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace archipelago::op {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxEvents = 10'000;
constexpr double kMaxSeconds = 1e7;

class Parser {
 public:
  Parser(const ChaosNames& names, std::vector<std::string>* errors)
      : names_(names), errors_(errors) {}

  void error(const std::string& path, const std::string& text) {
    errors_->push_back(path + ": " + text);
  }

  bool object(const json& value, const std::string& path,
              std::initializer_list<const char*> allowed) {
    if (!value.is_object()) {
      error(path, "expected a mapping, given " + value.dump());
      return false;
    }
    std::string list;
    for (const char* name : allowed) list += std::string(list.empty() ? "" : ", ") + name;
    for (const auto& [key, unused] : value.items()) {
      if (std::find(allowed.begin(), allowed.end(), key) == allowed.end())
        error(path + "." + key, "unknown field, allowed: " + list);
    }
    return true;
  }

  std::optional<double> number(const json& parent, const char* key, const std::string& path,
                               double lo, double hi, bool integral = false) {
    const auto it = parent.find(key);
    if (it == parent.end()) return std::nullopt;
    const double v = it->is_number() ? it->get<double>() : std::nan("");
    if (std::isfinite(v) && v >= lo && v <= hi && (!integral || v == std::floor(v))) return v;
    error(path + "." + key, "given " + it->dump() +
                                ", allowed: " + (integral ? "a whole number" : "a number") +
                                " from " + json(lo).dump() + " to " + json(hi).dump());
    return std::nullopt;
  }

  std::string text(const json& parent, const char* key, const std::string& path) {
    const auto it = parent.find(key);
    if (it == parent.end()) return {};
    if (it->is_string()) return it->get<std::string>();
    error(path + "." + key, "given " + it->dump() + ", expected text");
    return {};
  }

  std::optional<ChaosAction> action(const json& event, const std::string& path);
  void target(const json& event, const std::string& path, ChaosAction* out);

 private:
  const ChaosNames& names_;
  std::vector<std::string>* errors_;
};

std::string join(const std::set<std::string>& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

void Parser::target(const json& event, const std::string& path, ChaosAction* out) {
  out->target = text(event, "target", path);
  if (event.contains("datacenter")) error(path + ".datacenter", "only for action lose");
  if (out->target == kChaosRandom || names_.units.contains(out->target)) return;
  if (out->target == kChaosOuterOptimizer) {
    if (out->kind != ChaosKind::kKill && out->kind != ChaosKind::kHang)
      error(path + ".action", std::string(to_string(out->kind)) +
                                  " works on islands, allowed for outer-optimizer: kill, hang");
    return;
  }
  error(path + ".target",
        "given \"" + out->target + "\", allowed: random, outer-optimizer, " + join(names_.units));
}

std::optional<ChaosAction> Parser::action(const json& event, const std::string& path) {
  ChaosAction out;
  const std::string name = text(event, "action", path);
  const std::pair<const char*, ChaosKind> kinds[] = {{"kill", ChaosKind::kKill},
                                                     {"hang", ChaosKind::kHang},
                                                     {"evict", ChaosKind::kEvict},
                                                     {"slow", ChaosKind::kSlow},
                                                     {"lose", ChaosKind::kLose}};
  const auto* found = std::find_if(std::begin(kinds), std::end(kinds),
                                   [&](const auto& k) { return name == k.first; });
  if (found == std::end(kinds)) {
    error(path + ".action", "given \"" + name + "\", allowed: kill, hang, evict, slow, lose");
    return std::nullopt;
  }
  out.kind = found->second;
  if (out.kind == ChaosKind::kLose) {
    out.datacenter = text(event, "datacenter", path);
    if (event.contains("target")) error(path + ".target", "action lose takes datacenter instead");
    if (!names_.datacenters.contains(out.datacenter))
      error(path + ".datacenter",
            "given \"" + out.datacenter + "\", allowed: " + join(names_.datacenters));
  } else {
    target(event, path, &out);
  }
  const bool timed = out.kind == ChaosKind::kSlow || out.kind == ChaosKind::kLose;
  if (!timed && event.contains("seconds"))
    error(path + ".seconds", "only for actions slow and lose");
  if (timed && !event.contains("seconds")) error(path + ".seconds", "missing: how long it lasts");
  out.seconds = number(event, "seconds", path, 0, kMaxSeconds).value_or(0);
  if (out.kind == ChaosKind::kSlow) {
    if (!event.contains("factor"))
      error(path + ".factor", "missing: a step takes this many times as long");
    out.factor = number(event, "factor", path, 1, 1000).value_or(1);
  } else if (event.contains("factor")) {
    error(path + ".factor", "only for action slow");
  }
  return out;
}

// Times of a rate, in seconds since the first global step: exponential gaps, or `count` uniform
// moments in `duration`.
std::vector<double> draw_rate(Parser& parser, const json& rate, const std::string& path,
                              std::uint64_t file_seed) {
  if (!parser.object(rate, path,
                     {"everySeconds", "count", "durationSeconds", "startSeconds", "seed"}))
    return {};
  const auto every = parser.number(rate, "everySeconds", path, 0.1, kMaxSeconds);
  const auto count = parser.number(rate, "count", path, 1, kMaxEvents, true);
  const auto duration = parser.number(rate, "durationSeconds", path, 0.1, kMaxSeconds);
  const double start = parser.number(rate, "startSeconds", path, 0, kMaxSeconds).value_or(0);
  const auto seed = parser.number(rate, "seed", path, 0, 1e15, true);
  Rng rng(seed ? static_cast<std::uint64_t>(*seed) : mix64(file_seed));
  std::vector<double> times;
  if (!every) {
    if (!count || !duration) {
      parser.error(path,
                   "give everySeconds with count or durationSeconds (or both), or count with "
                   "durationSeconds");
      return times;
    }
    for (int i = 0; i < static_cast<int>(*count); ++i)
      times.push_back(start + rng.uniform() * *duration);
    std::sort(times.begin(), times.end());
    return times;
  }
  if (!count && !duration) {
    parser.error(path, "give count or durationSeconds: a rate without an end isn't supported");
    return times;
  }
  for (double t = start + rng.exponential(*every); times.size() < kMaxEvents;
       t += rng.exponential(*every)) {
    if (duration && t > start + *duration) break;
    if (count && times.size() >= static_cast<std::size_t>(*count)) break;
    times.push_back(t);
  }
  return times;
}

void parse_event(Parser& parser, const json& event, const std::string& path, std::uint64_t seed,
                 std::vector<ChaosEvent>* out) {
  if (!parser.object(
          event, path,
          {"atStep", "atSeconds", "rate", "action", "target", "datacenter", "factor", "seconds"}))
    return;
  const auto moments = event.count("atStep") + event.count("atSeconds") + event.count("rate");
  if (moments != 1) parser.error(path, "give exactly one of atStep, atSeconds, rate");
  const auto step = parser.number(event, "atStep", path, 0, 1e15, true);
  const auto at = parser.number(event, "atSeconds", path, 0, kMaxSeconds);
  std::vector<double> rate;
  if (event.contains("rate")) rate = draw_rate(parser, event.at("rate"), path + ".rate", seed);
  const auto action = parser.action(event, path);
  if (!action || moments != 1) return;
  if (step) out->push_back({static_cast<std::int64_t>(*step), std::nullopt, *action});
  if (at) out->push_back({std::nullopt, *at, *action});
  for (const double t : rate) out->push_back({std::nullopt, t, *action});
}

}  // namespace

const char* to_string(ChaosKind kind) {
  switch (kind) {
    case ChaosKind::kKill:
      return "kill";
    case ChaosKind::kHang:
      return "hang";
    case ChaosKind::kEvict:
      return "evict";
    case ChaosKind::kSlow:
      return "slow";
    case ChaosKind::kLose:
      return "lose";
  }
  return "?";
}

Result<ChaosSchedule> ChaosSchedule::parse(const json& file, const ChaosNames& names) {
  std::vector<std::string> errors;
  Parser parser(names, &errors);
  ChaosSchedule schedule;
  if (parser.object(file, "chaos", {"seed", "events"})) {
    const auto seed =
        static_cast<std::uint64_t>(parser.number(file, "seed", "chaos", 0, 1e15, true).value_or(1));
    schedule.rng_ = Rng(seed);
    if (!file.contains("events") || !file.at("events").is_array()) {
      parser.error("chaos.events", "missing: a list of events");
    } else {
      const json& events = file.at("events");
      for (std::size_t i = 0; i < events.size() && i < kMaxEvents; ++i)
        parse_event(parser, events[i], "chaos.events[" + std::to_string(i) + "]", seed + i,
                    &schedule.events_);
    }
  }
  if (schedule.events_.size() > kMaxEvents)
    parser.error("chaos.events", "more than " + std::to_string(kMaxEvents) + " events");
  if (errors.empty()) return schedule;
  std::string text;
  for (const auto& line : errors) text += (text.empty() ? "" : "\n") + line;
  return fail(ErrorKind::kInvalid, text);
}

void ChaosSchedule::skip_until(std::int64_t global_step, double seconds) {
  std::erase_if(events_, [&](const ChaosEvent& e) {
    return (e.at_step && *e.at_step <= global_step) || (e.at_seconds && *e.at_seconds <= seconds);
  });
}

std::vector<ChaosAction> ChaosSchedule::due(const ChaosView& view) {
  std::vector<ChaosAction> out;
  std::erase_if(events_, [&](const ChaosEvent& event) {
    const bool now = (event.at_step && view.global_step >= *event.at_step) ||
                     (event.at_seconds && view.seconds && *view.seconds >= *event.at_seconds);
    if (!now) return false;
    ChaosAction action = event.action;
    if (action.target == kChaosRandom) {
      if (view.live_units.empty()) return false;
      action.target = view.live_units[rng_.below(view.live_units.size())];
    }
    out.push_back(std::move(action));
    return true;
  });
  return out;
}

}  // namespace archipelago::op
