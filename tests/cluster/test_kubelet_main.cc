// archipelago-test-kubelet: a cluster's nodes without containers, and a stub for all outer
// optimizers, for tests against an API server alone (tests/cluster/api).
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/signals.h"
#include "common/http/server.h"
#include "operator/kube/kube_cluster.h"
#include "operator/kube/kube_config.h"
#include "tests/cluster/outer_stub.h"
#include "tests/cluster/test_kubelet.h"

namespace archipelago::test {
namespace {

struct Flags {
  std::string kubeconfig;
  std::string listen = "127.0.0.1:0";
  KubeletOptions kubelet;
};

void add_figures(http::Server& server, const TestKubelet& kubelet) {
  server.route("GET", "/control/figures", [&](const http::Request&) {
    const nlohmann::json out{{"started", kubelet.started()}, {"ended", kubelet.ended()}};
    return http::Reply::json(out.dump());
  });
}

Status run(const Flags& flags, SignalWaiter& signals) {
  const SystemClock clock;
  const Logger log = Logger::to_stderr("test-kubelet");
  ARCH_TRY(op::KubeAccess access, op::load_kube_access(flags.kubeconfig, ""));
  op::KubeClientOptions options;
  options.user_agent = "archipelago-test-kubelet";
  options.qps = options.burst = 1e5;  // the server's own limits are enough
  options.connections = flags.kubelet.workers + 2;
  ARCH_TRY(const auto client, op::KubeClient::open(std::move(access), options, clock, log));
  op::KubeClusterOptions cluster_options;
  cluster_options.child_selector.clear();
  cluster_options.slim = false;
  op::KubeCluster cluster(*client, cluster_options);
  PodTable table;
  TestKubelet kubelet(*client, cluster, table, clock, log, flags.kubelet);
  OuterStub stub(table, clock);
  http::ServerOptions server_options;
  ARCH_TRY(server_options.listen, http::parse_endpoint(flags.listen));
  server_options.threads = 16;
  http::Server server(server_options, log);
  stub.add_routes(server);
  add_figures(server, kubelet);
  ARCH_TRY_VOID(server.start());
  ARCH_TRY_VOID(kubelet.start());

  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  signals.start([&](int) {
    const std::lock_guard lock(mutex);
    stopped = true;
    changed.notify_all();
  });
  std::cout << "listening on " << server.port() << std::endl;
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return stopped; });
  lock.unlock();
  client->stop_reading();
  kubelet.stop();
  server.stop();
  return {};
}

}  // namespace
}  // namespace archipelago::test

int main(int argc, char** argv) {
  archipelago::SignalWaiter signals;
  archipelago::test::Flags flags;
  CLI::App app{"A cluster's nodes without containers, for tests against an API server alone"};
  app.add_option("--kubeconfig", flags.kubeconfig, "kubeconfig file")->required();
  app.add_option("--namespace", flags.kubelet.name_space, "namespace; all when left out");
  app.add_option("--listen", flags.listen, "HOST:PORT of the stub and the control routes");
  app.add_option("--workers", flags.kubelet.workers, "calls at once")->check(CLI::Range(1, 64));
  app.add_option("--scheduler", flags.kubelet.scheduler,
                 "for a cluster with nodes of its own: only pods with this schedulerName");
  app.add_option("--nodes", flags.kubelet.nodes, "number of nodes")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const archipelago::Status done = archipelago::test::run(flags, signals);
  if (done) return 0;
  std::cerr << "archipelago-test-kubelet: " << done.error().message << "\n";
  return 1;
}
