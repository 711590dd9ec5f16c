#pragma once
// Who pays for an ended pod (resource.md "Failures"): crash, OOMKilled and hangs are charged
// against backoffLimit; disruptions, deletions and leaving are free; exit 12 and 13 are final.
#include <optional>
#include <string>

#include "operator/plan/observed.h"

namespace archipelago::op {

struct Verdict {
  FailureReason reason = FailureReason::kCrash;
  bool charged = false;
  bool final = false;  // no retry can help
  std::optional<int> exit_code;
  std::string pod_uid;
  std::string message;
};

// nullopt while the pod may still run.
[[nodiscard]] std::optional<Verdict> judge_ended(const ObservedPod& pod);
// The recorded pod is no longer there.
[[nodiscard]] Verdict judge_missing(const std::string& pod_uid);
[[nodiscard]] Verdict judge_node_lost(const ObservedPod& pod);
[[nodiscard]] Verdict judge_hang(const ObservedPod& pod, double silent_seconds);

}  // namespace archipelago::op
