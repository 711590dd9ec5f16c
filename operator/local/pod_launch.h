#pragma once
// From a pod object to what a process needs: pure, so every mapping of container things onto this
// machine is tested.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace archipelago::op {

// httpGet only: it is the only kind that our pods have.
struct Probe {
  std::string host;
  int port = 0;
  std::string path = "/";
  Duration initial_delay{};
  Duration period = seconds(10);
  Duration timeout = seconds(1);
  int failure_threshold = 3;
  std::optional<Duration> termination_grace;
};

struct PodLaunch {
  std::string container;  // its name in the status
  std::string program;    // file name of the binary
  std::vector<std::string> args;
  std::map<std::string, std::string> env;
  std::vector<std::pair<std::filesystem::path, std::string>> files;  // to write before the start
  std::vector<std::filesystem::path> folders;                        // to make before the start
  double cpu_limit = 0;
  std::int64_t memory_limit = 0;
  Duration grace = seconds(30);
  std::filesystem::path termination_log;
  bool fallback_to_logs = false;
  std::optional<Probe> startup, liveness, readiness;
};

struct LaunchContext {
  std::filesystem::path run_dir;  // absolute: volumes/, pods/, logs/ lie in it
  std::string pod_ip;
  std::map<std::string, std::string> addresses;  // host names of Services
  // `data` of a ConfigMap; kNotFound where it does not exist (yet).
  std::function<Result<nlohmann::json>(const std::string& name)> config_map;
  std::map<std::string, std::string> base_env;  // PATH and the like, from this process
  int default_threads = 1;                      // of a pod without a CPU limit
};

// Errors become the waiting reason CreateContainerConfigError.
[[nodiscard]] Result<PodLaunch> plan_launch(const nlohmann::json& pod,
                                            const LaunchContext& context);

// Threads for a CPU limit: rounded up, at least 1.
[[nodiscard]] int threads_for(double cpu_limit);

// "500m", "1.5", "2Gi", "1e9": 0 when it is no quantity.
[[nodiscard]] double parse_quantity(const nlohmann::json& value);
// CPU that the scheduler counts: requests, else limits, over the containers.
[[nodiscard]] double requested_cpu(const nlohmann::json& pod);

}  // namespace archipelago::op
