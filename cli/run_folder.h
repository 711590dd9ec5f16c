#pragma once
// The output folder of a local run, and the cluster's state that lets a later `run` go on with it.
#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/files.h"
#include "common/base/result.h"

namespace archipelago::cli {

class RunFolder {
 public:
  // Makes the folder and takes its lock: kConflict when another `archipelago run` has it.
  [[nodiscard]] static Result<RunFolder> open(const std::filesystem::path& folder);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path file(const std::string& name) const { return path_ / name; }

  // The resource with uid and status as last saved; nullopt for a fresh folder.
  [[nodiscard]] Result<std::optional<nlohmann::json>> load_training() const;
  [[nodiscard]] Status save(const nlohmann::json& training, const nlohmann::json& record) const;
  [[nodiscard]] std::optional<nlohmann::json> load_record() const;

  // metrics.jsonl and checkpoints of the claim under the names that people look for (relative
  // links).
  void link_claim(const std::string& claim) const;
  // model/ as the outer optimizer wrote it into its claim; false when there is none.
  [[nodiscard]] bool copy_model(const std::string& claim) const;

 private:
  RunFolder(std::filesystem::path path, UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::filesystem::path path_;
  UniqueFd lock_;
};

// Of a folder that another process may be using: for `status`.
[[nodiscard]] Result<nlohmann::json> read_json(const std::filesystem::path& file);

}  // namespace archipelago::cli
