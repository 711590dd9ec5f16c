#pragma once
// Virtual time: events in order of (time, insertion).
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "common/base/clock.h"

namespace archipelago::simulator {

class EventQueue {
 public:
  using Action = std::function<void()>;
  void at(double time, Action action) {
    heap_.push({time < now_ ? now_ : time, count_++, std::move(action)});
  }
  void after(double delay, Action action) { at(now_ + delay, std::move(action)); }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] double now() const { return now_; }
  [[nodiscard]] TimePoint time() const { return TimePoint(seconds(now_ + 1000.0)); }
  void run_one() {
    Entry entry = heap_.top();
    heap_.pop();
    now_ = entry.time;
    entry.action();
  }

 private:
  struct Entry {
    double time;
    std::int64_t order;
    Action action;
    bool operator<(const Entry& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  std::priority_queue<Entry> heap_;
  double now_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace archipelago::simulator
