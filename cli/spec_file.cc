#include "cli/spec_file.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/config/estimate.h"
#include "common/config/parse.h"

namespace archipelago::cli {

namespace {

namespace fs = std::filesystem;

std::int64_t token_bytes(config::DataFormat format) {
  switch (format) {
    case config::DataFormat::kText:
      return 1;
    case config::DataFormat::kTokensU16:
      return 2;
    case config::DataFormat::kTokensU32:
      return 4;
  }
  return 1;
}

void check_data(const std::string& field, const std::string& path, config::DataFormat format,
                std::int64_t context, std::vector<std::string>* problems) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) {
    problems->push_back(field + ": data file " + path + ": " + error.message() +
                        (fs::path(path).is_relative()
                             ? ". HINT: relative paths start at the working directory"
                             : ""));
    return;
  }
  if (::access(path.c_str(), R_OK) != 0) {
    problems->push_back(field + ": data file " + path + " can't be read");
    return;
  }
  const std::int64_t width = token_bytes(format);
  const auto tokens = static_cast<std::int64_t>(size) / width;
  if (static_cast<std::int64_t>(size) % width != 0)
    problems->push_back(field + ": data file " + path + " has " + std::to_string(size) +
                        " bytes, which is no multiple of " + std::to_string(width));
  if (tokens < context + 1)
    problems->push_back(field + ": data file " + path + " has " + std::to_string(tokens) +
                        " tokens, shorter than one sequence of " + std::to_string(context + 1));
}

}  // namespace

Result<config::DecoupledTraining> load_spec(const fs::path& file,
                                            const std::vector<std::string>& sets) {
  ARCH_TRY(const std::string text, read_file(file, 4U << 20));
  auto parsed = config::parse_training(text, sets);
  if (parsed) return *parsed;
  return fail(ErrorKind::kInvalid,
              file.string() + " is refused:\n" + config::format_errors(parsed.error()));
}

std::vector<std::string> check_machine(const config::DecoupledTraining& training,
                                       const fs::path& run_dir) {
  std::vector<std::string> problems;
  const config::TrainingSpec& spec = training.spec;
  const std::int64_t context = spec.model.context_length;
  check_data("spec.data.train.path", spec.data.train.path, spec.data.train.format, context,
             &problems);
  for (std::size_t i = 0; i < spec.data.validation.size(); ++i)
    check_data("spec.data.validation[" + std::to_string(i) + "].path", spec.data.validation[i].path,
               spec.data.train.format, context, &problems);
  std::error_code ignored;
  if (const std::string& path = spec.model.init_path;
      !path.empty() && !fs::is_directory(path, ignored))
    problems.push_back("spec.model.initFrom.path: " + path + " is not a folder" +
                       (fs::path(path).is_relative()
                            ? ". HINT: relative paths start at the working directory"
                            : ""));
  fs::path existing = fs::absolute(run_dir);
  while (!fs::exists(existing) && existing.has_parent_path() && existing != existing.root_path())
    existing = existing.parent_path();
  struct statvfs disk {};
  if (::statvfs(existing.c_str(), &disk) == 0) {
    const auto free =
        static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize);
    const auto need = config::storage_need(config::model_size(spec.model).parameters,
                                           spec.outer_optimizer.checkpoint, spec.sync);
    if (need.total > free)
      problems.push_back("no space: the run's state needs " + config::show_bytes(need.total) +
                         " in " + existing.string() + ", free are " + config::show_bytes(free));
  }
  return problems;
}

std::vector<std::string> check_programs(const fs::path& bin_dir) {
  std::vector<std::string> problems;
  for (const char* name :
       {"archipelago-launch", "archipelago-outer-optimizer", "archipelago-learner"}) {
    if (::access((bin_dir / name).c_str(), X_OK) != 0)
      problems.push_back("program " + (bin_dir / name).string() +
                         " is missing. HINT: build all targets");
  }
  return problems;
}

fs::path own_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::current_path() : self.parent_path();
}

std::vector<std::string> immutable_differences(const config::TrainingSpec& before,
                                               const config::TrainingSpec& after) {
  config::DecoupledTraining a;
  config::DecoupledTraining b;
  a.spec = before;
  b.spec = after;
  // Live: quorum and grace.
  a.spec.sync.quorum = b.spec.sync.quorum;
  a.spec.sync.grace = b.spec.sync.grace;
  const nlohmann::json left = config::to_json(a)["spec"];
  const nlohmann::json right = config::to_json(b)["spec"];
  std::vector<std::string> out;
  for (const char* block : {"model", "data", "inner", "outer", "sync"}) {
    if (left.value(block, nlohmann::json()) != right.value(block, nlohmann::json()))
      out.push_back(std::string("spec.") + block);
  }
  if (after.budget.global_steps < before.budget.global_steps)
    out.emplace_back("spec.budget (it may only rise)");
  return out;
}

}  // namespace archipelago::cli
