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

Result<std::string> HttpStatusSource::get_status(const PodEndpoint& pod, Duration deadline) const {
  ARCH_TRY(const http::ClientOptions options, options_for(address_, pod, kAdminPort, deadline));
  http::Client client(options);
  ARCH_TRY(http::Response reply, client.request("GET", "/statusz"));
  if (!reply.ok()) return fail(http::error_of(reply, "GET /statusz of " + pod.pod));
  return std::move(reply.body);
}

Result<std::string> HttpStatusSource::poll(const PodEndpoint& outer, Duration deadline) {
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
  return read_probe(get_status(learner, deadline));
}

UnitProbe read_probe(const Result<std::string>& text) {
  if (!text) return {};
  const auto document = nlohmann::json::parse(*text, nullptr, false);
  if (!document.is_object()) return {};
  return {true, string_at(document, {"phase"})};
}

}  // namespace archipelago::op
