#include "operator/app/daemon.h"

#include <algorithm>

#include "common/base/version.h"
#include "operator/app/proxied_status_source.h"
#include "operator/kube/kube_config.h"
#include "operator/runtime/http_status_source.h"

namespace archipelago::op {
namespace {

constexpr Duration kAskAgain = seconds(3);  // for a resource that isn't served yet

// With every worker in a call, the lists of the reflectors and the poller still find a connection.
int connections(const OperatorOptions& options) { return options.controller.workers + 8; }

std::string say(bool ready, const std::string& text) {
  return (ready ? "ready: " : "not ready: ") + text + "\n";
}

}  // namespace

Readiness readiness(OperatorStage stage, const std::string& discovery, bool synced,
                    const std::string& blind) {
  switch (stage) {
    case OperatorStage::kDiscovering:
      return {false, discovery};
    case OperatorStage::kWaiting:
      return {true, "standing by, another replica leads"};
    case OperatorStage::kLeading:
      break;
  }
  if (!blind.empty()) return {false, blind};
  if (!synced) return {false, "reading the cluster's state"};
  return {true, "leading"};
}

OperatorDaemon::OperatorDaemon(const OperatorOptions& options, Logger log)
    : options_(options), log_(std::move(log)) {}

OperatorDaemon::~OperatorDaemon() { stop(); }

Result<std::unique_ptr<OperatorDaemon>> OperatorDaemon::start(const OperatorOptions& options,
                                                              Logger log) {
  std::unique_ptr<OperatorDaemon> daemon(new OperatorDaemon(options, std::move(log)));
  ARCH_TRY_VOID(daemon->open());
  return daemon;
}

Status OperatorDaemon::open() {
  const OperatorFlags& flags = options_.flags;
  ARCH_TRY(KubeAccess access, load_kube_access(flags.kubeconfig, flags.context));
  const bool in_cluster = access.in_cluster;
  const std::string own_namespace = access.name_space;
  log_.info("API server", {{"url", access.url()}, {"from", access.origin}});
  KubeClientOptions client;
  client.user_agent = "archipelago-operator/" + version();
  client.qps = flags.api_qps;
  client.burst = flags.api_burst;
  client.connections = connections(options_);
  client.progress_calls = std::max(options_.controller.workers / 2, 1);
  ARCH_TRY(client_, KubeClient::open(std::move(access), client, clock_, log_.named("kube"),
                                     &metrics_, &gate_));
  cluster_ = std::make_unique<KubeCluster>(*client_);
  const bool proxied =
      options_.reach == ReachPods::kProxy || (options_.reach == ReachPods::kAuto && !in_cluster);
  if (proxied && !options_.outer_address)
    source_ = std::make_unique<ProxiedStatusSource>(*client_);
  else
    source_ = std::make_unique<HttpStatusSource>(options_.outer_address);
  if (flags.leader_elect) {
    LeaderOptions leader = options_.leader;
    if (leader.name_space.empty()) leader.name_space = own_namespace;
    ARCH_TRY_VOID(check_leader_options(leader));
    elector_ = std::make_unique<LeaderElector>(
        *client_, boot_clock_, gate_, log_.named("leader"), leader,
        [this](const std::string& why) { lost(why); }, &metrics_);
  }
  controller_ = std::make_unique<Controller>(*cluster_, *source_, clock_, log_.named("controller"),
                                             &metrics_, options_.controller);
  http::ServerOptions server;
  server.listen = options_.listen;
  server.threads = 3;
  server.max_connections = 64;
  server_ = std::make_unique<http::Server>(server, log_.named("http"));
  server_->route("GET", "/healthz", [](const http::Request&) { return http::Reply::text("ok\n"); });
  server_->route("GET", "/readyz", [this](const http::Request&) {
    const Readiness r = ready();
    return http::Reply::text(say(r.ready, r.text), r.ready ? 200 : 503);
  });
  server_->route("GET", "/metrics",
                 [this](const http::Request&) { return http::Reply::text(metrics_.render()); });
  ARCH_TRY_VOID(server_->start());
  log_.info("serving", {{"listen", options_.listen.text()}, {"port", server_->port()}});
  thread_ = std::jthread([this](std::stop_token token) { work(token); });
  return {};
}

void OperatorDaemon::enter(OperatorStage stage, const std::string& text) {
  std::lock_guard lock(mutex_);
  stage_ = stage;
  discovery_ = text;
}

Readiness OperatorDaemon::ready() const {
  std::lock_guard lock(mutex_);
  return readiness(stage_, discovery_, controller_->synced(), controller_->blind());
}

bool OperatorDaemon::discover_resource(const std::stop_token& stop) {
  std::string said;
  while (!stop.stop_requested()) {
    const Discovery found = discover(*client_);
    if (found.served == Served::kYes) {
      log_.info("resource is served", {{"server", found.server_version}});
      return true;
    }
    enter(OperatorStage::kDiscovering, found.message);
    if (found.message != said) log_.warn("not ready", {{"reason", found.message}});
    said = found.message;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kAskAgain, [] { return false; });
  }
  return false;
}

bool OperatorDaemon::lead(const std::stop_token& stop) {
  if (!elector_) return true;
  enter(OperatorStage::kWaiting, "");
  elector_->start();
  return elector_->wait_until_leading(stop);
}

void OperatorDaemon::work(const std::stop_token& stop) {
  if (!discover_resource(stop) || !lead(stop)) return;
  enter(OperatorStage::kLeading, "");
  log_.info("leading", {{"namespace", options_.controller.name_space}});
  std::lock_guard lock(mutex_);
  if (stop_requested_ || lost_) return;
  controller_->start();
}

void OperatorDaemon::lost(const std::string& why) {
  log_.error("lease lost", {{"reason", why}});
  std::lock_guard lock(mutex_);
  lost_ = true;
  changed_.notify_all();
}

void OperatorDaemon::request_stop() {
  std::lock_guard lock(mutex_);
  stop_requested_ = true;
  changed_.notify_all();
}

bool OperatorDaemon::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_requested_ || lost_; });
  return !lost_;
}

void OperatorDaemon::stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    stop_requested_ = true;
  }
  if (client_) client_->stop_reading();
  thread_.request_stop();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (controller_) controller_->stop();
  if (elector_) elector_->stop();
  if (server_) server_->stop();
}

}  // namespace archipelago::op
