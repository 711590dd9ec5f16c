#include "operator/reconcile/expectations.h"

namespace archipelago::op {

void Expectations::expect(const ObjectKey& run, const std::string& child, TimePoint now) {
  std::lock_guard lock(mutex_);
  created_[run].insert_or_assign(child, now);
}

void Expectations::seen(const ObjectKey& run, const std::string& child) {
  std::lock_guard lock(mutex_);
  const auto it = created_.find(run);
  if (it == created_.end()) return;
  it->second.erase(child);
  if (it->second.empty()) created_.erase(it);
}

bool Expectations::pending(const ObjectKey& run, const std::string& child, TimePoint now) const {
  std::lock_guard lock(mutex_);
  const auto it = created_.find(run);
  if (it == created_.end()) return false;
  const auto made = it->second.find(child);
  return made != it->second.end() && now < made->second + kExpiry;
}

std::set<std::string> Expectations::all(const ObjectKey& run, TimePoint now) const {
  std::lock_guard lock(mutex_);
  std::set<std::string> out;
  const auto it = created_.find(run);
  if (it == created_.end()) return out;
  for (const auto& [child, made] : it->second)
    if (now < made + kExpiry) out.insert(child);
  return out;
}

void Expectations::forget(const ObjectKey& run) {
  std::lock_guard lock(mutex_);
  created_.erase(run);
}

}  // namespace archipelago::op
