#pragma once
// What `archipelago run` draws on a terminal. Pure: a state and a width give lines.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace archipelago::op {

struct DashboardIsland {
  std::string name;
  std::string phase;
  std::int64_t incarnation = 0;
  std::int64_t step = 0;
  double tokens_per_second = 0;
  std::string note;  // why it isn't stepping
};
struct DashboardDatacenter {
  std::string name;
  bool node_ready = true;
  std::vector<DashboardIsland> islands;
};

struct DashboardState {
  std::string run;
  std::string phase;
  double elapsed_seconds = 0;
  std::int64_t global_step = 0;
  std::int64_t budget = 0;
  std::optional<double> steps_per_second;  // of late, for the time left
  std::optional<double> loss;
  std::optional<double> validation_loss;
  std::optional<double> goodput;
  std::optional<double> mean_participants;
  std::int64_t bytes_up = 0;
  std::int64_t bytes_down = 0;
  std::string outer_phase;  // empty: not answering
  std::int64_t outer_incarnation = 0;
  std::int64_t checkpoint_step = 0;
  std::vector<DashboardDatacenter> datacenters;
  std::vector<std::string> events;  // newest last
};

// No line is wider than `width` columns; at most `height` lines (the events give way).
[[nodiscard]] std::vector<std::string> render_dashboard(const DashboardState& state, int width,
                                                        int height, bool color);
// "1:02:03" or "4:05".
[[nodiscard]] std::string show_duration(double seconds);
[[nodiscard]] std::string show_size(std::int64_t bytes);  // "12.3 MB"

// Columns of a line: escape sequences count nothing, a UTF-8 sequence one.
[[nodiscard]] int columns_of(const std::string& line);

}  // namespace archipelago::op
