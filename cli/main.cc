// archipelago: trains on islands, here on one machine. Exit codes: commands.h.
#include <cstdio>
#include <filesystem>
#include <optional>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/kube_commands.h"
#include "cli/simulate_command.h"
#include "common/base/version.h"

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

void add_kube(CLI::App* command, KubeArguments* kube) {
  command->add_option("--kubeconfig", kube->kubeconfig,
                      "default: $KUBECONFIG, ~/.kube/config, else the pod's service account");
  command->add_option("--context", kube->context, "of the kubeconfig");
  command->add_option("-n,--namespace", kube->name_space, "default: the kubeconfig's");
}

// The commands for runs in a cluster; status and logs also take the folder of a local run.
struct ClusterCommands {
  KubeStatusArguments status;
  KubeLogArguments logs;
  KubeArguments kube;
  FetchArguments fetch;
  std::string name;
  std::string what;
  CLI::App* status_app = nullptr;
  CLI::App* logs_app = nullptr;
  CLI::App* suspend_app = nullptr;
  CLI::App* resume_app = nullptr;
  CLI::App* restart_app = nullptr;
  CLI::App* kill_app = nullptr;
  CLI::App* fetch_app = nullptr;

  void add_views(CLI::App& app) {
    status_app = app.add_subcommand(
        "status", "Status of a run in a cluster, of all of them, or of a local run's folder");
    status_app->add_option("run", status.name, "name, or output folder of `run`; default: all");
    status_app->add_flag("--json", status.json, "the whole resource");
    status_app->add_flag("-w,--watch", status.watch, "print again when it changes, until it ends");
    status_app->add_flag("-A,--all-namespaces", status.kube.all_namespaces);
    add_kube(status_app, &status.kube);
    logs_app = app.add_subcommand("logs", "Logs of a run in a cluster or of a local run's folder");
    logs_app->add_option("run", logs.name, "name, or output folder of `run`")->required();
    logs_app->add_option("what", logs.what,
                         "island, pod, outer, or (local) operator; without it they are listed");
    logs_app->add_option("--tail", logs.lines, "only the last lines")
        ->check(CLI::NonNegativeNumber);
    logs_app->add_flag("-f,--follow", logs.follow, "go on as it grows (cluster)");
    add_kube(logs_app, &logs.kube);
  }

  CLI::App* add_one(CLI::App& app, const char* command, const char* help, const char* target) {
    CLI::App* out = app.add_subcommand(command, help);
    out->add_option("run", name, "name")->required();
    if (target != nullptr) out->add_option("unit", what, target)->required();
    add_kube(out, &kube);
    return out;
  }

  void add_actions(CLI::App& app) {
    suspend_app = add_one(app, "suspend", "End a run's pods and keep its state", nullptr);
    resume_app = add_one(app, "resume", "Go on with a suspended run", nullptr);
    restart_app = add_one(app, "restart", "Replace an island's or the outer optimizer's pod",
                          "learner unit, or outer");
    kill_app = add_one(app, "kill", "The same without a grace period, to see what happens",
                       "learner unit, or outer");
    fetch_app = app.add_subcommand("fetch", "Get a run's model into a folder");
    fetch_app->add_option("run", fetch.name, "name")->required();
    fetch_app->add_option("folder", fetch.folder, "made when missing")->required();
    fetch_app
        ->add_option("--step", fetch.step, "a kept checkpoint; default: the final model, or newest")
        ->check(CLI::NonNegativeNumber);
    fetch_app->add_option("--claim", fetch.claim, "read this claim instead of the run's");
    fetch_app->add_option("--image", fetch.image, "of the pod that reads a claim");
    fetch_app->add_option("--timeout", fetch.timeout, "seconds for that pod to start")
        ->capture_default_str();
    add_kube(fetch_app, &fetch.kube);
  }

  // A name of the API has no slash; a folder of `run` has a cluster.json.
  static bool is_folder(const std::string& run) {
    return run.find('/') != std::string::npos ||
           std::filesystem::exists(std::filesystem::path(run) / "cluster.json");
  }

  int view(SignalWaiter& signals) {
    if (status_app->parsed())
      return is_folder(status.name) ? status_command(status.name, status.json)
                                    : kube_status_command(status, signals);
    if (is_folder(logs.name)) return logs_command({logs.name, logs.what, logs.lines});
    return kube_logs_command(logs, signals);
  }

  // nullopt: none of these was given.
  std::optional<int> run(SignalWaiter& signals) {
    if (status_app->parsed() || logs_app->parsed()) return view(signals);
    if (suspend_app->parsed()) return suspend_command(kube, name, true);
    if (resume_app->parsed()) return suspend_command(kube, name, false);
    if (restart_app->parsed()) return replace_command(kube, name, what, false);
    if (kill_app->parsed()) return replace_command(kube, name, what, true);
    if (fetch_app->parsed()) return fetch_command(fetch);
    return std::nullopt;
  }
};

// Everything after their names is archipelago-learner's.
std::vector<CLI::App*> add_learner_commands(CLI::App& app) {
  std::vector<CLI::App*> out{
      app.add_subcommand("sample",
                         "Continue a text: sample MODEL --prompt TEXT [--tokens N "
                         "--temperature T --seed S]"),
      app.add_subcommand("model-spec",
                         "Print the model part of a spec that starts from a Hugging "
                         "Face model: model-spec FOLDER")};
  for (CLI::App* one : out) one->prefix_command();
  return out;
}

int dispatch(int argc, char** argv, SignalWaiter& signals) {
  CLI::App app("Archipelago trains language models on islands that never wait for each other.");
  // kubectl finds plugins by name: `kubectl archipelago status` runs kubectl-archipelago.
  if (std::filesystem::path(argv[0]).filename() == "kubectl-archipelago")
    app.name("kubectl archipelago");
  app.require_subcommand(1);
  app.set_version_flag("--version", "archipelago " + version());

  RunArguments run;
  CLI::App* run_app = add_run(app, run);

  SpecArguments validated;
  CLI::App* validate_app = app.add_subcommand("validate", "Check a spec and say what it needs");
  add_spec(validate_app, &validated);

  SpecArguments planned;
  CLI::App* plan_app =
      app.add_subcommand("plan", "Print the objects that a run would create, as JSON");
  add_spec(plan_app, &planned);

  SimulateArguments simulated;
  CLI::App* simulate_app = add_simulate(app, simulated);

  ClusterCommands cluster;
  cluster.add_views(app);
  cluster.add_actions(app);

  const std::vector<CLI::App*> learner_apps = add_learner_commands(app);

  CLI::App* replay_app = app.add_subcommand(
      "replay", "Train again under a run's event tape: replay TAPE [--until STEP] [--diff TAPE2]");
  replay_app->prefix_command();  // archipelago-replay's
  replay_app->set_help_flag();   // --help, too

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitRefused;
  }
  if (run_app->parsed()) return run_command(run, signals);
  if (validate_app->parsed()) return validate_command(validated);
  if (plan_app->parsed()) return plan_command(planned);
  if (simulate_app->parsed()) return simulate_command(simulated);
  if (replay_app->parsed()) return replay_command(replay_app->remaining());
  if (const auto code = cluster.run(signals)) return *code;
  for (const CLI::App* one : learner_apps)
    if (one->parsed()) return learner_command(one->get_name(), one->remaining());
  return kExitRefused;
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
