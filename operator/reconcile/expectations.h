#pragma once
// What was created and is not seen yet. The view of a run is a cache that lags behind the API
// server: without this, each event in between would send the same POST again.
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "operator/cluster/object.h"

namespace archipelago::op {

// Thread-safe. `child` is "Kind/name".
class Expectations {
 public:
  // Longer than any lag worth waiting for; after it the create is sent again, which the server
  // answers with 409 when the object is there.
  static constexpr Duration kExpiry = seconds(30);

  void expect(const ObjectKey& run, const std::string& child, TimePoint now);
  // An event of the child came, of whatever kind, or its create failed.
  void seen(const ObjectKey& run, const std::string& child);
  [[nodiscard]] bool pending(const ObjectKey& run, const std::string& child, TimePoint now) const;
  [[nodiscard]] std::set<std::string> all(const ObjectKey& run, TimePoint now) const;
  void forget(const ObjectKey& run);

 private:
  mutable std::mutex mutex_;  // guards created_
  std::map<ObjectKey, std::map<std::string, TimePoint>> created_;
};

}  // namespace archipelago::op
