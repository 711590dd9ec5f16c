#include "cli/print_status.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/api/status.h"

namespace archipelago::cli {
namespace {

using nlohmann::json;

__attribute__((format(printf, 2, 3))) void add(std::string& out, const char* format, ...) {
  std::array<char, 2048> line{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  out += line.data();
}

const char* or_dash(const std::string& text) { return text.empty() ? "-" : text.c_str(); }

void add_unit(std::string& out, const op::UnitStatus& unit) {
  std::string note = unit.reason;
  if (unit.last_failure && note.empty())
    note = "last: " + std::string(op::to_string(unit.last_failure->reason));
  add(out, "  %-18s %-12s #%-3lld step %-8lld restarts %d, disruptions %d  %s\n", unit.name.c_str(),
      std::string(op::to_string(unit.phase)).c_str(), static_cast<long long>(unit.incarnation),
      static_cast<long long>(unit.local_step), unit.restarts, unit.disruptions, note.c_str());
}

}  // namespace

std::string status_text(const json& training) {
  const op::TrainingStatus status = op::parse_status(op::at(training, {"status"}));
  std::string out;
  add(out, "%s  %s  step %lld  loss %s  validation %s  goodput %s  stepping %s\n",
      op::string_at(training, {"metadata", "name"}).c_str(),
      std::string(op::to_string(status.phase)).c_str(), static_cast<long long>(status.global_step),
      or_dash(status.loss), or_dash(status.validation_loss), or_dash(status.goodput),
      status.learners.summary.c_str());
  add(out, "  %-18s %-12s #%-3lld checkpoint at step %lld\n", "outer optimizer",
      status.outer.since ? "Ready" : "-", static_cast<long long>(status.outer.incarnation),
      static_cast<long long>(status.outer.last_checkpoint_step));
  for (const auto& unit : status.units) add_unit(out, unit);
  for (const auto& c : status.conditions)
    add(out, "  %-24s %-6s %s%s%s\n", c.type.c_str(), c.status ? "True" : "False", c.reason.c_str(),
        c.message.empty() ? "" : ": ", c.message.c_str());
  return out;
}

std::string runs_table(const std::vector<json>& trainings, bool with_namespace) {
  std::string out;
  std::size_t wide = 4;
  std::size_t wide_space = 9;
  for (const json& t : trainings) {
    wide = std::max(wide, op::string_at(t, {"metadata", "name"}).size());
    wide_space = std::max(wide_space, op::string_at(t, {"metadata", "namespace"}).size());
  }
  const auto row = [&](const std::string& space, const std::string& name, const std::string& phase,
                       const std::string& units, const std::string& step, const std::string& loss,
                       const std::string& goodput) {
    if (with_namespace) add(out, "%-*s  ", static_cast<int>(wide_space), space.c_str());
    add(out, "%-*s  %-10s %-9s %-10s %-8s %s\n", static_cast<int>(wide), name.c_str(),
        phase.c_str(), units.c_str(), step.c_str(), loss.c_str(), goodput.c_str());
  };
  row("NAMESPACE", "NAME", "PHASE", "LEARNERS", "STEP", "LOSS", "GOODPUT");
  for (const json& t : trainings) {
    const op::TrainingStatus s = op::parse_status(op::at(t, {"status"}));
    row(op::string_at(t, {"metadata", "namespace"}), op::string_at(t, {"metadata", "name"}),
        std::string(op::to_string(s.phase)), or_dash(s.learners.summary),
        std::to_string(s.global_step), or_dash(s.loss), or_dash(s.goodput));
  }
  return out;
}

}  // namespace archipelago::cli
