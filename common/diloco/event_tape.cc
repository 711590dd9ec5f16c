#include "common/diloco/event_tape.h"

#include <algorithm>

namespace archipelago::diloco::tape {

void Log::add(LearnerEvent event) {
  if (events_.size() + (dropped_ > 0 ? 2 : 1) > kMaxPending) {
    ++dropped_;
    return;
  }
  if (dropped_ > 0) events_.emplace_back(Gap{dropped_});
  dropped_ = 0;
  events_.push_back(std::move(event));
}

Batch Log::pending(std::size_t max_events) const {
  Batch batch;
  batch.from = first_;
  const auto count = static_cast<std::ptrdiff_t>(std::min(max_events, events_.size()));
  batch.events.assign(events_.begin(), events_.begin() + count);
  return batch;
}

void Log::acknowledged(std::int64_t upto) {
  while (first_ < upto && !events_.empty()) {
    events_.pop_front();
    ++first_;
  }
}

std::int64_t Cursors::next(const std::string& unit, Incarnation incarnation) const {
  const auto it = next_.find({unit, incarnation});
  return it == next_.end() ? 0 : it->second;
}

Batch Cursors::unseen(const Batch& batch) const {
  Batch out;
  out.unit = batch.unit;
  out.incarnation = batch.incarnation;
  out.from = next(batch.unit, batch.incarnation);
  if (batch.upto() <= out.from) return out;
  const std::int64_t known = out.from - batch.from;
  if (known >= 0) {
    out.events.assign(batch.events.begin() + known, batch.events.end());
    return out;
  }
  // The Gap has the number of the last missing event, so that upto() stays the sender's.
  out.from = batch.from - 1;
  out.events.reserve(batch.events.size() + 1);
  out.events.emplace_back(Gap{-known});
  out.events.insert(out.events.end(), batch.events.begin(), batch.events.end());
  return out;
}

void Cursors::written(const Batch& batch) {
  std::int64_t& next = next_[{batch.unit, batch.incarnation}];
  next = std::max(next, batch.upto());
}

void append_sequence(std::vector<SequenceRun>& runs, std::uint64_t block, std::uint32_t index) {
  if (!runs.empty() && runs.back().block == block &&
      runs.back().first + runs.back().count == index) {
    ++runs.back().count;
    return;
  }
  runs.push_back({block, index, 1});
}

}  // namespace archipelago::diloco::tape
