#pragma once
// What the operator's flags decide for every run.
#include <string>

#include "common/base/clock.h"
#include "common/base/version.h"

namespace archipelago::op {

struct PlanOptions {
  std::string learner_image = "archipelago-learner:" + version();  // where the spec names none
  std::string outer_image = "archipelago-outer-optimizer:" + version();
  Duration progress_stale =
      seconds(60);  // a polled status document older than this says nothing any more
};

}  // namespace archipelago::op
