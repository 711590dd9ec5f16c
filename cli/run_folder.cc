#include "cli/run_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::cli {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {
constexpr const char* kCluster = "cluster.json";
constexpr const char* kRecord = "record.json";
}  // namespace

Result<json> read_json(const fs::path& file) {
  ARCH_TRY(const std::string text, read_file(file, 1ULL << 28));
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return fail(ErrorKind::kCorrupt, file.string() + " is no JSON");
  return value;
}

Result<RunFolder> RunFolder::open(const fs::path& folder) {
  std::error_code error;
  const fs::path path = fs::absolute(folder).lexically_normal();
  fs::create_directories(path / "logs", error);
  if (error) return fail(errno_error("make " + path.string(), error.value()));
  UniqueFd lock(::open((path / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.valid()) return fail(errno_error("open " + (path / "lock").string(), errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorKind::kConflict, "another `archipelago run` is using " + path.string() +
                                          ". HINT: stop it, or choose another --output");
  return RunFolder(path, std::move(lock));
}

Result<std::optional<json>> RunFolder::load_training() const {
  if (!fs::exists(file(kCluster))) return std::optional<json>();
  ARCH_TRY(json saved, read_json(file(kCluster)));
  const json& training = op::at(saved, {"training"});
  if (op::int_at(saved, {"version"}) != 1 || !training.is_object() ||
      op::string_at(training, {"metadata", "uid"}).empty())
    return fail(ErrorKind::kCorrupt,
                file(kCluster).string() + " is no state of a run. HINT: choose another --output");
  return std::optional<json>(training);
}

Status RunFolder::save(const json& training, const json& record) const {
  ARCH_TRY_VOID(write_file_durably(file(kRecord), op::to_text(record)));
  return write_file_durably(file(kCluster),
                            op::to_text(json{{"version", 1}, {"training", training}}));
}

std::optional<json> RunFolder::load_record() const {
  auto record = read_json(file(kRecord));
  if (!record) return std::nullopt;
  return *record;
}

void RunFolder::link_claim(const std::string& claim) const {
  for (const char* name : {"metrics.jsonl", "checkpoints", "tape"}) {
    std::error_code ignored;
    const fs::path link = file(name);
    if (fs::exists(fs::symlink_status(link, ignored)) && !fs::is_symlink(link, ignored)) continue;
    fs::remove(link, ignored);
    fs::create_symlink(fs::path("volumes") / claim / name, link, ignored);
  }
}

bool RunFolder::copy_model(const std::string& claim) const {
  const fs::path from = file("volumes") / claim / "model";
  std::error_code error;
  if (!fs::is_directory(from, error)) return false;
  const fs::path partial = file("model.partial");
  fs::remove_all(partial, error);
  fs::copy(from, partial, fs::copy_options::recursive, error);
  if (error) return false;
  fs::remove_all(file("model"), error);
  fs::rename(partial, file("model"), error);
  return !error;
}

}  // namespace archipelago::cli
