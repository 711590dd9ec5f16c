#pragma once
// What the API client counts. Without a registry it counts nothing.
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "operator/api/kinds.h"

namespace archipelago::op::kube {

class KubeMetrics {
 public:
  explicit KubeMetrics(Metrics* metrics) : metrics_(metrics) {}

  // All that can be named beforehand, at 0: a rate needs a first value.
  void declare() const;
  // `status` 0: no answer came.
  void request(std::string_view verb, int status) const;
  void rate_wait(Duration waited) const;
  // reason: ended | idle | gone | error | refused
  void watch_restart(Kind kind, std::string_view reason) const;
  void skipped(Kind kind) const;  // lines and items that could not be read
  void events_dropped() const;
  void lease_held(bool held) const;

 private:
  Metrics* metrics_;
};

}  // namespace archipelago::op::kube
