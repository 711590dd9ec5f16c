#pragma once
// report.html: one self-contained page. Pure: data in, text out.
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "operator/local/run_record.h"

namespace archipelago::op {

// A line of metrics.jsonl, as far as the report draws it.
struct MetricPoint {
  std::int64_t step = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;  // where a new one became known; it is of validation_step
  std::int64_t validation_step = 0;
  std::optional<double> participants;
  std::optional<double> bytes_up;  // of this step
  std::optional<double> bytes_down;
};
// Lines that are no JSON (a torn last one) are left out. At most `max_points`, evenly chosen;
// validation points stay.
[[nodiscard]] std::vector<MetricPoint> read_metrics(const std::string& jsonl,
                                                    std::size_t max_points = 3000);

struct ReportEvent {
  double t = 0;  // active seconds
  std::string unit;
  std::string text;
  bool chaos = false;
};

[[nodiscard]] std::string render_report(const std::string& run, const nlohmann::json& summary,
                                        const RunRecord& record,
                                        const std::vector<MetricPoint>& metrics,
                                        const std::vector<ReportEvent>& events);

}  // namespace archipelago::op
