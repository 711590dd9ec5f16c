#include "simulator/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace archipelago::simulator {

namespace {

double deviation(const Comparison& comparison, double reference, double value) {
  if (!comparison.relative) return value - reference;
  return reference == 0 ? std::numeric_limits<double>::quiet_NaN()
                        : 100 * (value - reference) / reference;
}

std::string number(const Comparison& comparison, double value) {
  if (std::isnan(value)) return "-";
  if (comparison.relative) return two_digits(value);
  return format(std::abs(value) < 10 ? "%.2f" : "%.1f", value);
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string summary(const Comparison& comparison, std::size_t series) {
  const Errors e = errors(comparison, series);
  if (e.cells == 0) return "";
  const char* unit = comparison.relative ? "%" : "";
  return "error of " + comparison.series[series].name + ": RMS " + format("%.2f", e.rms) + unit +
         " (fitted half " + format("%.2f", e.rms_fitted) + unit + ", other half " +
         format("%.2f", e.rms_other) + unit + "), worst " + format("%+.2f", e.worst) + unit +
         ", cells " + std::to_string(e.cells) + "\n";
}

}  // namespace

std::string format(const char* pattern, double value) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), pattern, value);
  return buffer.data();
}

std::string two_digits(double value) {
  if (value >= 9.95) return format("%.0f", value);
  return format(value >= 0.995 ? "%.1f" : "%.2f", value);
}

Errors errors(const Comparison& comparison, std::size_t series) {
  Errors out;
  if (!comparison.against_first || series == 0) return out;
  std::array<double, 2> sums{};
  std::array<int, 2> counts{};
  for (std::size_t r = 0; r < comparison.rows.size(); ++r)
    for (std::size_t c = 0; c < comparison.columns.size(); ++c) {
      const double d = deviation(comparison, comparison.series[0].cells[r][c],
                                 comparison.series[series].cells[r][c]);
      if (std::isnan(d)) continue;
      const std::size_t half = in_fitted_half(r, c) ? 0 : 1;
      sums[half] += d * d;
      ++counts[half];
      if (std::abs(d) > std::abs(out.worst)) out.worst = d;
    }
  const auto root = [](double sum, int count) { return count == 0 ? 0 : std::sqrt(sum / count); };
  out.cells = counts[0] + counts[1];
  out.rms = root(sums[0] + sums[1], out.cells);
  out.rms_fitted = root(sums[0], counts[0]);
  out.rms_other = root(sums[1], counts[1]);
  return out;
}

std::string text(const Comparison& comparison) {
  std::size_t label = 12;
  for (const auto& row : comparison.rows) label = std::max(label, row.size() + 1);
  for (const auto& series : comparison.series) label = std::max(label, series.name.size() + 4);
  constexpr std::size_t kCell = 15;
  std::string out = comparison.title + " [" + comparison.unit + "]\n" + padded("", label);
  for (const auto& column : comparison.columns) out += padded(column, kCell);
  for (std::size_t r = 0; r < comparison.rows.size(); ++r) {
    out += "\n" + comparison.rows[r];
    for (std::size_t s = 0; s < comparison.series.size(); ++s) {
      const auto& cells = comparison.series[s].cells[r];
      if (s > 0 && std::all_of(cells.begin(), cells.end(), [](double v) { return std::isnan(v); }))
        continue;
      out += "\n" + padded("  " + comparison.series[s].name, label);
      for (std::size_t c = 0; c < cells.size(); ++c) {
        std::string cell = number(comparison, cells[c]);
        const double d = deviation(comparison, comparison.series[0].cells[r][c], cells[c]);
        if (s > 0 && comparison.against_first && !std::isnan(d))
          cell += format(comparison.relative       ? " (%+.0f%%)"
                         : std::abs(cells[c]) < 10 ? " (%+.2f)"
                                                   : " (%+.1f)",
                         d);
        out += padded(cell, kCell);
      }
    }
  }
  out += "\n";
  for (std::size_t s = 1; s < comparison.series.size(); ++s) out += summary(comparison, s);
  for (const auto& note : comparison.notes) out += note + "\n";
  return out;
}

namespace {

constexpr double kWidth = 760, kHeight = 440, kLeft = 60, kRight = 250, kTop = 40, kBottom = 50;
constexpr std::array<const char*, 8> kColours{"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                              "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};
constexpr std::array<const char*, 4> kDashes{"", "", "6 3", "2 3"};

struct Plot {
  double low = 0, high = 1;
  std::size_t columns = 1;
  [[nodiscard]] double x(std::size_t c) const {
    const double share =
        columns < 2 ? 0.5 : static_cast<double>(c) / static_cast<double>(columns - 1);
    return kLeft + (kWidth - kLeft - kRight) * share;
  }
  [[nodiscard]] double y(double value) const {
    return kHeight - kBottom - (kHeight - kTop - kBottom) * (value - low) / (high - low);
  }
};

std::string escaped(const std::string& raw) {
  std::string out;
  for (const char c : raw) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string label_at(double x, double y, const std::string& content, const char* more = "") {
  return "<text x=\"" + format("%.1f", x) + "\" y=\"" + format("%.1f", y) + "\" " + more + ">" +
         escaped(content) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& style) {
  return "<line x1=\"" + format("%.1f", x1) + "\" y1=\"" + format("%.1f", y1) + "\" x2=\"" +
         format("%.1f", x2) + "\" y2=\"" + format("%.1f", y2) + "\" " + style + "/>\n";
}

std::string axes(const Comparison& comparison, const Plot& plot) {
  std::string out =
      label_at(kLeft, 24, comparison.title + " [" + comparison.unit + "]", "font-weight=\"bold\"");
  constexpr int kTicks = 5;
  for (int i = 0; i <= kTicks; ++i) {
    const double value = plot.low + (plot.high - plot.low) * i / kTicks;
    out += line(kLeft, plot.y(value), kWidth - kRight, plot.y(value), "stroke=\"#ddd\"");
    out += label_at(kLeft - 6, plot.y(value) + 4, format("%.3g", value), "text-anchor=\"end\"");
  }
  for (std::size_t c = 0; c < comparison.columns.size(); ++c)
    out += label_at(plot.x(c), kHeight - kBottom + 20, comparison.columns[c],
                    "text-anchor=\"middle\"");
  return out;
}

std::string curve(const std::vector<double>& cells, const Plot& plot, const std::string& colour,
                  bool dots, const char* dash) {
  std::string out, path;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    if (std::isnan(cells[c])) {
      path += "|";
      continue;
    }
    const std::string x = format("%.1f", plot.x(c)), y = format("%.1f", plot.y(cells[c]));
    if (dots)
      out += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"4\" fill=\"" + colour + "\"/>\n";
    path += (path.empty() || path.back() == '|' ? "M" : "L") + x + " " + y + " ";
  }
  std::erase(path, '|');
  if (dots || path.empty()) return out;
  return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + colour +
         "\" stroke-width=\"1.6\" stroke-dasharray=\"" + dash + "\"/>\n";
}

}  // namespace

std::string svg(const Comparison& comparison) {
  Plot plot;
  plot.columns = comparison.columns.size();
  plot.high = 0;
  for (const auto& series : comparison.series)
    for (const auto& row : series.cells)
      for (const double value : row)
        if (std::isfinite(value)) plot.high = std::max(plot.high, value);
  plot.high = plot.high <= 0 ? 1 : plot.high * 1.05;
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
                    format("%.0f", kWidth) + " " + format("%.0f", kHeight) +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" +
                    axes(comparison, plot);
  double y = kTop + 10;
  for (std::size_t r = 0; r < comparison.rows.size(); ++r, y += 18) {
    const std::string colour = kColours[r % kColours.size()];
    for (std::size_t s = 0; s < comparison.series.size(); ++s)
      out += curve(comparison.series[s].cells[r], plot, colour, s == 0 && comparison.against_first,
                   kDashes[s % kDashes.size()]);
    out += line(kWidth - kRight + 20, y - 4, kWidth - kRight + 44, y - 4,
                "stroke=\"" + colour + "\" stroke-width=\"3\"");
    out += label_at(kWidth - kRight + 50, y, comparison.rows[r]);
  }
  y += 10;
  for (std::size_t s = 0; s < comparison.series.size(); ++s, y += 18) {
    const bool dots = s == 0 && comparison.against_first;
    out += dots ? "<circle cx=\"" + format("%.1f", kWidth - kRight + 32) + "\" cy=\"" +
                      format("%.1f", y - 4) + "\" r=\"4\" fill=\"#444\"/>\n"
                : line(kWidth - kRight + 20, y - 4, kWidth - kRight + 44, y - 4,
                       std::string("stroke=\"#444\" stroke-dasharray=\"") +
                           kDashes[s % kDashes.size()] + "\"");
    out += label_at(kWidth - kRight + 50, y, comparison.series[s].name);
  }
  return out + "</svg>\n";
}

}  // namespace archipelago::simulator
