#pragma once
// The object store of `archipelago run` and of tests: uids, resourceVersions, conflicts, watch
// history, owner cascade, graceful deletion of pods. It starts no process: a process kubelet
// watches pods here and writes their status.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operator/cluster/cluster.h"

namespace archipelago::op {

struct MemoryClusterOptions {
  std::size_t history = 4096;  // watch events kept, over all kinds; older versions get kGone
  std::size_t events = 1024;   // event records kept
  std::uint64_t uid_seed = 0;  // 0: random uids
  // Called for every recorded event, outside the store's lock, on the recording thread.
  std::function<void(const EventRecord&)> on_event;
};

class MemoryCluster final : public Cluster {
 public:
  explicit MemoryCluster(const Clock& clock, MemoryClusterOptions options = {});
  ~MemoryCluster() override;
  MemoryCluster(const MemoryCluster&) = delete;
  MemoryCluster& operator=(const MemoryCluster&) = delete;

  // Unlike an API server it keeps a uid given in the body: a local run that is resumed keeps its
  // run id.
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
  [[nodiscard]] Result<std::unique_ptr<Watch>> watch(Kind kind, const std::string& name_space,
                                                     const std::string& resource_version) override;
  void record(const EventRecord& event) override;

  // The kubelet's last word on a pod that has a deletionTimestamp (or that it gives up): the object
  // goes now.
  [[nodiscard]] Status finalize_delete(const ObjectKey& pod, const std::string& uid);
  // Newest last, the same (object, reason, message) once per occurrence.
  [[nodiscard]] std::vector<EventRecord> events() const;

 private:
  class MemoryWatch;
  struct State;
  std::shared_ptr<State> state_;  // watches outlive the cluster safely
};

}  // namespace archipelago::op
