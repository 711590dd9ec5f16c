// One pod of the kubelet: bound, started, watched, ended.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/local/kubelet_impl.h"

namespace archipelago::op {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr double kRetrySeconds = 0.5;  // unschedulable, missing ConfigMap
// A deleted pod stays so long after its end: who watches reads the exit code and why it was
// disrupted.
constexpr double kLastLook = 0.1;
constexpr double kDutyPeriod = 0.1;  // of a slowed island without a quota
constexpr std::size_t kLogTail = 4096;

std::string read_up_to(const fs::path& file, std::size_t max, bool tail) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return {};
  in.seekg(0, std::ios::end);
  const auto size = static_cast<std::size_t>(std::max<std::streamoff>(0, in.tellg()));
  const std::size_t length = std::min(size, max);
  in.seekg(static_cast<std::streamoff>(tail ? size - length : 0));
  std::string out(length, '\0');
  in.read(out.data(), static_cast<std::streamsize>(length));
  out.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, in.gcount())));
  return out;
}

}  // namespace

void Kubelet::Impl::record(const PodSlot& slot, bool warning, const std::string& reason,
                           const std::string& message) {
  EventRecord event;
  event.kind = Kind::kPod;
  event.name_space = slot.pod.name_space();
  event.name = slot.pod.name();
  event.uid = slot.pod.uid();
  event.warning = warning;
  event.reason = reason;
  event.message = message;
  event.time = clock.wall();
  event.unit = slot.is_outer() ? "outer" : slot.unit();
  cluster.record(event);
}

std::vector<NodeView> Kubelet::Impl::node_views() const {
  std::vector<NodeView> views;
  for (const auto& node : nodes) {
    NodeView view{
        node.node.name,
        {{kNodeLabelDatacenter, node.node.datacenter}, {"kubernetes.io/hostname", node.node.name}},
        node.ready,
        node.node.cpu,
        0};
    for (const auto& [uid, slot] : slots) {
      if (!slot->ended() && string_at(slot->pod.spec(), {"nodeName"}) == view.name)
        view.cpu_used += requested_cpu(slot->pod.json());
    }
    views.push_back(std::move(view));
  }
  return views;
}

NodeState* Kubelet::Impl::node_of(const PodSlot& slot) {
  const std::string name = string_at(slot.pod.spec(), {"nodeName"});
  for (auto& node : nodes) {
    if (node.node.name == name) return &node;
  }
  return nullptr;
}

void Kubelet::Impl::step(PodSlot& slot) {
  if (slot.lost) return;
  if (slot.ended() || (!slot.runs() && pod_finished(slot.pod.json()))) {
    if (slot.pod.deleting() && clock.now() >= slot.last_seen_until)
      (void)cluster.finalize_delete(slot.pod.key(), slot.pod.uid());
    return;
  }
  if (slot.runs()) return watch_process(slot);
  if (slot.pod.deleting()) {  // nothing was started: nothing is to be waited for
    (void)cluster.finalize_delete(slot.pod.key(), slot.pod.uid());
    return;
  }
  if (clock.now() < slot.retry_at) return;
  slot.retry_at = clock.now() + seconds(kRetrySeconds);
  if (string_at(slot.pod.spec(), {"nodeName"}).empty()) schedule(slot);
  if (!string_at(slot.pod.spec(), {"nodeName"}).empty()) try_start(slot);
}

void Kubelet::Impl::schedule(PodSlot& slot) {
  const Placement placement = place_pod(slot.pod.json(), node_views());
  if (placement.node.empty()) {
    if (slot.state.unschedulable != placement.reason)
      record(slot, true, "FailedScheduling", placement.reason);
    slot.state.unschedulable = placement.reason;
    write_status(slot);
    return;
  }
  auto stored = cluster.get(Kind::kPod, slot.pod.key());
  if (!stored || stored->uid() != slot.pod.uid()) return;
  json bound = stored->json();
  bound["spec"]["nodeName"] = placement.node;
  if (auto written = cluster.update(bound); written) {
    slot.pod = *written;
    slot.state.bound = clock.wall();
    slot.state.unschedulable.clear();
  }
}

Result<PodLaunch> Kubelet::Impl::prepare(PodSlot& slot) {
  const std::string service = outer_service_name(slot.pod.label(kLabelRun));
  const std::string service_address = addresses.of_service(service);
  if (slot.state.pod_ip.empty()) {
    if (slot.is_outer()) {
      slot.state.pod_ip = service_address;
    } else {
      ARCH_TRY(slot.state.pod_ip, addresses.take());
      slot.own_address = true;
    }
  }
  LaunchContext context;
  context.run_dir = options.run_dir;
  context.pod_ip = slot.state.pod_ip;
  context.addresses = dns_names(service, slot.pod.name_space(), service_address);
  context.base_env = options.base_env;
  context.default_threads = options.default_threads;
  context.config_map = [&](const std::string& name) -> Result<json> {
    ARCH_TRY(const Object map, cluster.get(Kind::kConfigMap, {slot.pod.name_space(), name}));
    return at(map.json(), {"data"});
  };
  return plan_launch(slot.pod.json(), context);
}

void Kubelet::Impl::try_start(PodSlot& slot) {
  if (NodeState* node = node_of(slot); node == nullptr || !node->ready) return;
  ContainerState& container = slot.state.container;
  if (!slot.state.bound) slot.state.bound = clock.wall();
  const Status started = start_process(slot);
  if (started) {
    container.phase = ContainerPhase::kRunning;
    container.reason.clear();
    container.message.clear();
    container.started = clock.wall();
    slot.view = {slot.pod.name(),
                 slot.pod.uid(),
                 slot.unit(),
                 slot.pod.label(kLabelDatacenter),
                 std::strtoll(slot.pod.label(kLabelIncarnation).c_str(), nullptr, 10),
                 slot.state.pod_ip,
                 container.started,
                 false};
    slot.prober = std::make_unique<Prober>(slot.launch);
    container.ready = slot.prober->verdict().ready;
    record(slot, false, "Started",
           "Started " + slot.pod.name() + " (process " + std::to_string(slot.process->pid()) + ")");
  } else {
    // The binary is what an image is on Kubernetes.
    const std::string reason =
        started.error().kind == ErrorKind::kNotFound && !slot.launch.program.empty()
            ? "ImagePullBackOff"
            : "CreateContainerConfigError";
    if (container.message != started.error().message)
      record(slot, true, reason, started.error().message);
    container.reason = reason;
    container.message = started.error().message;
  }
  write_status(slot);
}

Status Kubelet::Impl::start_process(PodSlot& slot) {
  slot.launch = {};
  ARCH_TRY(slot.launch, prepare(slot));
  slot.state.container.name = slot.launch.container;
  const json& containers = at(slot.pod.spec(), {"containers"});
  if (containers.is_array() && !containers.empty())
    slot.state.container.image = string_at(containers[0], {"image"});
  std::error_code error;
  for (const auto& folder : slot.launch.folders) {
    fs::create_directories(folder, error);
    if (error) return fail(errno_error("make " + folder.string(), error.value()));
  }
  for (const auto& [file, content] : slot.launch.files) {
    fs::create_directories(file.parent_path(), error);
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << content;
    if (!out.flush()) return fail(ErrorKind::kIo, "write " + file.string());
  }
  fs::remove(slot.launch.termination_log, error);
  ARCH_TRY(slot.cgroup,
           cgroups.create(slot.pod.name(), {slot.launch.cpu_limit, slot.launch.memory_limit}));
  ProcessSpec spec;
  spec.executable = options.bin_dir / slot.launch.program;
  spec.args = slot.launch.args;
  spec.env = slot.launch.env;
  spec.log_path = options.run_dir / "logs" / (slot.pod.name() + ".log");
  spec.cgroups = slot.cgroup.folders();
  spec.launcher = options.launcher;
  auto process = Process::spawn(spec);
  if (!process) {
    slot.cgroup = Cgroup();
    return fail(process.error());
  }
  slot.process.emplace(std::move(*process));
  return {};
}

void Kubelet::Impl::watch_process(PodSlot& slot) {
  if (const auto exit = slot.process->poll()) {
    finish(slot, *exit);
    return;
  }
  if (slot.pod.deleting() && !slot.deletion_seen) {
    slot.deletion_seen = true;
    const Duration grace =
        seconds(number_at(slot.pod.json(), {"metadata", "deletionGracePeriodSeconds"}, 30));
    if (!slot.terminating)
      terminate(slot, grace, "deleted");
    else if (slot.kill_at)
      slot.kill_at = std::min(*slot.kill_at, clock.now() + grace);
  }
  if (slot.prober) {
    const ProbeVerdict verdict = slot.prober->verdict();
    if (verdict.dead && !slot.terminating) {
      record(slot, true, "Unhealthy", verdict.message + "; the process is killed");
      terminate(slot, verdict.grace, "unhealthy");
    }
    if (verdict.ready != slot.state.container.ready) {
      slot.state.container.ready = verdict.ready;
      write_status(slot);
    }
  }
  if (slot.kill_at && clock.now() >= *slot.kill_at) {
    slot.process->signal(SIGKILL);
    slot.kill_at.reset();
  }
  step_slow(slot);
}

void Kubelet::Impl::terminate(PodSlot& slot, Duration grace, const std::string& why) {
  slot.terminating = true;
  slot.kill_at = clock.now() + grace;
  slot.process->signal(grace > Duration{} ? SIGTERM : SIGKILL);
  log.debug("pod terminating",
            {{"pod", slot.pod.name()}, {"why", why}, {"grace_seconds", to_seconds(grace)}});
}

void Kubelet::Impl::finish(PodSlot& slot, const ExitStatus& exit) {
  ContainerState& c = slot.state.container;
  const bool oom = exit.signal == SIGKILL && slot.cgroup.oom_killed();
  c.phase = ContainerPhase::kTerminated;
  c.ready = false;
  c.exit_code = exit.code;
  c.signal = exit.signal;
  c.finished = clock.wall();
  if (c.started == WallTime{}) c.started = c.finished;
  c.reason = oom ? "OOMKilled" : (exit.code == 0 ? "Completed" : "Error");
  c.message = termination_message(
      read_up_to(slot.launch.termination_log, kLogTail, false),
      read_up_to(options.run_dir / "logs" / (slot.pod.name() + ".log"), kLogTail, true),
      slot.launch.fallback_to_logs, exit.code);
  slot.prober.reset();
  slot.process.reset();
  slot.cgroup = Cgroup();
  slot.kill_at.reset();
  slot.slow.reset();
  release(slot);
  std::string text =
      slot.pod.name() + (exit.signal != 0 ? " was ended by signal " + std::to_string(exit.signal)
                                          : " exited with code " + std::to_string(exit.code));
  if (oom) text += ", out of memory";
  record(slot, exit.code != 0, oom ? "OOMKilled" : "Exited", text);
  slot.last_seen_until = clock.now() + seconds(kLastLook);
  write_status(slot);
}

void Kubelet::Impl::release(PodSlot& slot) {
  if (slot.own_address) addresses.give_back(slot.state.pod_ip);
  slot.own_address = false;
}

void Kubelet::Impl::gone(const PodSlot& slot) {
  if (slot.own_address) addresses.give_back(slot.state.pod_ip);
  std::error_code ignored;
  if (!slot.pod.name().empty()) fs::remove_all(options.run_dir / "pods" / slot.pod.name(), ignored);
}

void Kubelet::Impl::write_status(PodSlot& slot) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    auto stored = cluster.get(Kind::kPod, slot.pod.key());
    if (!stored || stored->uid() != slot.pod.uid()) return;
    json next = stored->json();
    json status = pod_status(slot.state, stored->status(), clock.wall());
    if (slot.state.reason == "NodeLost" && slot.ended())
      set_pod_condition(status, "DisruptionTarget", true, "TerminationByKubelet",
                        slot.state.message, clock.wall());
    if (status == stored->status()) return;
    next["status"] = std::move(status);
    auto written = cluster.update_status(next);
    if (written) {
      slot.pod = *written;
      return;
    }
    if (written.error().kind != ErrorKind::kConflict) {
      log.warn("pod status not written",
               {{"pod", slot.pod.name()}, {"error", written.error().message}});
      return;
    }
  }
}

Status Kubelet::Impl::evict(PodSlot& slot) {
  ARCH_TRY(const Object stored, cluster.get(Kind::kPod, slot.pod.key()));
  json next = stored.json();
  set_pod_condition(next["status"], "DisruptionTarget", true, "EvictionByEvictionAPI",
                    "Eviction API: evicting", clock.wall());
  if (auto written = cluster.update_status(next); !written) return fail(written.error());
  return cluster.remove(Kind::kPod, slot.pod.key(), {slot.pod.uid(), std::nullopt});
}

Status Kubelet::Impl::begin_slow(PodSlot& slot, double factor, Duration how_long) {
  SlowDown slow;
  slow.factor = std::max(1.0, factor);
  if (how_long > Duration{}) slow.until = clock.now() + how_long;
  slow.by_quota = slot.launch.cpu_limit > 0 && slot.cgroup.limits_cpu();
  slow.flip = clock.now();
  if (slow.by_quota) ARCH_TRY_VOID(slot.cgroup.set_cpu(slot.launch.cpu_limit / slow.factor));
  slot.slow = slow;
  return {};
}

void Kubelet::Impl::step_slow(PodSlot& slot) {
  if (!slot.slow || slot.stopped) return;
  const TimePoint now = clock.now();
  if (slot.slow->until && now >= *slot.slow->until) {
    if (slot.slow->by_quota)
      (void)slot.cgroup.set_cpu(slot.launch.cpu_limit);
    else
      slot.process->signal(SIGCONT);
    slot.slow.reset();
    return;
  }
  if (slot.slow->by_quota || now < slot.slow->flip) return;
  const double runs = kDutyPeriod / slot.slow->factor;
  slot.slow->paused = !slot.slow->paused;
  slot.process->signal(slot.slow->paused ? SIGSTOP : SIGCONT);
  slot.slow->flip = now + seconds(slot.slow->paused ? kDutyPeriod - runs : runs);
}

}  // namespace archipelago::op
