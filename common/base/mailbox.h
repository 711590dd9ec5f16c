#pragma once
// Bounded queue into one owner thread. push never blocks: a full mailbox is the caller's to report
// (429, drop, retry).
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>

#include "common/base/clock.h"

namespace archipelago {

template <class T>
class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity) : capacity_(capacity) {}

  // False when full or closed; the item is then untouched.
  [[nodiscard]] bool push(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Next item; nullopt at the deadline, on stop, or when closed and empty.
  [[nodiscard]] std::optional<T> pop_until(TimePoint deadline, std::stop_token stop) {
    std::unique_lock lock(mutex_);
    ready_.wait_until(lock, stop, deadline, [&] { return !items_.empty() || closed_; });
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  [[nodiscard]] std::size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable_any ready_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace archipelago
