#pragma once
// A KubeClient and a KubeCluster on a scripted API server.
#include <filesystem>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "operator/kube/kube_cluster.h"
#include "tests/operator/kube/scripted_server.h"

namespace archipelago::op {

inline nlohmann::json a_pod(const std::string& name, const std::string& version = "1") {
  return {
      {"kind", "Pod"},
      {"apiVersion", "v1"},
      {"metadata",
       {{"name", name}, {"namespace", "n"}, {"uid", "u-" + name}, {"resourceVersion", version}}}};
}

inline nlohmann::json pod_list(const std::vector<std::string>& names, const std::string& version,
                               const std::string& next = "") {
  nlohmann::json items = nlohmann::json::array();
  for (const std::string& n : names) items.push_back(a_pod(n));
  return {{"kind", "PodList"},
          {"metadata", {{"resourceVersion", version}, {"continue", next}}},
          {"items", items}};
}

struct Scene {
  explicit Scene(ScriptedServer::Handler handler, KubeClientOptions client_options = {},
                 KubeClusterOptions cluster_options = {}, CredentialSource credentials = {},
                 WriteGate* gate = nullptr, bool ipv6 = false, Logger log = Logger::null())
      : server(std::move(handler), ipv6) {
    KubeAccess access = server.access();
    access.credentials = std::move(credentials);
    auto opened = KubeClient::open(access, client_options, clock, log, nullptr, gate);
    ARCH_CHECK(opened, << opened.error().describe());
    client = std::move(*opened);
    cluster = std::make_unique<KubeCluster>(*client, cluster_options);
  }
  SystemClock clock;
  ScriptedServer server;
  std::unique_ptr<KubeClient> client;
  std::unique_ptr<KubeCluster> cluster;

  [[nodiscard]] std::optional<WatchEvent> next(Watch& watch, double wait = 20) const {
    return watch.next(clock.now() + seconds(wait), {});
  }
};

}  // namespace archipelago::op
