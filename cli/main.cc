// archipelago: trains on islands, here on one machine. Exit codes: commands.h.
#include <cstdio>

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace archipelago::cli {
namespace {

void add_spec(CLI::App* command, SpecArguments* spec) {
  command->add_option("spec", spec->file, "DecoupledTraining, YAML or JSON")
      ->required()
      ->check(CLI::ExistingFile);
  command
      ->add_option("--set", spec->sets,
                   "PATH=VALUE over the file, e.g. sync.quorum=2; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
}

CLI::App* add_run(CLI::App& app, RunArguments& run) {
  CLI::App* run_app = app.add_subcommand(
      "run", "Train on this machine; the same --output goes on where it stopped");
  add_spec(run_app, &run.spec);
  run_app->add_option("--output", run.output, "folder of the run (default: archipelago-run-NAME)");
  run_app->add_option("--chaos", run.chaos, "faults to make while it runs")
      ->check(CLI::ExistingFile);
  run_app
      ->add_option("--cpus", run.cpus,
                   "cores that each datacenter's node has (default: this machine's)")
      ->check(CLI::PositiveNumber);
  run_app->add_flag("--plain", run.plain, "a line per event instead of the dashboard");
  run_app->add_flag("--trace-steps", run.trace_steps,
                    "write steps.jsonl: step times of each island, for benchmarks");
  run_app->add_option("--prompt", run.prompt, "for the sample at the end")->capture_default_str();
  run_app->add_option("--log-level", run.log_level, "of logs/operator.log")->capture_default_str();
  return run_app;
}

int dispatch(int argc, char** argv, SignalWaiter& signals) {
  CLI::App app("Archipelago trains language models on islands that never wait for each other.");
  app.require_subcommand(1);
  app.set_version_flag("--version", "archipelago 0.1.0");

  RunArguments run;
  CLI::App* run_app = add_run(app, run);

  SpecArguments validated;
  CLI::App* validate_app = app.add_subcommand("validate", "Check a spec and say what it needs");
  add_spec(validate_app, &validated);

  SpecArguments planned;
  CLI::App* plan_app =
      app.add_subcommand("plan", "Print the objects that a run would create, as JSON");
  add_spec(plan_app, &planned);

  std::filesystem::path folder;
  bool as_json = false;
  CLI::App* status_app = app.add_subcommand("status", "Status of a run by its output folder");
  status_app->add_option("folder", folder, "output folder")
      ->required()
      ->check(CLI::ExistingDirectory);
  status_app->add_flag("--json", as_json, "the whole resource");

  LogArguments logs;
  CLI::App* logs_app = app.add_subcommand("logs", "Logs of a run by its output folder");
  logs_app->add_option("folder", logs.folder, "output folder")
      ->required()
      ->check(CLI::ExistingDirectory);
  logs_app->add_option("what", logs.what,
                       "island, pod, outer or operator; without it the logs are listed");
  logs_app->add_option("--tail", logs.lines, "only the last lines")->check(CLI::NonNegativeNumber);

  CLI::App* sample_app = app.add_subcommand(
      "sample",
      "Continue a text: sample MODEL --prompt TEXT [--tokens N --temperature T --seed S]");
  sample_app->prefix_command();  // everything after it is archipelago-learner's

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitRefused;
  }
  if (run_app->parsed()) return run_command(run, signals);
  if (validate_app->parsed()) return validate_command(validated);
  if (plan_app->parsed()) return plan_command(planned);
  if (status_app->parsed()) return status_command(folder, as_json);
  if (logs_app->parsed()) return logs_command(logs);
  return sample_command(sample_app->remaining());
}

}  // namespace
}  // namespace archipelago::cli

int main(int argc, char** argv) {
  archipelago::SignalWaiter signals;  // first: blocks the signals before any thread exists
  try {
    return archipelago::cli::dispatch(argc, argv, signals);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "archipelago: %s\n", error.what());
    return archipelago::cli::kExitFailed;
  }
}
