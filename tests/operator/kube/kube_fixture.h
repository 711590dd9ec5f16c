#pragma once
// A KubeCluster on a real API server, in fresh namespaces. The kubeconfig comes by
// ARCHIPELAGO_TEST_KUBECONFIG; without it every test says that it is skipped. With
// ARCHIPELAGO_TEST_CONTROLLERS=1 the server has its garbage collector.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/files.h"
#include "common/config/yaml_json.h"
#include "operator/kube/kube_cluster.h"

namespace archipelago::op {

inline std::string test_kubeconfig() {
  const char* path = std::getenv("ARCHIPELAGO_TEST_KUBECONFIG");
  return path == nullptr ? "" : path;
}

inline kube::Request raw_request(std::string method, std::string path, const nlohmann::json& body,
                                 std::string verb) {
  kube::Request out;
  out.method = std::move(method);
  out.path = std::move(path);
  if (!body.is_null()) out.body = body.dump();
  out.rule = {"", "test", std::move(verb)};
  return out;
}

class RealCluster {
 public:
  RealCluster() {
    auto access = load_kube_access(test_kubeconfig(), "");
    ARCH_CHECK(access, << access.error().describe());
    KubeClientOptions options;
    options.qps = 1000;
    options.burst = 1000;
    auto opened = KubeClient::open(*access, options, clock, Logger::null());
    ARCH_CHECK(opened, << opened.error().describe());
    client = std::move(*opened);
    install();
    ns = make_namespace();
    other = make_namespace();
    KubeClusterOptions whole;
    whole.child_selector = "";
    whole.slim = false;
    cluster = std::make_unique<KubeCluster>(*client, whole);
  }
  ~RealCluster() {
    for (const std::string& each : {ns, other}) {
      for (const char* kind :
           {"/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/configmaps",
            "/apis/archipelago.training/v1alpha1/namespaces/{}/decoupledtrainings"}) {
        std::string path = kind;
        path.replace(path.find("{}"), 2, each);
        (void)client->call(raw_request("DELETE", path + "?gracePeriodSeconds=0", {}, "delete"));
      }
      (void)client->call(raw_request("DELETE", "/api/v1/namespaces/" + each, {}, "delete"));
    }
  }
  RealCluster(const RealCluster&) = delete;
  RealCluster& operator=(const RealCluster&) = delete;

  [[nodiscard]] static bool usable() {
    if (!test_kubeconfig().empty()) return true;
    std::cout << "skipped: ARCHIPELAGO_TEST_KUBECONFIG names no API server\n";
    return false;
  }
  [[nodiscard]] static bool controllers() {
    const char* given = std::getenv("ARCHIPELAGO_TEST_CONTROLLERS");
    return given != nullptr && std::string(given) == "1";
  }
  static bool eventually(const std::function<bool()>& holds, int limit_seconds = 20) {
    for (int i = 0; i < limit_seconds * 20; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return holds();
  }

  SystemClock clock;
  std::unique_ptr<KubeClient> client;
  std::unique_ptr<KubeCluster> cluster;
  std::string ns;
  std::string other;

 private:
  // The project's own definition, once per API server.
  void install() {
    if (discover(*client).served == Served::kYes) return;
    const auto text = read_file(std::string(ARCHIPELAGO_SOURCE_DIR) +
                                "/crds/decoupledtrainings.archipelago.training.yaml");
    ARCH_CHECK(text, << text.error().describe());
    const auto crd = config::parse_yaml_text(*text);
    ARCH_CHECK(crd);
    const auto made = client->call(raw_request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd->value, "create"));
    ARCH_CHECK(made || made.error().kind == ErrorKind::kConflict, << made.error().describe());
    ARCH_CHECK(eventually([&] { return discover(*client).served == Served::kYes; }));
  }

  std::string make_namespace() {
    static int count = 0;
    const std::string name = "t-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
    const auto made = client->call(
        raw_request("POST", "/api/v1/namespaces", {{"metadata", {{"name", name}}}}, "create"));
    ARCH_CHECK(made, << made.error().describe());
    // Pods need it, and nobody makes it where no controllers run.
    (void)client->call(raw_request("POST", "/api/v1/namespaces/" + name + "/serviceaccounts",
                                   {{"metadata", {{"name", "default"}}}}, "create"));
    return name;
  }
};

}  // namespace archipelago::op
