#include "simulator/paper_tables.h"

namespace archipelago::simulator::paper {

const std::vector<AvailabilityRow>& table1() {
  static const std::vector<AvailabilityRow> rows{
      {1, false, {72, 57, 38, 27, 18}, {72, 57, 38, 27, 18}},
      {1, true, {88, 80, 69, 58, 40}, {88, 81, 69, 59, 42}},
      {2, true, {94, 88, 80, 70, 54}, {100, 97, 96, 90, 80}},
      {4, true, {96, 93, 89, 82, 73}, {100, 100, 99, 99, 99}},
      {8, true, {98, 96, 94, 88, 80}, {100, 100, 100, 100, 99}},
      {16, true, {99, 98, 96, 93, 86}, {100, 100, 100, 100, 99}},
  };
  return rows;
}

const std::vector<ScavengingRow>& table4() {
  static const std::vector<ScavengingRow> rows{
      {0, 1.00, 1.00}, {0.25, 1.07, 0.90}, {0.5, 1.09, 0.83}, {1, 1.02, 0.75}, {3, 0.80, 0.62}};
  return rows;
}

const std::vector<QuorumRow>& table5() {
  static const std::vector<QuorumRow> rows{
      {8, false, 84, 54.4, 37.6}, {1, false, 100, 51.4, 25.7}, {1, true, 100, 55.3, 37.0}};
  return rows;
}

const std::vector<BandwidthCase>& table13() {
  static const std::vector<BandwidthCase> cases{
      {"a", 1, 2, {49, 81, 104, 113, 195}, {.58, 1.2, 1.7, 1.9, 2.2}, {.15, .29, .43, .49, .53}},
      {"b", 5, 2, {9.5, 16, 21, 23, 49}, {.12, .23, .34, .39, .43}, {.03, .06, .08, .10, .11}},
      {"c", 1, 8, {85, 140, 183, 198, 391}, {1.0, 2.0, 3.0, 3.3, 3.8}, {.26, .51, .75, .84, .94}},
      {"d", 5, 8, {17, 28, 37, 40, 49}, {.21, .40, .59, .68, .75}, {.05, .10, .15, .17, .19}},
  };
  return cases;
}

}  // namespace archipelago::simulator::paper
