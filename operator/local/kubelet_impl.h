#pragma once
// Inside of the kubelet; included by its own .cc files only.
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "operator/local/kubelet.h"
#include "operator/local/pod_launch.h"
#include "operator/local/pod_status.h"
#include "operator/local/prober.h"
#include "operator/local/process.h"

namespace archipelago::op {

// An island that a chaos action slows down: by its quota where it has one, else by stopping it part
// of the time.
struct SlowDown {
  double factor = 1;
  std::optional<TimePoint> until;
  bool by_quota = false;
  bool paused = false;
  TimePoint flip{};  // next stop or continue
};

struct PodSlot {
  explicit PodSlot(Object o) : pod(std::move(o)) {}
  Object pod;  // as last seen
  PodState state;
  PodLaunch launch;
  Cgroup cgroup;
  std::optional<Process> process;  // destroyed before cgroup
  std::unique_ptr<Prober> prober;
  std::optional<TimePoint> kill_at;  // SIGKILL then
  bool terminating = false;          // SIGTERM was sent
  bool deletion_seen = false;
  bool lost = false;  // its node is away: nothing about it is heard
  bool stopped = false;
  bool own_address = false;  // to be given back to the pool
  std::optional<SlowDown> slow;
  TimePoint retry_at{};
  TimePoint last_seen_until{};
  RunningPod view;  // filled at the start
  [[nodiscard]] bool ended() const { return state.container.phase == ContainerPhase::kTerminated; }
  [[nodiscard]] bool runs() const { return process.has_value() && !ended(); }
  [[nodiscard]] std::string unit() const;
  [[nodiscard]] bool is_outer() const;
};

struct NodeState {
  LocalNode node;
  bool ready = true;
  std::optional<TimePoint> back_at;  // when lost; nullopt and not ready: for ever
};

struct Kubelet::Impl {
  Impl(MemoryCluster& c, const Clock& k, CgroupManager& g, AddressPool a, Logger l,
       KubeletOptions o);

  // Loop (kubelet.cc).
  void loop(std::stop_token stop);
  void list_pods();
  void pump_watch(std::stop_token stop);
  void on_event(const WatchEvent& event);
  void run_commands();
  void publish_running();
  void shutdown(Duration grace);
  Status command(std::function<Status()> what);
  PodSlot* find_running(const std::string& target);
  Status begin_loss(const std::string& datacenter, Duration how_long);
  void end_losses();
  Status write_node(const NodeState& node, bool create);

  // One pod (kubelet_pod.cc).
  void step(PodSlot& slot);
  void schedule(PodSlot& slot);
  void try_start(PodSlot& slot);
  Status start_process(PodSlot& slot);
  Result<PodLaunch> prepare(PodSlot& slot);
  void watch_process(PodSlot& slot);
  void finish(PodSlot& slot, const ExitStatus& exit);
  void terminate(PodSlot& slot, Duration grace, const std::string& why);
  void step_slow(PodSlot& slot);
  Status begin_slow(PodSlot& slot, double factor, Duration how_long);
  Status evict(PodSlot& slot);
  void write_status(PodSlot& slot);
  void release(PodSlot& slot);
  void gone(const PodSlot& slot);
  void record(const PodSlot& slot, bool warning, const std::string& reason,
              const std::string& message);
  std::vector<NodeView> node_views() const;
  NodeState* node_of(const PodSlot& slot);

  MemoryCluster& cluster;
  const Clock& clock;
  CgroupManager& cgroups;
  AddressPool addresses;
  Logger log;
  KubeletOptions options;

  // Of the loop thread alone.
  std::map<std::string, std::unique_ptr<PodSlot>> slots;  // by uid
  std::vector<NodeState> nodes;
  std::unique_ptr<Watch> watch;
  std::string version;

  struct Command {
    std::function<Status()> run;
    std::shared_ptr<std::promise<Status>> done;
  };
  mutable std::mutex mutex;
  std::vector<Command> commands;
  bool accepting = false;
  std::vector<RunningPod> running;
  Duration stop_grace{};
  std::jthread thread;
};

}  // namespace archipelago::op
