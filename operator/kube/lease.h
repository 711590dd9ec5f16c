#pragma once
// Who leads, as a rule over what was seen of the Lease. Pure. A lease is judged by when *we* first
// saw its record change, on our own clock, plus the duration that the record itself names; its
// timestamps are for people.
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "operator/kube/leader.h"

namespace archipelago::op::kube {

struct LeaseView {
  bool exists = false;
  nlohmann::json object;  // as last read, whole: fields of others survive an update
  std::string holder;     // "" : free
  Duration duration{};    // as recorded; nothing sensible recorded: our own
  TimePoint changed{};    // when we first saw this record
};
// What a read (null: there is none) makes of the view.
[[nodiscard]] LeaseView see(const LeaseView& before, const nlohmann::json& read, Duration fallback,
                            TimePoint now);

enum class LeaseStep {
  kWait,    // another holds it
  kCreate,  // there is none
  kTake,    // free or expired
  kRenew,   // ours
};
[[nodiscard]] LeaseStep next_step(const LeaseView& view, const std::string& identity,
                                  TimePoint now);
// The body to write for kCreate, kTake and kRenew; kTake counts a transition.
[[nodiscard]] nlohmann::json lease_body(const LeaseView& view, LeaseStep step,
                                        const LeaderOptions& options, WallTime wall);
// Gives it back: the next one need not wait.
[[nodiscard]] nlohmann::json released_body(const LeaseView& view, WallTime wall);

// Must a holder stop? `renewed`: when its last successful renewal was begun.
[[nodiscard]] bool is_lost(const LeaseView& view, const std::string& identity, TimePoint renewed,
                           const LeaderOptions& options, TimePoint now);

}  // namespace archipelago::op::kube
