#include "operator/local/report.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/local/report_page.h"

namespace archipelago::op {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxEvents = 2000;

std::optional<double> number(const json& line, std::string_view key) {
  const json& v = at(line, {key});
  if (v.is_number() && std::isfinite(v.get<double>())) return v.get<double>();
  return std::nullopt;
}

json value(const std::optional<double>& v) { return v ? json(*v) : json(nullptr); }

// JSON inside <script>: a "</script>" in a message must not end it.
std::string for_script(const json& data) {
  const std::string text = data.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::vector<MetricPoint> read_metrics(const std::string& jsonl, std::size_t max_points) {
  std::vector<MetricPoint> all;
  std::optional<double> up_before;
  std::optional<double> down_before;
  std::int64_t validated = 0;
  // The tape counts bytes from the start of the run.
  const auto of_step = [](std::optional<double> now,
                          std::optional<double>* before) -> std::optional<double> {
    const auto last = std::exchange(*before, now);
    if (!now || !last) return std::nullopt;
    return std::max(0.0, *now - *last);
  };
  std::size_t from = 0;
  while (from < jsonl.size()) {
    const std::size_t end = std::min(jsonl.find('\n', from), jsonl.size());
    const json line = json::parse(std::string_view(jsonl).substr(from, end - from), nullptr, false);
    from = end + 1;
    if (!line.is_object()) continue;
    MetricPoint p;
    p.step = int_at(line, {"t"});
    p.loss = number(line, "loss");
    p.participants = number(line, "participants");
    p.bytes_up = of_step(number(line, "bytesUp"), &up_before);
    p.bytes_down = of_step(number(line, "bytesDown"), &down_before);
    if (const std::int64_t step = int_at(line, {"validationStep"}); step > validated) {
      validated = step;
      p.validation_step = step;
      p.validation_loss = number(line, "validationLoss");
    }
    // After a fall back to a checkpoint a step is written again: the last word counts.
    while (!all.empty() && all.back().step >= p.step) all.pop_back();
    all.push_back(p);
  }
  if (all.size() <= max_points) return all;
  std::vector<MetricPoint> chosen;
  const std::size_t stride = (all.size() + max_points - 1) / max_points;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % stride == 0 || i + 1 == all.size() || all[i].validation_loss) chosen.push_back(all[i]);
  }
  return chosen;
}

std::string render_report(const std::string& run, const json& summary, const RunRecord& record,
                          const std::vector<MetricPoint>& metrics,
                          const std::vector<ReportEvent>& events) {
  json points = json::array();
  for (const auto& p : metrics)
    points.push_back({p.step, value(p.loss), value(p.validation_loss), value(p.participants),
                      value(p.bytes_up), value(p.bytes_down), p.validation_step});
  // The last validation comes after the last line of the tape.
  const json& final_loss = at(summary, {"validationLoss"});
  const std::int64_t final_step = int_at(summary, {"globalStep"});
  if (final_loss.is_number() && !metrics.empty() && metrics.back().step <= final_step)
    points.push_back({final_step, nullptr, final_loss, nullptr, nullptr, nullptr, final_step});
  json timeline = json::object();
  for (const auto& [unit, segments] : record.timeline()) {
    json list = json::array();
    for (const auto& s : segments)
      list.push_back({s.from, s.to, static_cast<int>(s.state), s.incarnation});
    timeline[unit] = std::move(list);
  }
  json shown = json::array();
  const std::size_t skip = events.size() > kMaxEvents ? events.size() - kMaxEvents : 0;
  for (std::size_t i = skip; i < events.size(); ++i)
    shown.push_back({events[i].t, events[i].unit, events[i].text, events[i].chaos});
  const json data = {{"run", run},
                     {"summary", summary},
                     {"metrics", points},
                     {"timeline", timeline},
                     {"events", shown}};
  std::string page = kReportPage;
  const std::string mark = kReportMark;
  page.replace(page.find(mark), mark.size(), for_script(data));
  return page;
}

}  // namespace archipelago::op
