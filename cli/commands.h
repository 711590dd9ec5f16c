#pragma once
// One function a subcommand of `archipelago`; each returns the exit code.
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/signals.h"

namespace archipelago::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;     // the run failed, or something broke
inline constexpr int kExitRefused = 2;    // the spec, a file or an argument
inline constexpr int kExitStopped = 130;  // Ctrl-C

struct SpecArguments {
  std::filesystem::path file;
  std::vector<std::string> sets;
};
struct RunArguments {
  SpecArguments spec;
  std::filesystem::path output;  // empty: archipelago-run-NAME
  std::filesystem::path chaos;
  double cpus = 0;
  bool plain = false;        // no dashboard
  bool trace_steps = false;  // steps.jsonl
  std::string log_level = "info";
  std::string prompt = "The ";
};
struct LogArguments {
  std::filesystem::path folder;
  std::string what;  // unit, pod, "outer" or "operator"; empty: a list
  int lines = 0;     // 0: all
};

[[nodiscard]] int run_command(const RunArguments& arguments, SignalWaiter& signals);
[[nodiscard]] int validate_command(const SpecArguments& arguments);
[[nodiscard]] int plan_command(const SpecArguments& arguments);
[[nodiscard]] int status_command(const std::filesystem::path& folder, bool as_json);
[[nodiscard]] int logs_command(const LogArguments& arguments);
// Becomes archipelago-learner COMMAND (sample, model-spec); returns only when that can't be
// started.
[[nodiscard]] int learner_command(const std::string& command,
                                  const std::vector<std::string>& arguments);
// The same with archipelago-replay: train again under a run's event tape.
[[nodiscard]] int replay_command(const std::vector<std::string>& arguments);

// "archipelago: message" on stderr, a line each.
int complain(const std::string& message, int code);

}  // namespace archipelago::cli
