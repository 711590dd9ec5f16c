#pragma once
// A table of the paper beside what was computed for it: printed with the error of each cell, drawn
// as SVG.
#include <cstddef>
#include <string>
#include <vector>

namespace archipelago::simulator {

struct Series {
  std::string name;
  std::vector<std::vector<double>> cells;  // [row][column]; NaN: none
};

struct Comparison {
  std::string title, unit;
  std::vector<std::string> rows, columns;
  std::vector<Series> series;  // errors are against the first where it is the paper's
  bool against_first = true;   // else there is nothing to compare with
  bool relative = false;       // errors in percent of the first
  std::vector<std::string> notes;
};

// Root mean square over the cells that both have, in the table's unit or in percent.
struct Errors {
  int cells = 0;
  double rms = 0, worst = 0;
  double rms_fitted = 0, rms_other = 0;  // the half that constants are fitted on; the other
};
[[nodiscard]] Errors errors(const Comparison& comparison, std::size_t series);

// Cells that constants may be fitted on: a chequerboard, so that both halves span the table.
[[nodiscard]] constexpr bool in_fitted_half(std::size_t row, std::size_t column) {
  return (row + column) % 2 == 0;
}

[[nodiscard]] std::string text(const Comparison& comparison);
// The first series as dots, the others as lines; a colour a row.
[[nodiscard]] std::string svg(const Comparison& comparison);

[[nodiscard]] std::string format(const char* pattern, double value);
// As the paper prints bandwidths: whole numbers from 9.95 on, else two digits.
[[nodiscard]] std::string two_digits(double value);

}  // namespace archipelago::simulator
