#pragma once
// CPU quota and memory limit of one pod by control groups, version 1 or 2, where the machine
// permits it.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace archipelago::op {

struct CgroupLimits {
  double cpu = 0;                 // cores; 0 = no quota
  std::int64_t memory_bytes = 0;  // 0 = no limit
};

// One pod's groups. Its folders go with it: only when no process is left inside.
class Cgroup {
 public:
  Cgroup() = default;
  Cgroup(Cgroup&& other) noexcept;
  Cgroup& operator=(Cgroup&& other) noexcept;
  ~Cgroup();

  [[nodiscard]] const std::vector<std::filesystem::path>& folders() const { return folders_; }
  [[nodiscard]] bool limits_cpu() const { return !cpu_file_.empty(); }
  // New quota in cores for the processes inside, 0 = none; kUnsupported where there is no CPU
  // group.
  [[nodiscard]] Status set_cpu(double cores);
  // True when the kernel killed a process of this group for memory.
  [[nodiscard]] bool oom_killed() const;

 private:
  friend class CgroupManager;
  std::vector<std::filesystem::path> folders_;
  std::filesystem::path cpu_file_;
  std::filesystem::path oom_file_;
  bool v2_ = false;
};

class CgroupManager {
 public:
  // Looks what works under `root` (/sys/fs/cgroup) by making and removing a group, and removes
  // groups that a dead earlier run left behind.
  explicit CgroupManager(std::filesystem::path root = "/sys/fs/cgroup");

  [[nodiscard]] bool has_cpu() const { return !cpu_base_.empty(); }
  [[nodiscard]] bool has_memory() const { return !memory_base_.empty(); }
  // Why a limit can't be kept here; empty where all can. For one line to the user.
  [[nodiscard]] const std::string& complaint() const { return complaint_; }
  // Limits that this machine can't keep are left out (complaint() was said once). Name: a label of
  // [a-z0-9-].
  [[nodiscard]] Result<Cgroup> create(const std::string& name, const CgroupLimits& limits);

 private:
  void probe_v1(const std::filesystem::path& root);
  void probe_v2(const std::filesystem::path& root);
  void remove_leftovers(const std::filesystem::path& base) const;

  std::filesystem::path cpu_base_;  // v1: the controller's own tree; v2: the same folder for both
  std::filesystem::path memory_base_;
  bool v2_ = false;
  std::string complaint_;
};

}  // namespace archipelago::op
