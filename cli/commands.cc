#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/print_status.h"
#include "cli/run_folder.h"
#include "cli/spec_file.h"
#include "common/base/files.h"
#include "common/config/estimate.h"
#include "operator/api/json.h"
#include "operator/api/names.h"
#include "operator/local/dashboard.h"
#include "operator/plan/children.h"

namespace archipelago::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// `plan` names objects of a run that does not exist: its uid is a placeholder.
constexpr const char* kNoUid = "00000000-0000-0000-0000-000000000000";

// logs/<run>-<unit>-i<incarnation>.log, newest incarnation last.
std::vector<fs::path> logs_of(const fs::path& folder, const std::string& what) {
  std::vector<std::pair<long, fs::path>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / "logs", ignored)) {
    const std::string stem = entry.path().stem().string();
    const auto mark = stem.rfind("-i");
    const std::string base = mark == std::string::npos ? stem : stem.substr(0, mark);
    const bool matches = what.empty() || stem == what || base == what ||
                         (base.size() > what.size() && base.ends_with("-" + what));
    if (matches)
      found.emplace_back(
          mark == std::string::npos ? 0 : std::strtol(stem.c_str() + mark + 2, nullptr, 10),
          entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> out;
  for (auto& [incarnation, path] : found) out.push_back(std::move(path));
  return out;
}

std::string last_lines(const std::string& text, int lines) {
  if (lines <= 0) return text;
  std::size_t at = text.size();
  if (at > 0 && text[at - 1] == '\n') --at;
  for (int i = 0; i < lines && at != std::string::npos && at > 0; ++i)
    at = text.rfind('\n', at - 1);
  return at == std::string::npos || at == 0 ? text : text.substr(at + 1);
}

// Runs the program beside this one in its place; returns only where it could not be started.
int become(const std::string& name, const std::vector<std::string>& arguments) {
  const fs::path program = own_folder() / name;
  std::vector<std::string> words{program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  return complain("start " + program.string() + ": " + std::strerror(errno), kExitFailed);
}

}  // namespace

int complain(const std::string& message, int code) {
  std::cerr << "archipelago: " << message << (message.ends_with('\n') ? "" : "\n");
  return code;
}

int validate_command(const SpecArguments& arguments) {
  const auto training = load_spec(arguments.file, arguments.sets);
  if (!training) return complain(training.error().message, kExitRefused);
  const config::TrainingSpec& spec = training->spec;
  const config::ModelSize size = config::model_size(spec.model);
  const config::StorageNeed storage =
      config::storage_need(size.parameters, spec.outer_optimizer.checkpoint, spec.sync);
  const config::MemoryNeed memory =
      config::outer_optimizer_memory(size, spec.sync, config::total_units(spec));
  std::printf("%s is valid: %d learner units in %zu datacenters\n", training->name.c_str(),
              config::total_units(spec), spec.datacenters.size());
  std::printf("model: %lld parameters in %lld tensors, %d fragments\n",
              static_cast<long long>(size.parameters), static_cast<long long>(size.tensors),
              spec.sync.fragments);
  std::printf("outer optimizer: %s of storage, %s of memory\n",
              config::show_bytes(storage.total).c_str(), config::show_bytes(memory.total).c_str());
  std::printf("a step sends about %s per island and receives %s\n",
              config::show_bytes(
                  config::encoded_bytes(spec.sync.uplink, size.parameters / spec.sync.interval))
                  .c_str(),
              config::show_bytes(
                  config::encoded_bytes(spec.sync.downlink, size.parameters / spec.sync.interval))
                  .c_str());
  return kExitOk;
}

int plan_command(const SpecArguments& arguments) {
  auto training = load_spec(arguments.file, arguments.sets);
  if (!training) return complain(training.error().message, kExitRefused);
  if (training->uid.empty()) training->uid = kNoUid;
  const op::PlanOptions options;
  json items = json::array();
  if (training->spec.outer_optimizer.storage.existing_claim.empty())
    items.push_back(op::build_outer_claim(*training));
  items.push_back(op::build_spec_config_map(*training, op::resolved_spec_text(*training)));
  items.push_back(op::build_outer_service(*training));
  items.push_back(op::build_outer_pod(*training, 1, options));
  for (const auto& dc : training->spec.datacenters) {
    for (std::int32_t i = 0; i < dc.learner_units; ++i)
      items.push_back(op::build_learner_pod(*training, dc, i, 1, options));
  }
  const json list = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", items}};
  std::cout << list.dump(2, ' ', false, json::error_handler_t::replace) << "\n";
  return kExitOk;
}

int status_command(const fs::path& folder, bool as_json) {
  const auto saved = read_json(folder / "cluster.json");
  if (!saved)
    return complain(folder.string() + " is no run's folder: " + saved.error().message,
                    kExitRefused);
  const json& training = op::at(*saved, {"training"});
  if (as_json) {
    std::cout << training.dump(2, ' ', false, json::error_handler_t::replace) << "\n";
    return kExitOk;
  }
  std::cout << status_text(training);
  return kExitOk;
}

int logs_command(const LogArguments& arguments) {
  const auto logs = logs_of(arguments.folder, arguments.what);
  if (logs.empty())
    return complain("no log of \"" + arguments.what + "\" in " +
                        (arguments.folder / "logs").string() +
                        ". HINT: without a name the logs are listed",
                    kExitRefused);
  if (arguments.what.empty()) {
    for (const auto& log : logs) std::printf("%s\n", log.stem().c_str());
    return kExitOk;
  }
  const auto text = read_file(logs.back());
  if (!text) return complain(text.error().message, kExitFailed);
  std::cout << last_lines(*text, arguments.lines);
  return kExitOk;
}

int replay_command(const std::vector<std::string>& arguments) {
  return become("archipelago-replay", arguments);
}

int learner_command(const std::string& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return become("archipelago-learner", words);
}

}  // namespace archipelago::cli
