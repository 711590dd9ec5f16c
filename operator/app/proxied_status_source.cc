#include "operator/app/proxied_status_source.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/plan/children.h"

namespace archipelago::op {
namespace {
constexpr std::uint64_t kMaxStatus = 16U << 20;  // bytes of a status document
}

Result<std::string> ProxiedStatusSource::poll(const PodEndpoint& pod, Duration deadline) {
  StreamOptions options;
  options.total = deadline;
  options.idle = deadline;
  options.max_bytes = kMaxStatus;
  return client_.stream_text(kube::pod_proxy_get({pod.name_space, pod.pod}, kAdminPort, "/statusz"),
                             options);
}

Status ProxiedStatusSource::put_settings(const PodEndpoint& outer, const nlohmann::json& settings,
                                         Duration) {
  ARCH_TRY_VOID(client_.call_text(kube::pod_proxy_put({outer.name_space, outer.pod}, kExchangePort,
                                                      "/v1/settings", to_text(settings))));
  return {};
}

UnitProbe ProxiedStatusSource::probe_unit(const PodEndpoint& learner, Duration deadline) {
  return read_probe(poll(learner, deadline));
}

}  // namespace archipelago::op
