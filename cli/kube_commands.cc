#include "cli/kube_commands.h"

#include <atomic>
#include <cstdio>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/print_status.h"
#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/api/status.h"

namespace archipelago::cli {
namespace {

using nlohmann::json;

int failed(const Error& error) {
  const bool refused = error.kind == ErrorKind::kNotFound || error.kind == ErrorKind::kInvalid;
  return complain(error.message, refused ? kExitRefused : kExitFailed);
}

Result<std::vector<json>> runs_of(KubeSession& session, const KubeArguments& kube) {
  const std::string where = kube.all_namespaces ? "" : session.name_space();
  ARCH_TRY(const op::ObjectList list, session.cluster().list(op::Kind::kTraining, {where, {}}));
  std::vector<json> out;
  for (const op::Object& o : list.items) out.push_back(o.json());
  return out;
}

Result<std::string> show(KubeSession& session, const KubeStatusArguments& arguments, bool* ended) {
  if (arguments.name.empty()) {
    ARCH_TRY(const std::vector<json> runs, runs_of(session, arguments.kube));
    if (arguments.json)
      return json(runs).dump(2, ' ', false, json::error_handler_t::replace) + "\n";
    if (runs.empty()) return std::string("no runs\n");
    return runs_table(runs, arguments.kube.all_namespaces);
  }
  ARCH_TRY(const op::Object training, session.training(arguments.name));
  *ended = op::is_terminal(op::parse_status(training.status()).phase);
  if (arguments.json)
    return training.json().dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return status_text(training.json());
}

}  // namespace

int kube_status_command(const KubeStatusArguments& arguments, SignalWaiter& signals) {
  auto session = KubeSession::open(arguments.kube);
  if (!session) return failed(session.error());
  std::atomic<bool> stop{false};
  if (arguments.watch) signals.start([&](int) { stop = true; });
  std::string last;
  bool ended = false;
  while (true) {
    const auto text = show(**session, arguments, &ended);
    // A watch outlives an API server that is away for a while.
    if (!text && !(arguments.watch && is_retryable(text.error().kind))) return failed(text.error());
    if (text && *text != last) {
      if (!last.empty()) std::cout << "\n";
      std::cout << *text << std::flush;
      last = *text;
    }
    if (!arguments.watch || ended) return kExitOk;
    for (int i = 0; i < 20 && !stop; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (stop) return kExitStopped;
  }
}

int kube_logs_command(const KubeLogArguments& arguments, SignalWaiter& signals) {
  auto session = KubeSession::open(arguments.kube);
  if (!session) return failed(session.error());
  const auto training = (*session)->training(arguments.name);
  if (!training) return failed(training.error());
  if (arguments.what.empty()) {
    const auto pods = (*session)->cluster().list(
        op::Kind::kPod, {(*session)->name_space(), op::run_selector(training->uid())});
    if (!pods) return failed(pods.error());
    for (const op::Object& pod : pods->items) std::printf("%s\n", pod.name().c_str());
    return kExitOk;
  }
  const auto pod = (*session)->pod_of(*training, arguments.what);
  if (!pod) return failed(pod.error());
  op::kube::LogOptions options;
  options.follow = arguments.follow;
  options.container = op::string_at(op::at(pod->spec(), {"containers"}).at(0), {"name"});
  if (arguments.lines > 0) options.tail_lines = arguments.lines;
  std::stop_source stop;
  if (arguments.follow)
    signals.start([&](int) {
      stop.request_stop();
      (*session)->client().stop_reading();
    });
  op::StreamOptions stream;
  stream.stop = stop.get_token();
  if (arguments.follow) stream.idle = stream.total;
  const http::Sink print = [](std::span<const std::byte> bytes) -> Status {
    std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                    static_cast<std::streamsize>(bytes.size()));
    std::cout.flush();
    return {};
  };
  const Status done =
      (*session)->client().stream(op::kube::pod_log(pod->key(), options), print, stream);
  if (stop.stop_requested()) return kExitStopped;
  return done ? kExitOk : failed(done.error());
}

int suspend_command(const KubeArguments& kube, const std::string& name, bool suspend) {
  auto session = KubeSession::open(kube);
  if (!session) return failed(session.error());
  Result<op::Object> written = fail(ErrorKind::kInternal, "");
  for (int i = 0; i < 5; ++i) {  // the operator writes the same object
    const auto training = (*session)->training(name);
    if (!training) return failed(training.error());
    if (op::bool_at(training->spec(), {"suspend"}) == suspend) {
      std::printf("%s is %s already\n", name.c_str(), suspend ? "suspended" : "active");
      return kExitOk;
    }
    json body = training->json();
    body["spec"]["suspend"] = suspend;
    written = (*session)->cluster().update(body);
    if (written || written.error().kind != ErrorKind::kConflict) break;
  }
  if (!written) return failed(written.error());
  std::printf("%s %s\n", name.c_str(),
              suspend ? "suspended: its pods end, its state stays" : "resumed");
  return kExitOk;
}

int replace_command(const KubeArguments& kube, const std::string& name, const std::string& what,
                    bool at_once) {
  auto session = KubeSession::open(kube);
  if (!session) return failed(session.error());
  const auto training = (*session)->training(name);
  if (!training) return failed(training.error());
  const auto pod = (*session)->pod_of(*training, what);
  if (!pod) return failed(pod.error());
  op::DeleteOptions options;
  options.uid = pod->uid();
  if (at_once) options.grace_seconds = 0;
  const Status removed = (*session)->cluster().remove(op::Kind::kPod, pod->key(), options);
  if (!removed && removed.error().kind != ErrorKind::kNotFound) return failed(removed.error());
  std::printf("%s %s; a new incarnation follows\n", pod->name().c_str(),
              at_once ? "killed" : "is ending");
  return kExitOk;
}

}  // namespace archipelago::cli
