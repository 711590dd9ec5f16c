#pragma once
// Asks the admin ports of a local run's processes a few times a second, one thread a port, so that
// one that hangs delays no other.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "operator/local/kubelet.h"

namespace archipelago::op {

inline constexpr int kLocalAdminPort = 8471;

struct StatusAnswer {
  std::shared_ptr<const nlohmann::json> document;  // null: no answer
  TimePoint at{};
};

class StatusSampler {
 public:
  explicit StatusSampler(Duration period = seconds(0.2), Duration timeout = seconds(0.5));
  ~StatusSampler();
  StatusSampler(const StatusSampler&) = delete;
  StatusSampler& operator=(const StatusSampler&) = delete;

  // The processes to ask from now on; threads come and go with them.
  void follow(const std::vector<RunningPod>& pods);
  // The last answer of a pod; null document when the last question was not answered in time.
  [[nodiscard]] StatusAnswer latest(const std::string& pod_uid) const;

 private:
  struct Target;
  const Duration period_;
  const Duration timeout_;
  std::map<std::string, std::unique_ptr<Target>> targets_;  // of the caller's thread; by pod uid
};

}  // namespace archipelago::op
