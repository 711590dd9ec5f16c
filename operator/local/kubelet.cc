#include "operator/local/kubelet.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/local/chaos.h"
#include "operator/local/kubelet_impl.h"

namespace archipelago::op {

namespace {
using nlohmann::json;
constexpr double kTick = 0.01;  // an exit is noticed within this time
constexpr double kCommandTimeout = 5;
}  // namespace

std::string PodSlot::unit() const { return pod.label(kLabelUnit); }
bool PodSlot::is_outer() const { return pod.label(kLabelRole) == kRoleOuter; }

Kubelet::Impl::Impl(MemoryCluster& c, const Clock& k, CgroupManager& g, AddressPool a, Logger l,
                    KubeletOptions o)
    : cluster(c),
      clock(k),
      cgroups(g),
      addresses(std::move(a)),
      log(std::move(l)),
      options(std::move(o)) {
  for (const auto& node : options.nodes) nodes.push_back({node, true, std::nullopt});
}

Status Kubelet::Impl::write_node(const NodeState& state, bool create) {
  const std::string now = format_wall(clock.wall());
  json node = {{"apiVersion", "v1"},
               {"kind", "Node"},
               {"metadata",
                {{"name", state.node.name},
                 {"labels",
                  {{kNodeLabelDatacenter, state.node.datacenter},
                   {"kubernetes.io/hostname", state.node.name}}}}}};
  if (create) {
    if (auto made = cluster.create(node); !made && made.error().kind != ErrorKind::kConflict)
      return fail(made.error());
  }
  ARCH_TRY(const Object stored, cluster.get(Kind::kNode, {"", state.node.name}));
  json next = stored.json();
  json& status = next["status"];
  if (!status.is_object()) status = json::object();
  status["capacity"] = {{"cpu", json(state.node.cpu).dump()}};
  status["allocatable"] = status["capacity"];
  set_pod_condition(status, "Ready", state.ready,
                    state.ready ? "KubeletReady" : "NodeStatusUnknown",
                    state.ready ? "" : "Kubelet stopped posting node status.", clock.wall());
  // The condition of a node whose kubelet is silent is Unknown, not False.
  if (!state.ready) {
    for (auto& condition : status["conditions"]) condition["status"] = "Unknown";
  }
  if (auto written = cluster.update_status(next); !written) return fail(written.error());
  return {};
}

void Kubelet::Impl::list_pods() {
  auto pods = cluster.list(Kind::kPod, {});
  if (!pods) return;
  version = pods->resource_version;
  std::map<std::string, std::unique_ptr<PodSlot>> next;
  for (auto& pod : pods->items) {
    auto it = slots.find(pod.uid());
    if (it == slots.end()) {
      next.emplace(pod.uid(), std::make_unique<PodSlot>(pod));
    } else {
      it->second->pod = pod;
      next.emplace(pod.uid(), std::move(it->second));
    }
  }
  slots.swap(next);  // what is in neither is gone: its process goes with the slot
  for (auto& [uid, slot] : next) {
    if (slot) gone(*slot);
  }
  auto stream = cluster.watch(Kind::kPod, "", version);
  watch = stream ? std::move(*stream) : nullptr;
}

void Kubelet::Impl::on_event(const WatchEvent& event) {
  if (!event.resource_version.empty()) version = event.resource_version;
  switch (event.type) {
    case WatchType::kAdded:
    case WatchType::kModified: {
      auto& slot = slots[event.object->uid()];
      if (slot)
        slot->pod = *event.object;
      else
        slot = std::make_unique<PodSlot>(*event.object);
      break;
    }
    case WatchType::kDeleted: {
      const auto it = slots.find(event.object->uid());
      if (it == slots.end()) break;
      gone(*it->second);
      slots.erase(it);
      break;
    }
    case WatchType::kBookmark:
      break;
    case WatchType::kGone:
    case WatchType::kEnded:
      watch.reset();
      break;
  }
}

void Kubelet::Impl::pump_watch(std::stop_token stop) {
  if (!watch) list_pods();
  if (!watch) return;
  TimePoint deadline = SystemClock().now() + seconds(kTick);
  for (int i = 0; i < 1000 && watch; ++i) {
    auto event = watch->next(deadline, stop);
    if (!event) return;
    on_event(*event);
    deadline = SystemClock().now();  // only what is there already
  }
}

void Kubelet::Impl::run_commands() {
  std::vector<Command> todo;
  {
    std::lock_guard lock(mutex);
    todo.swap(commands);
  }
  for (auto& c : todo) c.done->set_value(c.run());
}

void Kubelet::Impl::publish_running() {
  std::vector<RunningPod> next;
  for (const auto& [uid, slot] : slots) {
    if (!slot->runs() || slot->lost) continue;
    next.push_back(slot->view);
    next.back().stopped = slot->stopped;
  }
  std::lock_guard lock(mutex);
  running = std::move(next);
}

void Kubelet::Impl::loop(std::stop_token stop) {
  while (!stop.stop_requested()) {
    run_commands();
    pump_watch(stop);
    end_losses();
    // A step may learn that its own pod is gone, but slots are erased by watch events only.
    for (auto& [uid, slot] : slots) step(*slot);
    publish_running();
  }
  {
    std::lock_guard lock(mutex);
    accepting = false;
  }
  run_commands();
  Duration grace{};
  {
    std::lock_guard lock(mutex);
    grace = stop_grace;
  }
  shutdown(grace);
  slots.clear();
  publish_running();
}

void Kubelet::Impl::shutdown(Duration grace) {
  for (const bool outer : {false, true}) {
    const TimePoint deadline = clock.now() + grace;
    for (auto& [uid, slot] : slots) {
      if (!slot->runs() || slot->is_outer() != outer) continue;
      slot->prober.reset();
      slot->process->signal(grace > Duration{} ? SIGTERM : SIGKILL);
      slot->process->signal(SIGCONT);
    }
    const auto alive = [&] {
      return std::any_of(slots.begin(), slots.end(), [&](auto& s) {
        return s.second->runs() && s.second->is_outer() == outer && !s.second->process->poll();
      });
    };
    while (alive() && clock.now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Status Kubelet::Impl::command(std::function<Status()> what) {
  auto done = std::make_shared<std::promise<Status>>();
  auto result = done->get_future();
  {
    std::lock_guard lock(mutex);
    if (!accepting) return fail(ErrorKind::kUnavailable, "the kubelet is stopped");
    commands.push_back({std::move(what), done});
  }
  if (result.wait_for(seconds(kCommandTimeout)) != std::future_status::ready)
    return fail(ErrorKind::kTimeout, "the kubelet did not answer");
  return result.get();
}

PodSlot* Kubelet::Impl::find_running(const std::string& target) {
  PodSlot* found = nullptr;
  for (auto& [uid, slot] : slots) {
    if (!slot->runs() || slot->lost) continue;
    if (target == kChaosOuterOptimizer ? !slot->is_outer() : slot->unit() != target) continue;
    if (found == nullptr || slot->state.container.started >= found->state.container.started)
      found = slot.get();
  }
  return found;
}

Status Kubelet::Impl::begin_loss(const std::string& datacenter, Duration how_long) {
  bool any = false;
  for (auto& node : nodes) {
    if (node.node.datacenter != datacenter) continue;
    any = true;
    node.ready = false;
    node.back_at = how_long > Duration{} ? std::optional(clock.now() + how_long) : std::nullopt;
    (void)write_node(node, false);
    for (auto& [uid, slot] : slots) {
      if (string_at(slot->pod.spec(), {"nodeName"}) != node.node.name || slot->ended()) continue;
      slot->lost = true;
      slot->prober.reset();
      if (slot->process) {
        slot->process->signal(SIGKILL);
        (void)slot->process->wait();
      }
      slot->state.container.ready = false;
      write_status(*slot);  // the node controller marks its pods not ready
    }
  }
  if (!any) return fail(ErrorKind::kNotFound, "no node in datacenter " + datacenter);
  return {};
}

void Kubelet::Impl::end_losses() {
  for (auto& node : nodes) {
    if (node.ready || !node.back_at || clock.now() < *node.back_at) continue;
    node.ready = true;
    node.back_at.reset();
    (void)write_node(node, false);
    for (auto& [uid, slot] : slots) {
      if (!slot->lost || string_at(slot->pod.spec(), {"nodeName"}) != node.node.name) continue;
      slot->lost = false;
      slot->state.reason = "NodeLost";
      slot->state.message = "The machine of this node went away under the pod.";
      finish(*slot, ExitStatus{128 + SIGKILL, SIGKILL});
    }
  }
}

Kubelet::Kubelet(MemoryCluster& cluster, const Clock& clock, CgroupManager& cgroups,
                 AddressPool addresses, Logger log, KubeletOptions options)
    : impl_(std::make_unique<Impl>(cluster, clock, cgroups, std::move(addresses), std::move(log),
                                   std::move(options))) {}

Kubelet::~Kubelet() { stop(Duration{}); }

Status Kubelet::start() {
  std::error_code error;
  for (const char* folder : {"logs", "volumes", "pods"}) {
    std::filesystem::create_directories(impl_->options.run_dir / folder, error);
    if (error)
      return fail(errno_error("make " + (impl_->options.run_dir / folder).string(), error.value()));
  }
  for (const auto& node : impl_->nodes) ARCH_TRY_VOID(impl_->write_node(node, true));
  impl_->accepting = true;
  impl_->thread = std::jthread([impl = impl_.get()](std::stop_token stop) { impl->loop(stop); });
  return {};
}

void Kubelet::stop(Duration grace) {
  if (!impl_->thread.joinable()) return;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop_grace = grace;
  }
  impl_->thread.request_stop();
  impl_->thread.join();
}

std::vector<RunningPod> Kubelet::running() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->running;
}

namespace {
tl::unexpected<Error> not_running(const std::string& target) {
  return fail(ErrorKind::kNotFound, target + " has no running process");
}
}  // namespace

Status Kubelet::kill(const std::string& target) {
  return impl_->command([this, target]() -> Status {
    PodSlot* slot = impl_->find_running(target);
    if (slot == nullptr) return not_running(target);
    slot->process->signal(SIGKILL);
    return {};
  });
}

Status Kubelet::hang(const std::string& target) {
  return impl_->command([this, target]() -> Status {
    PodSlot* slot = impl_->find_running(target);
    if (slot == nullptr) return not_running(target);
    slot->process->signal(SIGSTOP);
    slot->stopped = true;
    return {};
  });
}

Status Kubelet::evict(const std::string& target) {
  return impl_->command([this, target]() -> Status {
    PodSlot* slot = impl_->find_running(target);
    if (slot == nullptr) return not_running(target);
    return impl_->evict(*slot);
  });
}

Status Kubelet::slow(const std::string& target, double factor, Duration how_long) {
  return impl_->command([this, target, factor, how_long]() -> Status {
    PodSlot* slot = impl_->find_running(target);
    if (slot == nullptr) return not_running(target);
    return impl_->begin_slow(*slot, factor, how_long);
  });
}

Status Kubelet::lose_node(const std::string& datacenter, Duration how_long) {
  return impl_->command(
      [this, datacenter, how_long] { return impl_->begin_loss(datacenter, how_long); });
}

std::map<std::string, std::string> inherited_environment() {
  std::map<std::string, std::string> out;
  for (const char* name : {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
                           "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) out[name] = value;
  }
  return out;
}

}  // namespace archipelago::op
