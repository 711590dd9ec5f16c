// The floor of bench/kube_scale.py: the same objects as the operator makes, created by a bare loop
// over the same client. Templates come from a real run; @RUN@ and @UID@ stand for the run's.
#include <atomic>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "operator/kube/kube_cluster.h"
#include "operator/kube/kube_config.h"

namespace archipelago {
namespace {

using nlohmann::json;

struct Flags {
  std::string kubeconfig;
  std::string templates;  // [{"method": "POST", "path": "...", "body": {...}}]
  std::string name_space;
  int connections = 8;
};

struct Template {
  std::string method, path, body;
};

std::string filled(std::string text, const std::string& run, const std::string& uid) {
  for (const auto& [mark, value] : {std::pair{"@RUN@", run}, std::pair{"@UID@", uid}})
    for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at))
      text.replace(at, 5, value);
  return text;
}

Result<std::vector<Template>> read_templates(const std::string& file) {
  ARCH_TRY(const std::string text, read_file(file));
  const json list = json::parse(text, nullptr, false);
  if (!list.is_array()) return fail(ErrorKind::kInvalid, file + " is no list of templates");
  std::vector<Template> out;
  for (const json& item : list)
    out.push_back({item.value("method", ""), item.value("path", ""), item["body"].dump()});
  return out;
}

Status make_all(const Flags& flags, op::KubeClient& client, const std::vector<op::Object>& runs,
                const std::vector<Template>& templates) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Status failed;
  std::vector<std::jthread> threads;
  for (int i = 0; i < flags.connections; ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < runs.size(); at = next++) {
        for (const Template& item : templates) {
          op::kube::Request request;
          request.method = item.method;
          request.path = filled(item.path, runs[at].name(), runs[at].uid());
          request.body = filled(item.body, runs[at].name(), runs[at].uid());
          request.content_type =
              item.method == "PATCH" ? "application/merge-patch+json" : "application/json";
          request.object = request.path;
          const auto done = client.call(request);
          if (done) continue;
          const std::lock_guard lock(mutex);
          failed = fail(done.error());
          next = runs.size();
          return;
        }
      }
    });
  }
  threads.clear();
  return failed;
}

Status run(const Flags& flags) {
  const SystemClock clock;
  ARCH_TRY(op::KubeAccess access, op::load_kube_access(flags.kubeconfig, ""));
  ARCH_TRY(const std::vector<Template> templates, read_templates(flags.templates));
  op::KubeClientOptions options;
  options.user_agent = "archipelago-floor";
  options.qps = options.burst = 1e5;
  options.connections = flags.connections;
  ARCH_TRY(const auto client, op::KubeClient::open(std::move(access), options, clock,
                                                   Logger::to_stderr("floor", LogLevel::kWarn)));
  const op::KubeCluster cluster(*client);
  ARCH_TRY(const op::ObjectList runs, cluster.list(op::Kind::kTraining, {flags.name_space, {}}));
  const TimePoint begin = clock.now();
  ARCH_TRY_VOID(make_all(flags, *client, runs.items, templates));
  std::cout << json{{"runs", runs.items.size()},
                    {"calls", runs.items.size() * templates.size()},
                    {"seconds", to_seconds(clock.now() - begin)}}
            << std::endl;
  return {};
}

}  // namespace
}  // namespace archipelago

int main(int argc, char** argv) {
  archipelago::Flags flags;
  CLI::App app{"The objects of all runs of a namespace, created by a bare loop"};
  app.add_option("--kubeconfig", flags.kubeconfig, "kubeconfig file")->required();
  app.add_option("--templates", flags.templates, "what is created for each run")->required();
  app.add_option("--namespace", flags.name_space, "whose runs")->required();
  app.add_option("--connections", flags.connections, "calls at once")->check(CLI::Range(1, 64));
  CLI11_PARSE(app, argc, argv);
  const archipelago::Status done = archipelago::run(flags);
  if (done) return 0;
  std::cerr << "kube_scale_floor: " << done.error().message << "\n";
  return 1;
}
