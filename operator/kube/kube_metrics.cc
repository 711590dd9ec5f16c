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

namespace {
constexpr std::array kVerbs{"get", "list", "watch", "create", "update", "patch", "delete"};
constexpr std::array kKinds{Kind::kTraining,  Kind::kPod,   Kind::kService,
                            Kind::kConfigMap, Kind::kClaim, Kind::kNode};
constexpr std::array kReasons{"ended", "idle", "gone", "error", "refused"};

prometheus::Counter& requests(Metrics& m, std::string_view verb, int status) {
  return m.counter("archipelago_operator_api_requests_total",
                   "Requests to the API server by verb and status code",
                   {{"verb", std::string(verb)}, {"code", code_label(status)}});
}
prometheus::Histogram& rate_waits(Metrics& m) {
  return m.histogram("archipelago_operator_api_rate_wait_seconds",
                     "Time that calls waited for the client's own rate limit",
                     {0.01, 0.1, 0.5, 1, 5, 20});
}
prometheus::Counter& restarts(Metrics& m, Kind kind, std::string_view reason) {
  return m.counter("archipelago_operator_watch_restarts_total",
                   "Watches that ended, by kind and reason",
                   {{"kind", std::string(to_string(kind))}, {"reason", std::string(reason)}});
}
prometheus::Counter& undecodable(Metrics& m, Kind kind) {
  return m.counter("archipelago_operator_undecodable_objects_total",
                   "Watch lines and list items that could not be read and were skipped",
                   {{"kind", std::string(to_string(kind))}});
}
prometheus::Counter& dropped(Metrics& m) {
  return m.counter("archipelago_operator_events_dropped_total", "Kubernetes Events not written");
}
}  // namespace

void KubeMetrics::declare() const {
  if (metrics_ == nullptr) return;
  for (const char* verb : kVerbs) requests(*metrics_, verb, verb[0] == 'c' ? 201 : 200);
  rate_waits(*metrics_);
  for (const Kind kind : kKinds) {
    undecodable(*metrics_, kind);
    for (const char* reason : kReasons) restarts(*metrics_, kind, reason);
  }
  dropped(*metrics_);
}

void KubeMetrics::request(std::string_view verb, int status) const {
  if (metrics_ == nullptr) return;
  requests(*metrics_, verb, status).Increment();
}

void KubeMetrics::rate_wait(Duration waited) const {
  if (metrics_ == nullptr || waited <= Duration(0)) return;
  rate_waits(*metrics_).Observe(to_seconds(waited));
}

void KubeMetrics::watch_restart(Kind kind, std::string_view reason) const {
  if (metrics_ == nullptr) return;
  restarts(*metrics_, kind, reason).Increment();
}

void KubeMetrics::skipped(Kind kind) const {
  if (metrics_ == nullptr) return;
  undecodable(*metrics_, kind).Increment();
}

void KubeMetrics::events_dropped() const {
  if (metrics_ == nullptr) return;
  dropped(*metrics_).Increment();
}

void KubeMetrics::lease_held(bool held) const {
  if (metrics_ == nullptr) return;
  metrics_->gauge("archipelago_operator_lease_held", "1 while this process is the leader")
      .Set(held ? 1 : 0);
}

}  // namespace archipelago::op::kube
