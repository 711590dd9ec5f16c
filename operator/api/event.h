#pragma once
// What people read with `kubectl describe` and in the local dashboard. Best effort, aggregated by
// (object, reason).
#include <string>

#include "common/base/clock.h"
#include "operator/api/kinds.h"

namespace archipelago::op {

struct EventRecord {
  Kind kind = Kind::kTraining;  // the object that it is about
  std::string name_space;
  std::string name;
  std::string uid;
  bool warning = false;  // type Warning, else Normal
  std::string reason;    // CamelCase, stable
  std::string message;
  WallTime time{};
  std::string unit;  // the learner unit concerned, "outer", or empty
};

}  // namespace archipelago::op
