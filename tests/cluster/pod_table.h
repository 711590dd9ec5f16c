#pragma once
// What the test kubelet has made run, as the stub of the outer optimizers tells it.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "operator/cluster/object.h"

namespace archipelago::test {

struct RunningPod {
  std::string uid;
  op::ObjectKey key;
  std::string run_uid;
  std::string role;
  std::string datacenter;
  std::string unit;
  std::int64_t incarnation = 0;
  TimePoint since{};
};

// Thread-safe.
class PodTable {
 public:
  void put(RunningPod pod) {
    const std::lock_guard lock(mutex_);
    by_run_[pod.run_uid][pod.uid] = std::move(pod);
  }
  void erase(const std::string& run_uid, const std::string& uid) {
    const std::lock_guard lock(mutex_);
    const auto run = by_run_.find(run_uid);
    if (run == by_run_.end()) return;
    run->second.erase(uid);
    if (run->second.empty()) by_run_.erase(run);
  }
  [[nodiscard]] std::vector<RunningPod> of_run(const std::string& run_uid) const {
    const std::lock_guard lock(mutex_);
    std::vector<RunningPod> out;
    const auto run = by_run_.find(run_uid);
    if (run == by_run_.end()) return out;
    for (const auto& [uid, pod] : run->second) out.push_back(pod);
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, RunningPod>> by_run_;
};

}  // namespace archipelago::test
