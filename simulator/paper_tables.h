#pragma once
// Published numbers that the simulator is compared with. Source of all: Decoupled DiLoCo,
// arXiv 2604.21428v1; which table is said beside each.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace archipelago::simulator::paper {

inline constexpr double kYear = 365.0 * 24 * 3600;  // seconds; MTBI of a chip in Table 1

// Table 1: goodput and uptime in percent against the number of chips, MTBI one year.
inline constexpr std::array<double, 5> kChips{150e3, 300e3, 600e3, 1.2e6, 2.4e6};
struct AvailabilityRow {
  int learners = 1;  // M
  bool elastic = true;
  std::array<double, 5> goodput, uptime;
};
[[nodiscard]] const std::vector<AvailabilityRow>& table1();

// Table 4: wall-clock time relative to none, when extra learners (a share of the base's four) join
// for half of the FLOPs. DP: data parallel; DD: decoupled.
struct ScavengingRow {
  double extra = 0;  // x
  double data_parallel = 1, decoupled = 1;
};
[[nodiscard]] const std::vector<ScavengingRow>& table4();

// Table 5: unequal speeds, M = 8; goodput in percent.
struct QuorumRow {
  int quorum = 1;
  bool grace = false;
  double goodput = 100, text = 0, vision = 0;
};
[[nodiscard]] const std::vector<QuorumRow>& table5();

// Table 13: Gbit/s needed for a compute utilisation, 5 B parameters.
inline constexpr std::array<double, 5> kUtilisation{0.50, 0.75, 0.90, 0.95, 0.99};
inline constexpr double kTable13Parameters = 5e9;
struct BandwidthCase {
  std::string name;
  double step_seconds = 1;
  int datacenters = 2;
  std::array<double, 5> data_parallel, bf16, int4;
};
[[nodiscard]] const std::vector<BandwidthCase>& table13();

// Fig. 12, from its caption: downtime is zero until one model copy takes more than 6 step times,
// and that of elastic data parallel when it takes 24 (H = 24).
inline constexpr double kFig12ZeroUntil = 6, kFig12EqualAt = 24;

}  // namespace archipelago::simulator::paper
