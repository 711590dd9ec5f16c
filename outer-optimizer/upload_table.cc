#include "outer-optimizer/upload_table.h"

#include <utility>

namespace archipelago::outer {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->give(bytes_);
}

void UploadBudget::set_limit(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  limit_ = bytes;
}

Result<Reservation> UploadBudget::take(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > limit_ || used_ > limit_ - bytes) {
    return fail(ErrorKind::kUnavailable, "uploads take " + std::to_string(used_) + " bytes of " +
                                             std::to_string(limit_) + ", " + std::to_string(bytes) +
                                             " more do not fit");
  }
  used_ += bytes;
  return Reservation(this, bytes);
}

std::uint64_t UploadBudget::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

void UploadBudget::give(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  used_ -= bytes;
}

UploadTable::Order UploadTable::order(const diloco::UploadKey& key) {
  return {key.t.value, key.who.unit, key.who.incarnation.value, key.who.session, key.attempt};
}

void UploadTable::put(const diloco::UploadKey& key, StoredUpload upload, Reservation memory) {
  auto held = std::make_shared<const Held>(Held{std::move(upload), std::move(memory)});
  std::lock_guard lock(mutex_);
  held_.emplace(order(key), std::move(held));
}

UploadPtr UploadTable::find(const diloco::UploadKey& key) const {
  std::lock_guard lock(mutex_);
  const auto it = held_.find(order(key));
  if (it == held_.end()) return nullptr;
  return {it->second, &it->second->upload};
}

void UploadTable::drop(const diloco::UploadKey& key) {
  std::shared_ptr<const Held> last;  // freed outside the lock
  std::lock_guard lock(mutex_);
  const auto it = held_.find(order(key));
  if (it == held_.end()) return;
  last = std::move(it->second);
  held_.erase(it);
}

std::size_t UploadTable::size() const {
  std::lock_guard lock(mutex_);
  return held_.size();
}

}  // namespace archipelago::outer
