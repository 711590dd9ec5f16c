#pragma once
// The port to a cluster, with the semantics of the Kubernetes API. Implementations: MemoryCluster
// (in a process); KubeCluster later. tests/operator/cluster_contract_test.cc is the contract; every
// implementation passes it.
//
// Error kinds: kConflict  already exists (create), stale resourceVersion or other uid (update,
// apply, status, remove)
//              kNotFound  no such object
//              kInvalid   the server refuses the content (422)        kRefused  forbidden, quota,
//              admission (403) kUnavailable, kTimeout  retry with backoff
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "operator/api/event.h"
#include "operator/cluster/object.h"

namespace archipelago::op {

struct ListOptions {
  std::string name_space;                     // empty: all namespaces
  std::map<std::string, std::string> labels;  // all must be equal
};

struct ObjectList {
  std::vector<Object> items;
  std::string resource_version;  // a watch from here misses nothing
};

struct DeleteOptions {
  std::string uid;  // precondition; empty: whatever has that name
  std::optional<std::int64_t>
      grace_seconds;  // pods only; nullopt: terminationGracePeriodSeconds, 0: at once
};

enum class WatchType {
  kAdded,
  kModified,
  kDeleted,
  kBookmark,  // only the version moved
  kGone,      // the version is too old: list again, then watch from the list's version
  kEnded,     // the stream ended: watch again from the last version
};
struct WatchEvent {
  WatchType type = WatchType::kEnded;
  std::optional<Object> object;  // of kAdded, kModified, kDeleted (last state)
  std::string resource_version;
};

// Under a rate limit, progress takes at most a share and yields: it can't starve a recovery
// (resource.md "Order of a reconcile").
enum class WriteClass { kDecision, kProgress };

// One stream of events, in order, for one reader thread.
class Watch {
 public:
  virtual ~Watch() = default;
  // nullopt at the deadline or on stop. After kGone and kEnded nothing more comes.
  [[nodiscard]] virtual std::optional<WatchEvent> next(TimePoint deadline,
                                                       std::stop_token stop) = 0;
};

// Thread-safe.
class Cluster {
 public:
  virtual ~Cluster() = default;

  // POST. The object names apiVersion, kind, metadata.name and, where the kind is namespaced,
  // metadata.namespace. The server gives uid, resourceVersion, generation, creationTimestamp; a
  // status in the body is dropped.
  [[nodiscard]] virtual Result<Object> create(const nlohmann::json& object) = 0;
  // A create that the server judges (schema, admission, quota) and does not do.
  [[nodiscard]] virtual Status check(const nlohmann::json& object) = 0;
  [[nodiscard]] virtual Result<Object> get(Kind kind, const ObjectKey& key) const = 0;
  [[nodiscard]] virtual Result<ObjectList> list(Kind kind, const ListOptions& options) const = 0;
  // PUT of everything but the status. A resourceVersion or uid in the body must be the stored one.
  [[nodiscard]] virtual Result<Object> update(const nlohmann::json& object) = 0;
  // Server-side apply, forced: creates the object or merges the body into it. A uid in the body
  // must be the stored one; with a uid and no such object the answer is kConflict, never a new
  // object.
  [[nodiscard]] virtual Result<Object> apply(const nlohmann::json& object) = 0;
  // PUT of the status subresource: everything but the status is ignored. resourceVersion as in
  // update.
  [[nodiscard]] virtual Result<Object> update_status(
      const nlohmann::json& object, WriteClass write_class = WriteClass::kDecision) = 0;
  // Background propagation: dependents go by owner reference. A pod that is bound to a node and not
  // finished first gets a deletionTimestamp and stays until its kubelet has ended it. kNotFound
  // when it is gone already.
  [[nodiscard]] virtual Status remove(Kind kind, const ObjectKey& key,
                                      const DeleteOptions& options) = 0;
  // Before a write of mere progress. Zero: it may go now. Else a turn is booked: ask again after so
  // long, with `booked`, and let the worker do something else meanwhile.
  [[nodiscard]] virtual Duration progress_turn(bool booked) {
    static_cast<void>(booked);
    return Duration(0);
  }
  // Events after `resource_version` (of a list, or of the last event seen); empty namespace: all.
  [[nodiscard]] virtual Result<std::unique_ptr<Watch>> watch(
      Kind kind, const std::string& name_space, const std::string& resource_version) = 0;
  // Best effort: never fails a reconcile.
  virtual void record(const EventRecord& event) = 0;
};

}  // namespace archipelago::op
