// archipelago-outer-optimizer: the paper's syncer as a daemon. Exit codes: 0 the run is finished, 1
// an error that a restart may cure, 10 stopped by a signal, 12 configuration or data folder refused
// (a restart cannot help).
#include <cstdlib>
#include <fstream>
#include <future>
#include <iostream>
#include <unistd.h>
#include <utility>

#include <CLI/CLI.hpp>

#include "common/base/files.h"
#include "common/base/signals.h"
#include "common/config/parse.h"
#include "outer-optimizer/daemon.h"
#include "outer-optimizer/model_server.h"

namespace archipelago::outer {
namespace {

constexpr int kExitError = 1;
constexpr int kExitSignal = 10;
constexpr int kExitRefused = 12;
constexpr std::size_t kMaxTermination = 4096;  // bytes that Kubernetes keeps

struct CommandLine {
  Flags flags;
  std::string listen = "0.0.0.0:8470";
  std::string admin = "0.0.0.0:8471";
  std::string log_level = "info";
  bool serve_model = false;
};

// The flag, else what whoever started us says, else the file that Kubernetes reads.
std::string termination_path(const CommandLine& line) {
  if (!line.flags.termination_log.empty()) return line.flags.termination_log;
  const char* const path = std::getenv("ARCHIPELAGO_TERMINATION_LOG");
  if (path != nullptr && *path != '\0') return path;
  constexpr const char* kDefault = "/dev/termination-log";
  return ::access(kDefault, W_OK) == 0 ? kDefault : "";
}

int end_with(const CommandLine& line, int code, const std::string& message) {
  std::cerr << "archipelago-outer-optimizer: " << message << "\n";
  if (const std::string path = termination_path(line); !path.empty()) {
    std::ofstream out(path, std::ios::trunc);
    out << message.substr(0, kMaxTermination) << "\n";
  }
  return code;
}

Result<DaemonOptions> read_options(CommandLine& line) {
  ARCH_TRY(line.flags.listen, http::parse_endpoint(line.listen, "0.0.0.0"));
  ARCH_TRY(line.flags.admin, http::parse_endpoint(line.admin, "127.0.0.1"));
  ARCH_TRY(const std::string text, read_file(line.flags.config, 4U << 20));
  const auto training = config::parse_training(text);
  if (!training) {
    return fail(ErrorKind::kRefused, line.flags.config.string() + " is refused:\n" +
                                         config::format_errors(training.error()));
  }
  return make_options(line.flags, *training);
}

int serve_model(const CommandLine& line, SignalWaiter& signals, LogLevel level) {
  const auto listen = http::parse_endpoint(line.admin, "127.0.0.1");
  if (!listen) return end_with(line, kExitRefused, listen.error().message);
  auto server =
      ModelServer::start(line.flags.data_dir, *listen, Logger::to_stderr("model-server", level));
  if (!server) {
    const bool refused = server.error().kind == ErrorKind::kRefused;
    return end_with(line, refused ? kExitRefused : kExitError, server.error().message);
  }
  std::promise<void> stopped;
  signals.start([&, told = false](int) mutable {
    if (!std::exchange(told, true)) stopped.set_value();
  });
  stopped.get_future().wait();
  return end_with(line, kExitSignal, "stopped by a signal");
}

int run(CommandLine& line, SignalWaiter& signals) {
  LogLevel level = LogLevel::kInfo;
  if (!parse_log_level(line.log_level, &level)) {
    return end_with(line, kExitRefused,
                    "--log-level: '" + line.log_level + "' given, allowed: debug info warn error");
  }
  if (line.serve_model) return serve_model(line, signals, level);
  if (line.flags.config.empty() || line.flags.run_id.empty())
    return end_with(line, kExitRefused, "--config and --run-id are required");
  const auto options = read_options(line);
  if (!options) return end_with(line, kExitRefused, options.error().message);
  auto daemon = Daemon::start(*options, Logger::to_stderr("outer-optimizer", level));
  if (!daemon) {
    const bool refused = daemon.error().kind == ErrorKind::kRefused;
    return end_with(line, refused ? kExitRefused : kExitError, daemon.error().message);
  }
  signals.start([&](int) { (*daemon)->request_stop(); });
  const Daemon::End end = (*daemon)->wait();
  (*daemon)->stop();
  switch (end) {
    case Daemon::End::kFinished:
      return end_with(line, 0, "finished");
    case Daemon::End::kStopped:
      return end_with(line, kExitSignal, "stopped by a signal");
    case Daemon::End::kFailed:
      return end_with(line, kExitError, (*daemon)->why());
  }
  return kExitError;
}

}  // namespace
}  // namespace archipelago::outer

int main(int argc, char** argv) {
  archipelago::SignalWaiter signals;  // before anything that may start a thread
  archipelago::outer::CommandLine line;
  CLI::App app{"Outer optimizer of a DecoupledTraining run"};
  app.add_option("--config", line.flags.config, "Resolved DecoupledTraining (JSON)");
  app.add_option("--data-dir", line.flags.data_dir,
                 "Folder of the run: journal, checkpoints, model")
      ->required();
  app.add_option("--run-id", line.flags.run_id, "uid of the run's resource");
  app.add_option("--listen", line.listen, "ADDR:PORT for learners")->capture_default_str();
  app.add_option("--admin", line.admin, "ADDR:PORT for probes, status, metrics")
      ->capture_default_str();
  app.add_flag("--serve-model", line.serve_model,
               "Only serve the model of --data-dir on --admin: reads, takes no lock");
  app.add_option("--termination-log", line.flags.termination_log, "File for the reason of the end");
  app.add_option("--log-level", line.log_level, "debug, info, warn or error")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    return archipelago::outer::run(line, signals);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : archipelago::outer::kExitRefused;
  } catch (const std::exception& error) {
    return archipelago::outer::end_with(line, archipelago::outer::kExitError, error.what());
  }
}
