#include "operator/local/report.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/local/report_page.h"

namespace archipelago::op {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxEvents = 2000;

std::optional<double> number(const json& line, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json& v = at(line, {key});
    if (v.is_number() && std::isfinite(v.get<double>())) return v.get<double>();
    if (v.is_array()) return static_cast<double>(v.size());
  }
  return std::nullopt;
}

json value(const std::optional<double>& v) { return v ? json(*v) : json(nullptr); }

// JSON inside <script>: a "</script>" in a message must not end it.
std::string for_script(const json& data) {
  const std::string text = data.dump(-1, ' ', false, json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') out += "\\u003c";
    else out += c;
  }
  return out;
}

}  // namespace

std::vector<MetricPoint> read_metrics(const std::string& jsonl, std::size_t max_points) {
  std::vector<MetricPoint> all;
  std::size_t from = 0;
  while (from < jsonl.size()) {
    const std::size_t end = std::min(jsonl.find('\n', from), jsonl.size());
    const json line = json::parse(std::string_view(jsonl).substr(from, end - from), nullptr, false);
    from = end + 1;
    if (!line.is_object()) continue;
    MetricPoint p;
    p.step = int_at(line, {"globalStep"}, int_at(line, {"step"}));
    p.loss = number(line, {"loss", "trainLoss"});
    p.validation_loss = number(line, {"validationLoss"});
    p.participants = number(line, {"participants", "members"});
    p.bytes_up = number(line, {"bytesUp"});
    p.bytes_down = number(line, {"bytesDown"});
    // An outer optimizer that fell back to a checkpoint writes a step again: the last word counts.
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
                          const std::vector<MetricPoint>& metrics, const std::vector<ReportEvent>& events) {
  json points = json::array();
  for (const auto& p : metrics)
    points.push_back({p.step, value(p.loss), value(p.validation_loss), value(p.participants), value(p.bytes_up),
                      value(p.bytes_down)});
  json timeline = json::object();
  for (const auto& [unit, segments] : record.timeline()) {
    json list = json::array();
    for (const auto& s : segments) list.push_back({s.from, s.to, static_cast<int>(s.state), s.incarnation});
    timeline[unit] = std::move(list);
  }
  json shown = json::array();
  const std::size_t skip = events.size() > kMaxEvents ? events.size() - kMaxEvents : 0;
  for (std::size_t i = skip; i < events.size(); ++i)
    shown.push_back({events[i].t, events[i].unit, events[i].text, events[i].chaos});
  const json data = {
      {"run", run}, {"summary", summary}, {"metrics", points}, {"timeline", timeline}, {"events", shown}};
  std::string page = kReportPage;
  const std::string mark = kReportMark;
  page.replace(page.find(mark), mark.size(), for_script(data));
  return page;
}

}  // namespace archipelago::op
