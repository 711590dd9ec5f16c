#include "cli/simulate_command.h"

#include <cstdio>
#include <functional>
#include <map>
#include <vector>

#include "cli/spec_file.h"
#include "common/base/files.h"
#include "simulator/fidelity.h"
#include "simulator/forecast.h"

namespace archipelago::cli {

namespace {

namespace fs = std::filesystem;
using simulator::Comparison;
using simulator::FidelityOptions;

using Table = std::vector<Comparison> (*)(const FidelityOptions&);
const std::map<std::string, Table>& tables() {
  static const std::map<std::string, Table> all{{"table1", simulator::table1},
                                                {"table4", simulator::table4},
                                                {"table5", simulator::table5},
                                                {"table13", simulator::table13},
                                                {"fig12", simulator::fig12}};
  return all;
}

std::string names() {
  std::string out;
  for (const auto& [name, table] : tables()) out += (out.empty() ? "" : ", ") + name;
  return out;
}

Status write_plots(const fs::path& folder, const std::string& name,
                   const std::vector<Comparison>& comparisons, const std::string& report) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem)
    return fail(ErrorKind::kIo, "create folder " + folder.string() + ": " + problem.message());
  ARCH_TRY_VOID(write_file_durably(folder / (name + ".txt"), report));
  for (std::size_t i = 0; i < comparisons.size(); ++i)
    ARCH_TRY_VOID(write_file_durably(folder / (name + "-" + std::to_string(i + 1) + ".svg"),
                                     simulator::svg(comparisons[i])));
  return {};
}

int simulate_table(const SimulateArguments& arguments, Table table) {
  FidelityOptions options;
  options.seed = arguments.seed;
  if (!arguments.only.empty()) {
    options.formula = arguments.only == "formula";
    options.model = arguments.only == "model";
    options.cores = arguments.only == "cores";
  }
  const auto comparisons = table(options);
  std::string report;
  for (const auto& comparison : comparisons)
    report += (report.empty() ? "" : "\n") + simulator::text(comparison);
  std::fputs(report.c_str(), stdout);
  if (arguments.out.empty()) return kExitOk;
  if (const Status wrote = write_plots(arguments.out, arguments.what, comparisons, report); !wrote)
    return complain("--out: " + wrote.error().message, kExitFailed);
  return kExitOk;
}

Result<simulator::ForecastOptions> forecast_options(const SimulateArguments& arguments) {
  simulator::ForecastOptions out;
  out.seed = arguments.seed;
  out.chips_per_unit = arguments.chips_per_unit;
  out.slices_per_unit = arguments.slices_per_unit;
  out.elastic = arguments.elastic;
  out.global_steps = arguments.steps;
  if (arguments.step_time.empty())
    return fail(ErrorKind::kInvalid,
                "--step-time is missing: how long does a step of an island take, as 4s?");
  ARCH_TRY(out.step_seconds, simulator::parse_duration("--step-time", arguments.step_time));
  ARCH_TRY(out.mtbi_seconds, simulator::parse_duration("--mtbi", arguments.mtbi));
  if (!arguments.latency.empty()) {
    ARCH_TRY(out.latency_seconds, simulator::parse_duration("--latency", arguments.latency));
  }
  if (!arguments.bandwidth.empty()) {
    ARCH_TRY(out.bandwidth, simulator::parse_bandwidth("--bandwidth", arguments.bandwidth));
  }
  return out;
}

int sweep(const SimulateArguments& arguments, const config::TrainingSpec& spec,
          const simulator::ForecastOptions& options) {
  const auto units = simulator::parse_sweep(arguments.sweep);
  if (!units) return complain(units.error().message, kExitRefused);
  std::vector<simulator::Forecast> forecasts;
  for (const int n : *units) {
    auto one = simulator::forecast(spec, options, n);
    if (!one) return complain(one.error().message, kExitRefused);
    forecasts.push_back(std::move(*one));
  }
  const std::vector<Comparison> tables{simulator::sweep_table(forecasts)};
  const std::string report = simulator::text(tables.front());
  std::fputs(report.c_str(), stdout);
  if (arguments.out.empty()) return kExitOk;
  const Status wrote = write_plots(arguments.out, "sweep", tables, report);
  return wrote ? kExitOk : complain("--out: " + wrote.error().message, kExitFailed);
}

int simulate_spec(const SimulateArguments& arguments) {
  const auto training = load_spec(arguments.what, arguments.sets);
  if (!training) return complain(training.error().message, kExitRefused);
  const auto options = forecast_options(arguments);
  if (!options) return complain(options.error().message, kExitRefused);
  if (!arguments.sweep.empty()) return sweep(arguments, training->spec, *options);
  const auto forecast = simulator::forecast(training->spec, *options);
  if (!forecast) return complain(forecast.error().message, kExitRefused);
  std::fputs(simulator::text(*forecast, training->spec, *options).c_str(), stdout);
  return kExitOk;
}

}  // namespace

CLI::App* add_simulate(CLI::App& app, SimulateArguments& arguments) {
  CLI::App* out = app.add_subcommand(
      "simulate",
      "Recompute the paper's tables (table1, table4, table5, table13, fig12), or say what a spec "
      "would do on given chips and links");
  out->add_option("what", arguments.what, "a table, or a DecoupledTraining's file")->required();
  out->add_option("--seed", arguments.seed, "of everything drawn")->capture_default_str();
  out->add_option("--out", arguments.out, "folder for the text and SVG plots");
  out->add_option("--only", arguments.only, "formula, model or cores");
  out->add_option("--set", arguments.sets, "PATH=VALUE over the spec; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  out->add_option("--chips-per-unit", arguments.chips_per_unit, "of an island; 0: nothing fails")
      ->capture_default_str();
  out->add_option("--slices-per-unit", arguments.slices_per_unit, "a failing chip takes its slice")
      ->capture_default_str();
  out->add_flag("--elastic", arguments.elastic,
                "islands shrink and grow; else a failure restarts the island");
  out->add_option("--mtbi", arguments.mtbi, "of one chip, as 1y")->capture_default_str();
  out->add_option("--step-time", arguments.step_time, "of an island, as 4s");
  out->add_option("--bandwidth", arguments.bandwidth,
                  "of each datacenter's link, each way, as 2Gbit; default: unlimited");
  out->add_option("--latency", arguments.latency, "one way, as 50ms");
  out->add_option("--steps", arguments.steps, "global steps to simulate")->capture_default_str();
  out->add_option("--sweep", arguments.sweep, "units=1,2,4: the same chips in so many islands");
  return out;
}

int simulate_command(const SimulateArguments& arguments) {
  if (!arguments.only.empty() && arguments.only != "formula" && arguments.only != "model" &&
      arguments.only != "cores")
    return complain("--only is \"" + arguments.only + "\"; allowed: formula, model, cores",
                    kExitRefused);
  const auto table = tables().find(arguments.what);
  if (table == tables().end()) {
    if (fs::exists(arguments.what)) return simulate_spec(arguments);
    return complain("\"" + arguments.what + "\" is neither a file nor a table; allowed: " + names(),
                    kExitRefused);
  }
  return simulate_table(arguments, table->second);
}

}  // namespace archipelago::cli
