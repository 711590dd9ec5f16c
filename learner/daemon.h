#pragma once
// The learner process: one learner unit of one rank. main.cc gives it flags and a trainer;
// everything else is here, so that tests run it with a FakeTrainer.
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "common/base/log.h"
#include "common/base/result.h"
#include "common/config/spec.h"
#include "learner/exit_code.h"
#include "learner/tensor_shape.h"
#include "learner/trainer.h"

namespace archipelago::learner {

struct Flags {
  std::string config;  // file: the resolved DecoupledTraining
  std::string unit;
  std::int64_t incarnation = 1;
  std::string datacenter;
  std::string outer;  // URL or host:port
  std::string admin = "127.0.0.1:8471";
  std::string run_id;
  int threads = 0;              // 0: OMP_NUM_THREADS, else the cgroup's quota, else the cores
  std::string termination_log;  // empty: $ARCHIPELAGO_TERMINATION_LOG, else /dev/termination-log
                                // where it exists
  std::string log_level = "info";
};

struct DaemonHooks {
  // The tensors of the model, known before the trainer exists: the exchange starts while libtorch
  // does.
  std::function<std::vector<TensorShape>(const config::ModelSpec&)> shapes;
  std::function<Result<std::unique_ptr<Trainer>>(const config::ModelSpec&,
                                                 const config::InnerSpec&)>
      trainer;
  std::function<void(int port)> admin_ready = [](int) {};  // tests
};

[[nodiscard]] ExitCode run_daemon(const Flags& flags, const DaemonHooks& hooks,
                                  const std::stop_token& stop, const Logger& log);

// Where the last words go; empty: nowhere.
[[nodiscard]] std::string termination_path(const Flags& flags);
void write_termination(const std::string& path, const std::string& message);

// For this process: quota of cgroup v2 or v1, rounded up, at most the cores; at least 1.
[[nodiscard]] int default_threads();

}  // namespace archipelago::learner
