#include "cli/http_status_source.h"

#include <nlohmann/json.hpp>

#include "common/http/client.h"
#include "operator/api/json.h"
#include "operator/plan/children.h"

namespace archipelago::cli {

namespace {

http::ClientOptions options_for(const op::PodEndpoint& pod, int port, Duration deadline) {
  http::ClientOptions options;
  options.server = {pod.pod_ip, port};
  options.connect_timeout = deadline;
  options.io_timeout = deadline;
  options.total_timeout = deadline;
  return options;
}

Result<nlohmann::json> get_status(const op::PodEndpoint& pod, Duration deadline) {
  if (pod.pod_ip.empty()) return fail(ErrorKind::kUnavailable, pod.pod + " has no address yet");
  http::Client client(options_for(pod, op::kAdminPort, deadline));
  ARCH_TRY(const http::Response reply, client.request("GET", "/statusz"));
  if (!reply.ok()) return fail(http::error_of(reply, "GET /statusz of " + pod.pod));
  auto document = nlohmann::json::parse(reply.body, nullptr, false);
  if (!document.is_object())
    return fail(ErrorKind::kCorrupt, "/statusz of " + pod.pod + " is no JSON object");
  return document;
}

}  // namespace

Result<nlohmann::json> HttpStatusSource::poll(const op::PodEndpoint& outer, Duration deadline) {
  return get_status(outer, deadline);
}

Status HttpStatusSource::put_settings(const op::PodEndpoint& outer, const nlohmann::json& settings,
                                      Duration deadline) {
  if (outer.pod_ip.empty()) return fail(ErrorKind::kUnavailable, outer.pod + " has no address yet");
  http::Client client(options_for(outer, op::kExchangePort, deadline));
  ARCH_TRY(const http::Response reply,
           client.request("PUT", "/v1/settings", op::to_text(settings)));
  if (!reply.ok()) return fail(http::error_of(reply, "PUT /v1/settings"));
  return {};
}

op::UnitProbe HttpStatusSource::probe_unit(const op::PodEndpoint& learner, Duration deadline) {
  auto document = get_status(learner, deadline);
  if (!document) return {};
  return {true, op::string_at(*document, {"phase"})};
}

}  // namespace archipelago::cli
