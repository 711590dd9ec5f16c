// archipelago-learner: the daemon, and `archipelago-learner sample`.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stop_token>

#include <CLI/CLI.hpp>

#include "common/base/signals.h"
#include "learner/daemon.h"
#include "learner/hf_config.h"
#include "learner/llama_shapes.h"
#include "learner/model_folder.h"
#include "learner/sample.h"
#include "learner/torch_trainer.h"

namespace {

using namespace archipelago;
using learner::ExitCode;

int threads_of(int flag) {
  if (flag > 0) return flag;
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr && std::atoi(text) > 0)
    return std::atoi(text);
  return learner::default_threads();
}

void prepare_torch(int threads) {
  learner::tune_allocator();
  learner::set_torch_threads(threads_of(threads));
}

int run_sample(const learner::SampleRequest& request, int threads) {
  prepare_torch(threads);
  const auto text = learner::sample_model(request, learner::make_torch_trainer);
  if (!text) {
    std::cerr << "archipelago-learner sample: " << text.error().message << "\n";
    return static_cast<int>(ExitCode::kInternal);
  }
  std::cout << request.prompt << *text << "\n";
  return 0;
}

int print_model_spec(const std::string& folder) {
  const auto model = learner::read_model_config(folder);
  if (!model) {
    std::cerr << "archipelago-learner model-spec: " << model.error().message << "\n";
    return static_cast<int>(ExitCode::kConfigRefused);
  }
  std::cout << learner::model_yaml(*model) << "  initFrom: {path: " << folder << "}\n";
  return 0;
}

void add_daemon_flags(CLI::App& app, learner::Flags& flags) {
  app.add_option("--config", flags.config, "resolved DecoupledTraining, JSON or YAML");
  app.add_option("--unit", flags.unit, "name of this learner unit");
  app.add_option("--incarnation", flags.incarnation, "fencing token, from 1")
      ->check(CLI::PositiveNumber);
  app.add_option("--datacenter", flags.datacenter, "where it runs");
  app.add_option("--outer", flags.outer, "outer optimizer, http://HOST:PORT");
  app.add_option("--admin", flags.admin, "ADDR:PORT of /healthz, /statusz, /metrics")
      ->capture_default_str();
  app.add_option("--run-id", flags.run_id, "uid of the run; empty: what the outer optimizer says");
  app.add_option("--threads", flags.threads,
                 "0: OMP_NUM_THREADS, else the cgroup's quota, else the cores")
      ->check(CLI::Range(0, 4096));
  app.add_option("--termination-log", flags.termination_log, "file for the last words");
  app.add_option("--log-level", flags.log_level, "debug | info | warn | error")
      ->capture_default_str();
}

int run_learner(const learner::Flags& flags, SignalWaiter& signals) {
  for (const auto& [name, value] : {std::pair{"--config", &flags.config},
                                    {"--unit", &flags.unit},
                                    {"--datacenter", &flags.datacenter},
                                    {"--outer", &flags.outer}}) {
    if (!value->empty()) continue;
    std::cerr << "archipelago-learner: " << name << " is required\n";
    return static_cast<int>(ExitCode::kUsage);
  }
  LogLevel level = LogLevel::kInfo;
  if (!parse_log_level(flags.log_level, &level)) {
    std::cerr << "archipelago-learner: --log-level " << flags.log_level
              << ", allowed: debug, info, warn, error\n";
    return static_cast<int>(ExitCode::kUsage);
  }
  std::stop_source stop;
  signals.start([&](int) { stop.request_stop(); });
  const Logger log = Logger::to_stderr("learner", level)
                         .with({{"unit", flags.unit}, {"incarnation", flags.incarnation}});
  learner::DaemonHooks hooks;
  hooks.shapes = learner::llama_shapes;
  hooks.trainer = [&](const config::ModelSpec& model, const config::InnerSpec& inner) {
    prepare_torch(flags.threads);
    return learner::make_torch_trainer(model, inner);
  };
  return static_cast<int>(learner::run_daemon(flags, hooks, stop.get_token(), log));
}

}  // namespace

int main(int argc, char** argv) {
  SignalWaiter signals;  // first: blocks the signals before any thread exists
  CLI::App app("Archipelago's learner: trains one replica of the model and exchanges fragments");
  learner::Flags flags;
  add_daemon_flags(app, flags);
  learner::SampleRequest request;
  auto* sample = app.add_subcommand("sample", "continue a text with a trained model");
  sample->add_option("model", request.folder, "folder with model.safetensors and config.json")
      ->required();
  sample->add_option("--prompt", request.prompt, "text to continue")->capture_default_str();
  sample->add_option("--tokens", request.tokens, "tokens to add")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  sample->add_option("--temperature", request.temperature, "0 takes the likeliest")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  sample->add_option("--seed", request.seed)->capture_default_str();
  sample->add_option("--threads", flags.threads)->check(CLI::Range(0, 4096));
  std::string folder;
  auto* model_spec = app.add_subcommand(
      "model-spec", "the model part of a spec that starts from a Hugging Face model's folder");
  model_spec->add_option("model", folder, "folder with config.json")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  if (model_spec->parsed()) return print_model_spec(folder);
  if (!sample->parsed()) {
    const int code = run_learner(flags, signals);
    std::fflush(nullptr);
    std::_Exit(code);  // libtorch's destructors have nothing to say to us
  }
  signals.start([](int signal) { std::_Exit(128 + signal); });
  return run_sample(request, flags.threads);
}
