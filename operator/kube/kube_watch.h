#pragma once
// One watch stream: a thread reads the connection, next() takes what it has put into a bounded
// buffer.
#include <memory>
#include <string>

#include "operator/cluster/cluster.h"
#include "operator/kube/kube_client.h"
#include "operator/kube/kube_metrics.h"

namespace archipelago::op::kube {

struct WatchSettings {
  Kind kind = Kind::kPod;
  bool slim = true;
  Duration idle = seconds(100);       // without a byte: the connection is taken for dead
  Duration total = seconds(310);      // longer than the server lets it live
  Duration open = seconds(30);        // until the head of the answer
  Duration failed_wait = seconds(1);  // before kEnded after the server's ERROR
  std::size_t buffer = 256;
};

// Returns once the server has answered. A version that is too old is a Watch that says kGone. The
// client outlives the watch.
[[nodiscard]] Result<std::unique_ptr<Watch>> open_watch(KubeClient& client, const Request& request,
                                                        const WatchSettings& settings,
                                                        const KubeMetrics& metrics);

}  // namespace archipelago::op::kube
