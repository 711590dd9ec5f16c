#include "operator/app/proxied_status_source.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/plan/children.h"

namespace archipelago::op {
namespace {
constexpr std::uint64_t kMaxStatus = 16U << 20;  // bytes of a status document
}

Result<nlohmann::json> ProxiedStatusSource::poll(const PodEndpoint& pod, Duration deadline) {
  std::string text;
  const http::Sink take = [&](std::span<const std::byte> bytes) -> Status {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  StreamOptions options;
  options.total = deadline;
  options.idle = deadline;
  options.max_bytes = kMaxStatus;
  ARCH_TRY_VOID(client_.stream(
      kube::pod_proxy_get({pod.name_space, pod.pod}, kAdminPort, "/statusz"), take, options));
  auto document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object())
    return fail(ErrorKind::kCorrupt, "/statusz of " + pod.pod + " is no JSON object");
  return document;
}

Status ProxiedStatusSource::put_settings(const PodEndpoint& outer, const nlohmann::json& settings,
                                         Duration) {
  ARCH_TRY_VOID(client_.call_text(kube::pod_proxy_put({outer.name_space, outer.pod}, kExchangePort,
                                                      "/v1/settings", to_text(settings))));
  return {};
}

UnitProbe ProxiedStatusSource::probe_unit(const PodEndpoint& learner, Duration deadline) {
  const auto document = poll(learner, deadline);
  if (!document) return {};
  return {true, string_at(*document, {"phase"})};
}

}  // namespace archipelago::op
