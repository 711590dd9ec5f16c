#pragma once
// What one line of a watch means. Pure: a line goes in, a step comes out; nothing in a line can
// stop the stream but the server's own word.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/http/client.h"
#include "operator/api/kinds.h"
#include "operator/cluster/cluster.h"

namespace archipelago::op::kube {

enum class StepKind {
  kEvent,   // deliver `event`
  kSkip,    // nothing to deliver; `why` is for the log and the metric
  kGone,    // the version is too old: list again
  kFailed,  // the server gave up: wait, then resume from the last version
};
struct WatchStep {
  StepKind kind = StepKind::kSkip;
  WatchEvent event;
  std::string why;
};

// `slim`: only what plans read is kept (slim.h).
[[nodiscard]] WatchStep read_watch_line(Kind kind, std::string_view line, bool slim);

// The head of the answer to a watch request: 410 is kGone.
[[nodiscard]] bool is_gone(int http_status);

}  // namespace archipelago::op::kube
