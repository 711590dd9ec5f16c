#pragma once
// A spec from a file with --set overrides, and what can be checked on this machine before anything
// starts.
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/spec.h"

namespace archipelago::cli {

// The message of an error has a line for each problem.
[[nodiscard]] Result<config::DecoupledTraining> load_spec(const std::filesystem::path& file,
                                                          const std::vector<std::string>& sets);

// Data files exist and hold a sequence, the disk has room for the run's state: a line for each
// problem.
[[nodiscard]] std::vector<std::string> check_machine(const config::DecoupledTraining& training,
                                                     const std::filesystem::path& run_dir);
// The other programs beside this one.
[[nodiscard]] std::vector<std::string> check_programs(const std::filesystem::path& bin_dir);

// Folder of this program's binary.
[[nodiscard]] std::filesystem::path own_folder();

// Blocks of the spec that differ and may not change once a run has begun: "spec.model", ...
[[nodiscard]] std::vector<std::string> immutable_differences(const config::TrainingSpec& before,
                                                             const config::TrainingSpec& after);

}  // namespace archipelago::cli
