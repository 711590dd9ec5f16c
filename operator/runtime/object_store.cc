#include "operator/runtime/object_store.h"

namespace archipelago::op {

void ObjectStore::put(const Object& object) {
  const ObjectKey key = object.key();
  if (const auto old = objects_.find(key); old != objects_.end()) erase(old->second);
  objects_.insert_or_assign(key, object);
  if (const std::string owner = object.controller_uid(); !owner.empty())
    by_owner_[owner].insert(key);
}

void ObjectStore::erase(const Object& object) {
  const ObjectKey key = object.key();
  const std::string owner = object.controller_uid();
  if (const auto it = by_owner_.find(owner); it != by_owner_.end()) {
    it->second.erase(key);
    if (it->second.empty()) by_owner_.erase(it);
  }
  objects_.erase(key);
}

bool ObjectStore::apply(const WatchEvent& event) {
  if (!event.object) return false;
  std::lock_guard lock(mutex_);
  const auto old = objects_.find(event.object->key());
  const bool other = old != objects_.end() && old->second.uid() != event.object->uid();
  if (event.type == WatchType::kModified && old != objects_.end() && !other &&
      old->second.resource_version() == event.object->resource_version())
    return false;
  if (event.type == WatchType::kAdded || (event.type == WatchType::kModified && !other)) {
    put(*event.object);
  } else if (event.type == WatchType::kDeleted && old != objects_.end() && !other) {
    const Object last = old->second;
    erase(last);
  }
  return true;
}

void ObjectStore::replace_version(const Object& object, const std::string& over) {
  std::lock_guard lock(mutex_);
  const auto old = objects_.find(object.key());
  if (old == objects_.end() || old->second.uid() != object.uid() ||
      old->second.resource_version() != over)
    return;
  put(object);
}

std::vector<Object> ObjectStore::replace(const std::vector<Object>& items) {
  std::lock_guard lock(mutex_);
  std::vector<Object> changed;
  std::map<ObjectKey, Object> before = std::move(objects_);
  objects_.clear();
  by_owner_.clear();
  for (const Object& item : items) {
    put(item);
    const auto old = before.find(item.key());
    if (old == before.end() || old->second.uid() != item.uid() ||
        old->second.resource_version() != item.resource_version())
      changed.push_back(item);
    if (old != before.end()) before.erase(old);
  }
  for (const auto& [key, gone] : before) changed.push_back(gone);
  return changed;
}

std::optional<Object> ObjectStore::get(const ObjectKey& key) const {
  std::lock_guard lock(mutex_);
  const auto it = objects_.find(key);
  if (it == objects_.end()) return std::nullopt;
  return it->second;
}

std::vector<Object> ObjectStore::controlled_by(const std::string& name_space,
                                               const std::string& uid) const {
  std::lock_guard lock(mutex_);
  std::vector<Object> out;
  const auto owned = by_owner_.find(uid);
  if (owned == by_owner_.end()) return out;
  for (const ObjectKey& key : owned->second)
    if (key.name_space == name_space) out.push_back(objects_.at(key));
  return out;
}

std::vector<Object> ObjectStore::all() const {
  std::lock_guard lock(mutex_);
  std::vector<Object> out;
  out.reserve(objects_.size());
  for (const auto& [key, object] : objects_) out.push_back(object);
  return out;
}

std::size_t ObjectStore::size() const {
  std::lock_guard lock(mutex_);
  return objects_.size();
}

}  // namespace archipelago::op
