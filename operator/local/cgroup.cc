#include "operator/local/cgroup.h"

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "common/base/files.h"

namespace archipelago::op {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kPeriodMicros =
    50'000;  // short: a step of a small model takes tens of milliseconds
constexpr std::int64_t kMinQuotaMicros = 1'000;  // the kernel's own minimum
constexpr const char* kPrefix = "archipelago-";

Status write_control(const fs::path& file, const std::string& value) {
  UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("open " + file.string(), errno));
  if (::write(fd.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size()))
    return fail(errno_error("write " + value + " to " + file.string(), errno));
  return {};
}

std::int64_t quota_micros(double cores) {
  return std::max(kMinQuotaMicros, static_cast<std::int64_t>(std::llround(cores * kPeriodMicros)));
}

std::string own_prefix() { return kPrefix + std::to_string(::getpid()) + "-"; }

// Makes a group and sets a quota in it: a read-only mount and a missing right show themselves only
// so.
Status try_group(const fs::path& base, const std::string& file, const std::string& value) {
  const fs::path folder = base / (own_prefix() + "probe");
  if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST)
    return fail(errno_error("make " + folder.string(), errno));
  Status written = write_control(folder / file, value);
  ::rmdir(folder.c_str());
  return written;
}

}  // namespace

Cgroup::Cgroup(Cgroup&& other) noexcept
    : folders_(std::exchange(other.folders_, {})),
      cpu_file_(std::exchange(other.cpu_file_, {})),
      oom_file_(std::exchange(other.oom_file_, {})),
      v2_(other.v2_) {}

Cgroup& Cgroup::operator=(Cgroup&& other) noexcept {
  std::swap(folders_, other.folders_);
  std::swap(cpu_file_, other.cpu_file_);
  std::swap(oom_file_, other.oom_file_);
  std::swap(v2_, other.v2_);
  return *this;
}

Cgroup::~Cgroup() {
  for (const auto& folder : folders_) {
    // A killed process leaves its group a moment after it was reaped.
    for (int i = 0; i < 50 && ::rmdir(folder.c_str()) != 0 && errno == EBUSY; ++i) ::usleep(1000);
  }
}

Status Cgroup::set_cpu(double cores) {
  if (cpu_file_.empty()) return fail(ErrorKind::kUnsupported, "no CPU control group here");
  if (cores <= 0) return write_control(cpu_file_, v2_ ? "max" : "-1");
  const std::string quota = std::to_string(quota_micros(cores));
  return write_control(cpu_file_, v2_ ? quota + " " + std::to_string(kPeriodMicros) : quota);
}

bool Cgroup::oom_killed() const {
  if (oom_file_.empty()) return false;
  std::ifstream in(oom_file_);
  std::string key;
  long long value = 0;
  while (in >> key >> value) {
    if (key == "oom_kill") return value > 0;
  }
  return false;
}

CgroupManager::CgroupManager(fs::path root) {
  if (fs::exists(root / "cpu/cpu.cfs_quota_us") || fs::exists(root / "cpu/cgroup.procs"))
    probe_v1(root);
  else if (fs::exists(root / "cgroup.controllers"))
    probe_v2(root);
  else
    complaint_ = "no control groups under " + root.string();
  if (has_cpu()) remove_leftovers(cpu_base_);
  if (has_memory() && memory_base_ != cpu_base_) remove_leftovers(memory_base_);
}

void CgroupManager::probe_v1(const fs::path& root) {
  const auto probe = [&](const char* controller, const std::string& file,
                         const std::string& value) -> fs::path {
    Status works = try_group(root / controller, file, value);
    if (works) return root / controller;
    complaint_ += (complaint_.empty() ? "" : "; ") + works.error().message;
    return {};
  };
  cpu_base_ = probe("cpu", "cpu.cfs_quota_us", std::to_string(kPeriodMicros));
  memory_base_ = probe("memory", "memory.limit_in_bytes", "1073741824");
}

void CgroupManager::probe_v2(const fs::path& root) {
  v2_ = true;
  // Only the root group may hold processes and hand out controllers at once, so a group of ours
  // sits there.
  (void)write_control(root / "cgroup.subtree_control", "+cpu");
  (void)write_control(root / "cgroup.subtree_control", "+memory");
  if (Status works = try_group(root, "cpu.max", "50000 50000"); works)
    cpu_base_ = root;
  else
    complaint_ = works.error().message;
  if (Status works = try_group(root, "memory.max", "1073741824"); works)
    memory_base_ = root;
  else
    complaint_ += (complaint_.empty() ? "" : "; ") + works.error().message;
}

void CgroupManager::remove_leftovers(const fs::path& base) const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(base, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const long pid = std::strtol(name.c_str() + std::string_view(kPrefix).size(), nullptr, 10);
    if (pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)
      ::rmdir(entry.path().c_str());
  }
}

Result<Cgroup> CgroupManager::create(const std::string& name, const CgroupLimits& limits) {
  Cgroup group;
  group.v2_ = v2_;
  const auto enter = [&](const fs::path& base) -> Result<fs::path> {
    const fs::path folder = base / (own_prefix() + name);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST)
      return fail(errno_error("make " + folder.string(), errno));
    if (group.folders_.empty() || group.folders_.back() != folder) group.folders_.push_back(folder);
    return folder;
  };
  if (has_cpu()) {  // also without a quota: "slow" needs one later
    ARCH_TRY(const fs::path folder, enter(cpu_base_));
    if (!v2_)
      ARCH_TRY_VOID(write_control(folder / "cpu.cfs_period_us", std::to_string(kPeriodMicros)));
    group.cpu_file_ = folder / (v2_ ? "cpu.max" : "cpu.cfs_quota_us");
    if (limits.cpu > 0) ARCH_TRY_VOID(group.set_cpu(limits.cpu));
  }
  if (has_memory() && limits.memory_bytes > 0) {
    ARCH_TRY(const fs::path folder, enter(memory_base_));
    ARCH_TRY_VOID(write_control(folder / (v2_ ? "memory.max" : "memory.limit_in_bytes"),
                                std::to_string(limits.memory_bytes)));
    group.oom_file_ = folder / (v2_ ? "memory.events" : "memory.oom_control");
  }
  return group;
}

}  // namespace archipelago::op
