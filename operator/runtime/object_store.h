#pragma once
// What a reflector has seen of one kind. Keyed by name, but an event of another uid than the stored
// one changes nothing: a late word about a predecessor must not touch its successor of the same
// name.
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "operator/cluster/cluster.h"

namespace archipelago::op {

class ObjectStore {
 public:
  // False: the store had this very version already (a write of our own, taken with its answer).
  bool apply(const WatchEvent& event);
  // Takes a newer form of an object while the store still has version `over` of it.
  void replace_version(const Object& object, const std::string& over);
  // A whole list: what is not in it is gone. Returns the objects that were new, other or gone.
  [[nodiscard]] std::vector<Object> replace(const std::vector<Object>& items);

  [[nodiscard]] std::optional<Object> get(const ObjectKey& key) const;
  [[nodiscard]] std::vector<Object> controlled_by(const std::string& name_space,
                                                  const std::string& uid) const;
  [[nodiscard]] std::vector<Object> all() const;
  [[nodiscard]] std::size_t size() const;

 private:
  void put(const Object& object);    // with the lock
  void erase(const Object& object);  // with the lock

  mutable std::mutex mutex_;
  std::map<ObjectKey, Object> objects_;
  std::map<std::string, std::set<ObjectKey>> by_owner_;  // controller uid
};

}  // namespace archipelago::op
