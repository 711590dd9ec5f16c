#pragma once
// The Cluster port over the Kubernetes API.
#include <cstdint>
#include <memory>
#include <string>

#include "operator/cluster/cluster.h"
#include "operator/kube/kube_client.h"

namespace archipelago::op {

struct KubeClusterOptions {
  // Of lists and watches of pods, Services, ConfigMaps and claims; empty: all of them.
  std::string child_selector = "app.kubernetes.io/managed-by=archipelago-operator";
  // Lists and watches keep only what plans read (slim.h); `get` and writes give whole objects.
  bool slim = true;
  Duration watch_timeout = seconds(290);  // jittered by a tenth; the server ends a watch after it
  Duration watch_idle =
      seconds(100);                // without a byte (servers send a bookmark each minute): resume
  std::size_t watch_buffer = 256;  // events between the connection and next()
  std::string event_source = "archipelago-operator";  // reportingController
  std::string instance;            // reportingInstance: the pod or host name; empty: the host name
  std::size_t event_queue = 1024;  // waiting events; the oldest are dropped
  std::uint64_t seed = 0;          // of jitter; 0: random
};

// Thread-safe. `client` outlives it.
class KubeCluster final : public Cluster {
 public:
  explicit KubeCluster(KubeClient& client, KubeClusterOptions options = {});
  ~KubeCluster() override;
  KubeCluster(const KubeCluster&) = delete;
  KubeCluster& operator=(const KubeCluster&) = delete;

  [[nodiscard]] Result<Object> create(const nlohmann::json& object) override;
  [[nodiscard]] Status check(const nlohmann::json& object) override;
  [[nodiscard]] Result<Object> get(Kind kind, const ObjectKey& key) const override;
  [[nodiscard]] Result<ObjectList> list(Kind kind, const ListOptions& options) const override;
  [[nodiscard]] Result<Object> update(const nlohmann::json& object) override;
  [[nodiscard]] Result<Object> apply(const nlohmann::json& object) override;
  [[nodiscard]] Result<Object> update_status(
      const nlohmann::json& object, WriteClass write_class = WriteClass::kDecision) override;
  [[nodiscard]] Status remove(Kind kind, const ObjectKey& key,
                              const DeleteOptions& options) override;
  // A version that is too old gives a Watch whose first event is kGone.
  [[nodiscard]] Duration progress_turn(bool booked) override;
  [[nodiscard]] Result<std::unique_ptr<Watch>> watch(Kind kind, const std::string& name_space,
                                                     const std::string& resource_version) override;
  void record(const EventRecord& event) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Is our resource served? Asked once at start, and again while it isn't.
enum class Served {
  kYes,
  kNoResource,  // the definition isn't installed
  kNoVersion,   // it is, but not in our version
  kUnknown,     // the API server could not be asked
};
struct Discovery {
  Served served = Served::kUnknown;
  std::string server_version;  // "v1.34.4"; empty when unknown
  std::string message;         // what to tell the user, with the command that helps
};
[[nodiscard]] Discovery discover(KubeClient& client);

}  // namespace archipelago::op
