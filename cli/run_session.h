#pragma once
// `archipelago run`: the controller that runs on Kubernetes, on a cluster in this process.
#include <atomic>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/event_log.h"
#include "cli/run_folder.h"
#include "cli/step_trace.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/config/spec.h"
#include "operator/api/status.h"
#include "operator/cluster/memory_cluster.h"
#include "operator/local/chaos.h"
#include "operator/local/dashboard.h"
#include "operator/local/kubelet.h"
#include "operator/local/run_record.h"
#include "operator/local/sampler.h"
#include "operator/runtime/controller.h"
#include "operator/runtime/http_status_source.h"

namespace archipelago::cli {

struct SessionOptions {
  std::filesystem::path bin_dir;
  double node_cpus = 0;   // capacity of each datacenter's node; 0: this machine's cores
  bool terminal = false;  // draw the dashboard
  LogLevel log_level = LogLevel::kInfo;
  bool trace_steps = false;  // steps.jsonl
  Duration stop_grace = seconds(10);
};

class RunSession {
 public:
  RunSession(config::DecoupledTraining training, RunFolder folder, op::ChaosSchedule chaos,
             SessionOptions options);
  ~RunSession();
  RunSession(const RunSession&) = delete;
  RunSession& operator=(const RunSession&) = delete;

  // Takes up what the folder holds (or nothing) and starts everything.
  [[nodiscard]] Status start(const std::optional<nlohmann::json>& stored);
  // Until the run ends or request_stop(); writes everything that belongs into the folder.
  [[nodiscard]] op::RunPhase run();
  void request_stop() { stop_ = true; }  // from any thread
  [[nodiscard]] bool stopped() const { return stop_; }

  [[nodiscard]] const nlohmann::json& summary() const { return *summary_; }
  [[nodiscard]] bool has_model() const { return has_model_; }
  // Why it failed, for people.
  [[nodiscard]] std::string failure() const;

 private:
  Status create_training(const std::optional<nlohmann::json>& stored);
  void tick();
  void read_status();
  void sample();
  op::UnitSample sample_unit(const op::UnitStatus& unit,
                             const std::vector<op::RunningPod>& pods) const;
  std::shared_ptr<const nlohmann::json> outer_answer(const std::vector<op::RunningPod>& pods) const;
  void act_chaos();
  void apply(const op::ChaosAction& action);
  void save();
  void finish();
  void show();
  void draw();
  void print_progress();
  [[nodiscard]] op::DashboardState dashboard() const;
  [[nodiscard]] std::string claim() const;

  const SystemClock clock_;
  config::DecoupledTraining training_;
  RunFolder folder_;
  op::ChaosSchedule chaos_;
  const SessionOptions options_;
  std::atomic<bool> stop_{false};
  Logger log_;
  op::RunRecord record_;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<op::MemoryCluster> cluster_;
  op::CgroupManager cgroups_;
  std::unique_ptr<op::Kubelet> kubelet_;
  op::HttpStatusSource source_;
  std::unique_ptr<op::Controller> controller_;
  std::unique_ptr<op::StatusSampler> sampler_;
  std::unique_ptr<StepTrace> trace_;
  std::unique_ptr<nlohmann::json> stored_training_;  // as last read from the cluster
  op::TrainingStatus status_;
  std::unique_ptr<nlohmann::json> summary_;
  std::deque<std::pair<double, std::int64_t>> pace_;  // (time, global step) of late
  std::shared_ptr<const nlohmann::json> outer_;       // newest answer, null while it is away
  std::string saved_version_;
  double next_save_ = 0;
  double next_show_ = 0;
  int drawn_lines_ = 0;
  bool has_model_ = false;
};

}  // namespace archipelago::cli
