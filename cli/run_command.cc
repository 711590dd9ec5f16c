#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/run_session.h"
#include "cli/spec_file.h"
#include "common/base/files.h"
#include "common/config/field_error.h"
#include "common/config/parse.h"
#include "operator/api/json.h"
#include "operator/local/process.h"

namespace archipelago::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

Result<op::ChaosSchedule> load_chaos(const fs::path& file, const config::TrainingSpec& spec) {
  if (file.empty()) return op::ChaosSchedule();
  ARCH_TRY(const std::string text, read_file(file, 4U << 20));
  auto document = config::parse_document(text);
  if (!document)
    return fail(ErrorKind::kInvalid,
                file.string() + " is refused:\n" + config::format_errors(document.error()));
  op::ChaosNames names;
  for (const auto& dc : spec.datacenters) {
    names.datacenters.insert(dc.name);
    for (std::int32_t i = 0; i < dc.learner_units; ++i)
      names.units.insert(config::unit_name(dc.name, i));
  }
  auto schedule = op::ChaosSchedule::parse(*document, names);
  if (!schedule)
    return fail(ErrorKind::kInvalid, file.string() + " is refused:\n" + schedule.error().message);
  return schedule;
}

// What an earlier `run` left in the folder, if this spec may go on with it.
Status check_resume(const json& stored, const config::DecoupledTraining& training) {
  auto before = config::parse_training(stored);
  if (!before)
    return fail(ErrorKind::kCorrupt,
                "the folder's cluster.json holds a resource that this version refuses");
  if (before->name != training.name)
    return fail(ErrorKind::kConflict,
                "the folder holds the run " + before->name + ". HINT: choose another --output");
  std::string differences;
  for (const auto& block : immutable_differences(before->spec, training.spec))
    differences += " " + block;
  if (differences.empty()) return {};
  return fail(ErrorKind::kConflict,
              "the folder holds a run with other settings, which can't change:" + differences +
                  ". HINT: choose another --output, or give the same settings to resume");
}

void print_sample(const RunSession& session, const fs::path& bin_dir, const fs::path& folder,
                  const std::string& prompt) {
  op::ProcessSpec spec;
  spec.executable = bin_dir / "archipelago-learner";
  spec.launcher = bin_dir / "archipelago-launch";
  spec.args = {
      "sample", (folder / "model").string(), "--prompt", prompt, "--tokens", "160", "--threads",
      "1"};
  spec.env = op::inherited_environment();
  spec.log_path = folder / "sample.txt";
  std::error_code ignored;
  fs::remove(spec.log_path, ignored);
  auto process = op::Process::spawn(spec);
  std::optional<op::ExitStatus> exit;
  while (process && !(exit = process->poll())) {
    if (session.stopped()) return;  // Ctrl-C: the sample is the least of a run
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const int code = exit ? exit->code : 1;
  const auto text = read_file(spec.log_path);
  if (code == 0)
    std::printf("\nA sample of the model:\n%s\n", text ? text->c_str() : "");
  else
    std::printf("\nNo sample: %s\n",
                text && !text->empty() ? text->c_str() : "archipelago-learner did not start");
}

std::string show(const json& value, const char* pattern = "%.4f") {
  if (!value.is_number()) return "-";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, value.get<double>());
  return buffer;
}

void print_summary(const json& s, const fs::path& folder) {
  std::printf("\n%s: global step %lld of %lld, %s\n", op::string_at(s, {"phase"}).c_str(),
              static_cast<long long>(op::int_at(s, {"globalStep"})),
              static_cast<long long>(op::int_at(s, {"budget"})),
              op::show_duration(op::number_at(s, {"elapsedSeconds"})).c_str());
  std::printf("loss %s, validation loss %s, goodput %s, useful goodput %s, mean participants %s\n",
              show(s["trainLoss"]).c_str(), show(s["validationLoss"]).c_str(),
              show(s["goodput"], "%.3f").c_str(), show(s["usefulGoodput"], "%.3f").c_str(),
              show(s["outerOptimizer"]["meanParticipants"], "%.2f").c_str());
  std::printf("summary: %s\nreport:  %s\n", (folder / "summary.json").c_str(),
              (folder / "report.html").c_str());
  std::fflush(stdout);  // what follows may take a while
}

// Everything that can be known to be wrong before a process starts.
std::string find_problems(const config::DecoupledTraining& training, const fs::path& bin_dir,
                          const fs::path& output) {
  std::string text;
  for (const auto& problems : {check_programs(bin_dir), check_machine(training, output)}) {
    for (const auto& line : problems) text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

int end_of_run(RunSession& session, op::RunPhase phase, const fs::path& bin_dir,
               const fs::path& folder, const std::string& prompt) {
  print_summary(session.summary(), folder);
  if (phase == op::RunPhase::kSucceeded) {
    if (session.has_model()) print_sample(session, bin_dir, folder, prompt);
    return kExitOk;
  }
  if (phase == op::RunPhase::kFailed)
    return complain("the run failed: " + session.failure(), kExitFailed);
  std::printf("stopped; the same command goes on from here\n");
  return kExitStopped;
}

}  // namespace

int run_command(const RunArguments& arguments, SignalWaiter& signals) {
  auto training = load_spec(arguments.spec.file, arguments.spec.sets);
  if (!training) return complain(training.error().message, kExitRefused);
  auto chaos = load_chaos(arguments.chaos, training->spec);
  if (!chaos) return complain(chaos.error().message, kExitRefused);
  SessionOptions options;
  options.bin_dir = own_folder();
  options.node_cpus = arguments.cpus;
  options.trace_steps = arguments.trace_steps;
  options.terminal = !arguments.plain && ::isatty(STDOUT_FILENO) == 1;
  if (!parse_log_level(arguments.log_level, &options.log_level))
    return complain("--log-level " + arguments.log_level + ", allowed: debug, info, warn, error",
                    kExitRefused);
  const fs::path output =
      arguments.output.empty() ? fs::path("archipelago-run-" + training->name) : arguments.output;
  if (const std::string problems = find_problems(*training, options.bin_dir, output);
      !problems.empty())
    return complain(problems, kExitRefused);

  auto folder = RunFolder::open(output);
  if (!folder) return complain(folder.error().message, kExitRefused);
  const fs::path path = folder->path();
  auto stored = folder->load_training();
  if (!stored) return complain(stored.error().message, kExitRefused);
  if (*stored) {
    if (auto fits = check_resume(**stored, *training); !fits)
      return complain(fits.error().message, kExitRefused);
    const std::string phase = op::string_at(**stored, {"status", "phase"});
    if (phase == "Succeeded" || phase == "Failed") {
      std::printf(
          "the run in %s has ended already: %s. HINT: choose another --output for a new one\n",
          path.c_str(), phase.c_str());
      return phase == "Succeeded" ? kExitOk : kExitFailed;
    }
  }
  RunSession session(*training, std::move(*folder), std::move(*chaos), options);
  signals.start([&](int) { session.request_stop(); });
  if (auto started = session.start(*stored); !started)
    return complain(started.error().message, kExitFailed);
  const op::RunPhase phase = session.run();
  return end_of_run(session, phase, options.bin_dir, path, arguments.prompt);
}

}  // namespace archipelago::cli
