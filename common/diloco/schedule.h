#pragma once
// Which fragments are merged at which global step (Decoupled DiLoCo §3.1; protocol.md §1).
//
// P fragments, interval H, offsets t_p = p*H/P, P divides H: fragment p is due at every t with t
// mod H == t_p. With H = P every step has exactly one. A set is returned because several owners may
// merge several fragments a step later (protocol.md §13).
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/result.h"

namespace archipelago::diloco {

class Schedule {
 public:
  Schedule() = default;
  [[nodiscard]] static Result<Schedule> create(std::int64_t fragments, std::int64_t interval) {
    constexpr std::int64_t kMaxInterval = 1'000'000'000;
    if (fragments < 1 || interval < 1 || interval > kMaxInterval || interval % fragments != 0)
      return fail(ErrorKind::kInvalid, "fragments " + std::to_string(fragments) + " and interval " +
                                           std::to_string(interval) +
                                           ": fragments must divide the interval");
    Schedule schedule;
    schedule.fragments_ = fragments;
    schedule.interval_ = interval;
    return schedule;
  }

  [[nodiscard]] std::int64_t fragments() const { return fragments_; }
  [[nodiscard]] std::int64_t interval() const { return interval_; }
  [[nodiscard]] std::int64_t offset(FragmentId p) const {
    ARCH_CHECK(p.value >= 0 && p.value < fragments_, << p);
    return p.value * (interval_ / fragments_);
  }
  // The fragments of global step t >= 1, ascending; empty for a step that merges nothing.
  [[nodiscard]] std::vector<FragmentId> due(GlobalStep t) const {
    const std::int64_t stride = interval_ / fragments_;
    const std::int64_t phase = t.value % interval_;
    if (t.value < 1 || phase % stride != 0) return {};
    return {FragmentId(static_cast<std::int32_t>(phase / stride))};
  }
  // The first step after `t` (t >= 0) at which fragment p is due.
  [[nodiscard]] GlobalStep next(FragmentId p, GlobalStep t) const {
    const std::int64_t ahead = (offset(p) - t.value % interval_ + interval_) % interval_;
    return GlobalStep(t.value + (ahead == 0 ? interval_ : ahead));
  }
  // The last step before `t` at which fragment p was due: the version that a round at t is based on
  // when all goes well; 0 (the seed) when there was none.
  [[nodiscard]] GlobalStep previous(FragmentId p, GlobalStep t) const {
    if (t.value <= 0) return GlobalStep(0);
    const std::int64_t behind = (t.value % interval_ - offset(p) + interval_) % interval_;
    const std::int64_t step = t.value - (behind == 0 ? interval_ : behind);
    return GlobalStep(step < 0 ? 0 : step);
  }

 private:
  std::int64_t fragments_ = 1;
  std::int64_t interval_ = 1;
};

}  // namespace archipelago::diloco
