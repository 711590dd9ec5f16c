#include "operator/local/dashboard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace archipelago::op {

namespace {

constexpr const char* kReset = "\x1b[0m";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kBlue = "\x1b[34m";
constexpr std::size_t kNameWidth = 16;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char buffer[256];
  const int length = std::snprintf(buffer, sizeof buffer, pattern, args...);
  return std::string(
      buffer, static_cast<std::size_t>(std::clamp(length, 0, static_cast<int>(sizeof buffer) - 1)));
}

bool continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// Cut to `width` columns; escapes stay, so that the color ends.
std::string cut(const std::string& line, int width) {
  std::string out;
  int columns = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      const auto end = line.find('m', i);
      if (end == std::string::npos) break;
      out += line.substr(i, end - i + 1);
      i = end;
      continue;
    }
    if (!continuation(line[i]) && ++columns > width) break;
    if (static_cast<unsigned char>(line[i]) >= 0x20) out += line[i];
  }
  return columns > width && out.find('\x1b') != std::string::npos ? out + kReset : out;
}

std::string pad(const std::string& text, std::size_t width) {
  const auto columns = static_cast<std::size_t>(columns_of(text));
  return columns >= width ? text : text + std::string(width - columns, ' ');
}

class Painter {
 public:
  Painter(int width, bool color) : width_(width), color_(color) {}
  std::string paint(const char* code, const std::string& text) const {
    return color_ ? code + text + kReset : text;
  }
  void line(const std::string& text) { lines_.push_back(cut(text, width_)); }
  std::vector<std::string>& lines() { return lines_; }
  int width() const { return width_; }

 private:
  int width_;
  bool color_;
  std::vector<std::string> lines_;
};

const char* phase_color(const std::string& phase) {
  if (phase == "Stepping" || phase == "Running" || phase == "Succeeded" || phase == "Finished")
    return kGreen;
  if (phase == "Recovering" || phase == "Starting" || phase == "Waiting" || phase == "Pending" ||
      phase == "Starved")
    return kYellow;
  if (phase == "Suspended" || phase == "Backoff") return kBlue;
  return kRed;
}

std::string number(const std::optional<double>& v, const char* pattern = "%.4f") {
  return v && std::isfinite(*v) ? format(pattern, *v) : "-";
}

std::string progress_bar(double fraction, int cells) {
  std::string bar;
  const double filled = std::clamp(fraction, 0.0, 1.0) * cells;
  for (int i = 0; i < cells; ++i) bar += i + 1 <= filled ? "█" : (i < filled ? "▌" : "░");
  return bar;
}

void draw_head(const DashboardState& s, Painter& p) {
  p.line(p.paint(kBold, s.run) + "  " + p.paint(phase_color(s.phase), s.phase) + "  " +
         p.paint(kDim, show_duration(s.elapsed_seconds)));
  const double fraction =
      s.budget > 0 ? static_cast<double>(s.global_step) / static_cast<double>(s.budget) : 0;
  std::string left = "-";
  if (s.steps_per_second && *s.steps_per_second > 0)
    left = show_duration(static_cast<double>(s.budget - s.global_step) / *s.steps_per_second) +
           " left";
  const std::string text =
      format("  step %lld/%lld  %3.0f%%  ", static_cast<long long>(s.global_step),
             static_cast<long long>(s.budget), 100 * fraction) +
      left;
  const int cells = std::clamp(p.width() - columns_of(text), 4, 50);
  p.line(p.paint(kGreen, progress_bar(fraction, cells)) + text);
  p.line("loss " + number(s.loss) + "   validation " + number(s.validation_loss) + "   goodput " +
         number(s.goodput, "%.3f") + "   participants " + number(s.mean_participants, "%.2f") +
         "   up " + show_size(s.bytes_up) + "   down " + show_size(s.bytes_down));
}

void draw_outer(const DashboardState& s, Painter& p) {
  const std::string phase = s.outer_phase.empty() ? "away" : s.outer_phase;
  const char* color = s.outer_phase.empty() ? kRed : kGreen;
  p.line(pad("outer optimizer", kNameWidth + 2) + pad(p.paint(color, phase), 12) +
         format(" #%-3lld checkpoint at step %lld", static_cast<long long>(s.outer_incarnation),
                static_cast<long long>(s.checkpoint_step)));
}

void draw_datacenter(const DashboardDatacenter& dc, Painter& p) {
  p.line(p.paint(kBold, dc.name) + (dc.node_ready ? "" : "  " + p.paint(kRed, "node lost")));
  for (const auto& island : dc.islands) {
    p.line("  " + pad(island.name, kNameWidth) +
           pad(p.paint(phase_color(island.phase), island.phase), 12) +
           format(" #%-3lld step %-7lld %8.0f tok/s  ", static_cast<long long>(island.incarnation),
                  static_cast<long long>(island.step), island.tokens_per_second) +
           p.paint(kDim, island.note));
  }
}

}  // namespace

int columns_of(const std::string& line) {
  int columns = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      const auto end = line.find('m', i);
      if (end == std::string::npos) break;
      i = end;
    } else if (!continuation(line[i])) {
      ++columns;
    }
  }
  return columns;
}

std::string show_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const auto total = static_cast<long long>(std::min(seconds, 1e9));
  if (total >= 3600) return format("%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  return format("%lld:%02lld", total / 60, total % 60);
}

std::string show_size(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e12) return format("%.1f TB", value / 1e12);
  if (value >= 1e9) return format("%.1f GB", value / 1e9);
  if (value >= 1e6) return format("%.1f MB", value / 1e6);
  return format("%.1f kB", value / 1e3);
}

std::vector<std::string> render_dashboard(const DashboardState& state, int width, int height,
                                          bool color) {
  Painter p(std::max(20, width), color);
  draw_head(state, p);
  p.line("");
  draw_outer(state, p);
  for (const auto& dc : state.datacenters) draw_datacenter(dc, p);
  const int left = std::max(0, height - static_cast<int>(p.lines().size()) - 1);
  const std::size_t shown = std::min(state.events.size(), static_cast<std::size_t>(left));
  if (shown > 0) p.line("");
  for (std::size_t i = state.events.size() - shown; i < state.events.size(); ++i)
    p.line(state.events[i]);
  if (static_cast<int>(p.lines().size()) > height)
    p.lines().resize(static_cast<std::size_t>(std::max(1, height)));
  return std::move(p.lines());
}

}  // namespace archipelago::op
