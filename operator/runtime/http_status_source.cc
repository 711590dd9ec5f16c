#include "operator/runtime/http_status_source.h"

#include <nlohmann/json.hpp>

#include "common/http/client.h"
#include "operator/api/json.h"
#include "operator/plan/children.h"

namespace archipelago::op {
namespace {

Result<http::ClientOptions> options_for(const std::optional<http::Endpoint>& address,
                                        const PodEndpoint& pod, int port, Duration deadline) {
  if (!address && pod.pod_ip.empty())
    return fail(ErrorKind::kUnavailable, pod.pod + " has no address yet");
  http::ClientOptions options;
  options.server = address ? *address : http::Endpoint{pod.pod_ip, port};
  options.connect_timeout = deadline;
  options.io_timeout = deadline;
  options.total_timeout = deadline;
  options.headers = {{"X-Archipelago-Run-Uid", pod.run_uid},
                     {"X-Archipelago-Run", pod.name_space + "/" + pod.run},
                     {"X-Archipelago-Pod", pod.pod}};
  return options;
}

}  // namespace

Result<nlohmann::json> HttpStatusSource::get_status(const PodEndpoint& pod,
                                                    Duration deadline) const {
  ARCH_TRY(const http::ClientOptions options, options_for(address_, pod, kAdminPort, deadline));
  http::Client client(options);
  ARCH_TRY(const http::Response reply, client.request("GET", "/statusz"));
  if (!reply.ok()) return fail(http::error_of(reply, "GET /statusz of " + pod.pod));
  auto document = nlohmann::json::parse(reply.body, nullptr, false);
  if (!document.is_object())
    return fail(ErrorKind::kCorrupt, "/statusz of " + pod.pod + " is no JSON object");
  return document;
}

Result<nlohmann::json> HttpStatusSource::poll(const PodEndpoint& outer, Duration deadline) {
  return get_status(outer, deadline);
}

Status HttpStatusSource::put_settings(const PodEndpoint& outer, const nlohmann::json& settings,
                                      Duration deadline) {
  ARCH_TRY(const http::ClientOptions options,
           options_for(address_, outer, kExchangePort, deadline));
  http::Client client(options);
  ARCH_TRY(const http::Response reply, client.request("PUT", "/v1/settings", to_text(settings)));
  if (!reply.ok()) return fail(http::error_of(reply, "PUT /v1/settings"));
  return {};
}

UnitProbe HttpStatusSource::probe_unit(const PodEndpoint& learner, Duration deadline) {
  const auto document = get_status(learner, deadline);
  if (!document) return {};
  return {true, string_at(*document, {"phase"})};
}

}  // namespace archipelago::op
