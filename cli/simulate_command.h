#pragma once
// `archipelago simulate`: the paper's tables recomputed, or what a spec would do on given chips and
// links.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace archipelago::cli {

struct SimulateArguments {
  std::string what;  // table1, table4, table5, table13, fig12, or a spec's file
  std::uint64_t seed = 1;
  std::filesystem::path out;  // empty: no files
  std::string only;           // formula, model or cores; empty: all
  // Of a spec.
  std::vector<std::string> sets;
  double chips_per_unit = 0;
  std::string mtbi = "1y", step_time, bandwidth, latency, sweep;
  int slices_per_unit = 16;
  bool elastic = false;
  std::int64_t steps = 1000;
};

[[nodiscard]] CLI::App* add_simulate(CLI::App& app, SimulateArguments& arguments);
[[nodiscard]] int simulate_command(const SimulateArguments& arguments);

}  // namespace archipelago::cli
