// What `archipelago run` shows while it runs.
#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/run_session.h"
#include "operator/api/json.h"

namespace archipelago::cli {

namespace {

using nlohmann::json;

constexpr double kDrawEvery = 0.25;
constexpr double kLineEvery = 10;
constexpr std::size_t kEventLines = 12;

std::optional<double> optional_number(const json& document, std::string_view key) {
  const json& v = op::at(document, {key});
  return v.is_number() ? std::optional(v.get<double>()) : std::nullopt;
}

std::string unit_phase(const op::UnitStatus& unit, const std::shared_ptr<const json>& answer) {
  if (!answer || unit.phase == op::UnitPhase::kFailed || unit.phase == op::UnitPhase::kUnreachable)
    return std::string(op::to_string(unit.phase));
  return op::string_at(*answer, {"phase"}, op::to_string(unit.phase));
}

}  // namespace

op::DashboardState RunSession::dashboard() const {
  static const json kNothing;
  const json& outer = outer_ ? *outer_ : kNothing;
  op::DashboardState s;
  s.run = training_.name;
  s.phase = op::to_string(status_.phase);
  s.elapsed_seconds = events_->now();
  s.global_step = record_.global_step();
  s.budget = training_.spec.budget.global_steps;
  if (pace_.size() > 1 && pace_.back().first > pace_.front().first)
    s.steps_per_second = static_cast<double>(pace_.back().second - pace_.front().second) /
                         (pace_.back().first - pace_.front().first);
  const json last = record_.outer_document();
  s.loss = optional_number(last, "loss");
  s.validation_loss = optional_number(last, "validationLoss");
  s.goodput = record_.goodput();
  s.mean_participants = optional_number(last, "meanParticipants");
  s.bytes_up = op::int_at(last, {"bytesUp"});
  s.bytes_down = op::int_at(last, {"bytesDown"});
  s.checkpoint_step = op::int_at(last, {"lastCheckpointStep"});
  s.outer_phase = op::string_at(outer, {"phase"});
  s.outer_incarnation = status_.outer.incarnation;
  const auto pods = kubelet_->running();
  for (const auto& dc : training_.spec.datacenters) {
    op::DashboardDatacenter view{dc.name, true, {}};
    if (auto node = cluster_->get(op::Kind::kNode, {"", dc.name})) {
      for (const auto& c : op::at(node->status(), {"conditions"}))
        view.node_ready = view.node_ready && op::string_at(c, {"status"}) == "True";
    }
    for (const auto& unit : status_.units) {
      if (!unit.name.starts_with(dc.name + "-") || unit.name.rfind('-') != dc.name.size()) continue;
      const op::UnitSample sampled = sample_unit(unit, pods);
      std::shared_ptr<const json> answer;
      for (const auto& pod : pods) {
        if (pod.unit == unit.name && pod.incarnation == sampled.incarnation)
          answer = sampler_->latest(pod.uid).document;
      }
      view.islands.push_back({unit.name, unit_phase(unit, answer), sampled.incarnation,
                              record_.totals(unit.name).steps, sampled.tokens_per_second,
                              unit.reason});
    }
    s.datacenters.push_back(std::move(view));
  }
  s.events = events_->last(kEventLines);
  return s;
}

void RunSession::draw() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
  const auto lines =
      op::render_dashboard(dashboard(), size.ws_col, std::max(4, size.ws_row - 1), true);
  std::string out = drawn_lines_ > 0 ? "\x1b[" + std::to_string(drawn_lines_) + "A\r" : "";
  for (const auto& line : lines) out += line + "\x1b[K\n";
  out += "\x1b[J";
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
  drawn_lines_ = static_cast<int>(lines.size());
}

void RunSession::print_progress() {
  const op::DashboardState s = dashboard();
  std::string text = op::show_duration(s.elapsed_seconds) + "  step " +
                     std::to_string(s.global_step) + "/" + std::to_string(s.budget);
  const auto add = [&](const char* name, const std::optional<double>& v) {
    char number[32];
    if (v) std::snprintf(number, sizeof number, "%.4f", *v);
    if (v) text += std::string("  ") + name + " " + number;
  };
  add("loss", s.loss);
  add("validation", s.validation_loss);
  add("goodput", s.goodput);
  text += "  stepping " + status_.learners.summary;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void RunSession::show() {
  if (options_.terminal) {
    next_show_ = events_->now() + kDrawEvery;
    draw();
    return;
  }
  next_show_ = events_->now() + kLineEvery;
  if (record_.first_step_at()) print_progress();
}

}  // namespace archipelago::cli
