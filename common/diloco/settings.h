#pragma once
// Settings that may change while a run is live (protocol.md §9). They come with the spec when the
// outer optimizer starts, and later from the operator; each set carries the generation of the
// resource that it is of.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace archipelago::diloco {

enum class GraceKind { kSteps, kSlack, kOff };
[[nodiscard]] std::string_view to_string(GraceKind kind);  // the spec's names: steps, slack, off

struct LiveSettings {
  std::int64_t generation = 1;
  std::int32_t quorum = 1;  // K
  GraceKind grace = GraceKind::kSteps;
  double grace_steps = 1.5;
  double grace_fraction = 0.8;
  GlobalStep budget{1};  // T
  friend bool operator==(const LiveSettings&, const LiveSettings&) = default;
};

// What the journal keeps: the set in force, when it came (epoch of the outer optimizer), and the
// resource whose generations it counts in: an adopted run goes on under a new one.
struct SettingsRecord {
  std::int64_t epoch = 0;
  std::string source;
  LiveSettings settings;
};

// Ranges that hold whatever is in force; kRefused names the field, what was given, what is allowed.
[[nodiscard]] Status check_settings(const LiveSettings& settings);
// May `next` follow `now`? kConflict: an older generation, or another set of the same. kRefused:
// the budget falls, or rises after it was reached (the last versions are published then).
[[nodiscard]] Status check_change(const LiveSettings& now, const LiveSettings& next,
                                  GlobalStep committed);

}  // namespace archipelago::diloco
