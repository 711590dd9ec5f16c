#include "operator/kube/kube_metrics.h"

#include <algorithm>
#include <array>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

namespace archipelago::op::kube {
namespace {
// A closed set: what a server or something between could send must not make series.
std::string code_label(int status) {
  static constexpr std::array kKnown{200, 201, 202, 400, 401, 403, 404, 409,
                                     410, 413, 422, 429, 500, 502, 503, 504};
  if (status == 0) return "none";
  return std::find(kKnown.begin(), kKnown.end(), status) != kKnown.end() ? std::to_string(status)
                                                                         : "other";
}
}  // namespace

void KubeMetrics::request(std::string_view verb, int status) const {
  if (metrics_ == nullptr) return;
  metrics_
      ->counter("archipelago_operator_api_requests_total",
                "Requests to the API server by verb and status code",
                {{"verb", std::string(verb)}, {"code", code_label(status)}})
      .Increment();
}

void KubeMetrics::rate_wait(Duration waited) const {
  if (metrics_ == nullptr || waited <= Duration(0)) return;
  metrics_
      ->histogram("archipelago_operator_api_rate_wait_seconds",
                  "Time that calls waited for the client's own rate limit",
                  {0.01, 0.1, 0.5, 1, 5, 20})
      .Observe(to_seconds(waited));
}

void KubeMetrics::watch_restart(Kind kind, std::string_view reason) const {
  if (metrics_ == nullptr) return;
  metrics_
      ->counter("archipelago_operator_watch_restarts_total",
                "Watches that ended, by kind and reason",
                {{"kind", std::string(to_string(kind))}, {"reason", std::string(reason)}})
      .Increment();
}

void KubeMetrics::skipped(Kind kind) const {
  if (metrics_ == nullptr) return;
  metrics_
      ->counter("archipelago_operator_undecodable_objects_total",
                "Watch lines and list items that could not be read and were skipped",
                {{"kind", std::string(to_string(kind))}})
      .Increment();
}

void KubeMetrics::events_dropped() const {
  if (metrics_ == nullptr) return;
  metrics_->counter("archipelago_operator_events_dropped_total", "Kubernetes Events not written")
      .Increment();
}

void KubeMetrics::lease_held(bool held) const {
  if (metrics_ == nullptr) return;
  metrics_->gauge("archipelago_operator_lease_held", "1 while this process is the leader")
      .Set(held ? 1 : 0);
}

}  // namespace archipelago::op::kube
