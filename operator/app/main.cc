// archipelago-operator: reconciles DecoupledTraining resources of one cluster. Exit codes: 0
// stopped by a signal, 1 an error, 2 a flag is refused, 3 the lease was lost.
#include <cstdio>
#include <malloc.h>

#include <CLI/CLI.hpp>

#include "common/base/signals.h"
#include "common/base/version.h"
#include "operator/app/daemon.h"

namespace archipelago::op {
namespace {

constexpr int kExitError = 1;
constexpr int kExitRefused = 2;

void add_api_flags(CLI::App& app, OperatorFlags& f) {
  app.add_option("--kubeconfig", f.kubeconfig,
                 "default: $KUBECONFIG, ~/.kube/config, else the pod's service account");
  app.add_option("--context", f.context, "of the kubeconfig; default: its current one");
  app.add_option("--namespace", f.name_space, "serve this one only; default: all");
  app.add_option("--api-qps", f.api_qps, "API requests a second, watches apart")
      ->capture_default_str();
  app.add_option("--api-burst", f.api_burst, "API requests at once")->capture_default_str();
  app.add_option("--workers", f.workers, "runs reconciled at once")->capture_default_str();
  app.add_flag("--leader-elect,!--no-leader-elect", f.leader_elect,
               "act only while holding the lease: needed with several replicas");
  app.add_option("--lease-name", f.lease_name)->capture_default_str();
  app.add_option("--lease-namespace", f.lease_namespace, "default: the operator's own");
  app.add_option("--lease-duration", f.lease_seconds, "seconds")->capture_default_str();
  app.add_option("--renew-deadline", f.renew_deadline_seconds, "seconds")->capture_default_str();
  app.add_option("--retry-period", f.retry_seconds, "seconds")->capture_default_str();
}

void add_run_flags(CLI::App& app, OperatorFlags& f) {
  app.add_option("--listen", f.listen, "ADDR:PORT of /healthz, /readyz, /metrics")
      ->capture_default_str();
  app.add_option("--learner-image", f.learner_image, "for runs that name none");
  app.add_option("--outer-optimizer-image", f.outer_image, "for runs that name none");
  app.add_option("--reach-pods", f.reach_pods,
                 "auto: direct in the cluster, through the API server's proxy outside; direct; "
                 "proxy")
      ->capture_default_str();
  app.add_option("--outer-optimizer-address", f.outer_address,
                 "ADDR:PORT that answers for every pod: for tests");
  app.add_option("--poll-interval", f.poll_seconds, "seconds between two looks at a run's progress")
      ->capture_default_str();
  app.add_option("--log-level", f.log_level, "debug, info, warn or error")->capture_default_str();
}

int complain(const std::string& message, int code) {
  std::fprintf(stderr, "archipelago-operator: %s\n", message.c_str());
  return code;
}

int run(const OperatorFlags& flags, SignalWaiter& signals) {
  const auto options = read_operator_options(flags);
  if (!options) return complain(options.error().message, kExitRefused);
  auto daemon = OperatorDaemon::start(*options, Logger::to_stderr("operator", options->log_level));
  if (!daemon) {
    const bool refused = daemon.error().kind == ErrorKind::kInvalid;
    return complain(daemon.error().message, refused ? kExitRefused : kExitError);
  }
  signals.start([&](int) { (*daemon)->request_stop(); });
  const bool asked = (*daemon)->wait();
  (*daemon)->stop();
  return asked ? 0 : kExitLeaseLost;
}

}  // namespace
}  // namespace archipelago::op

int main(int argc, char** argv) {
  archipelago::SignalWaiter signals;  // before anything that may start a thread
  // Many threads parse and free large objects: an arena for each would keep their peaks for ever.
  ::mallopt(M_ARENA_MAX, 2);
  archipelago::op::OperatorFlags flags;
  CLI::App app{"Operator of DecoupledTraining resources"};
  app.set_version_flag("--version", "archipelago-operator " + archipelago::version());
  archipelago::op::add_api_flags(app, flags);
  archipelago::op::add_run_flags(app, flags);
  try {
    app.parse(argc, argv);
    return archipelago::op::run(flags, signals);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : archipelago::op::kExitRefused;
  } catch (const std::exception& error) {
    return archipelago::op::complain(error.what(), archipelago::op::kExitError);
  }
}
