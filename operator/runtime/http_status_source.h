#pragma once
// The daemons' admin ports by plain HTTP at the pods' own addresses: for an operator in the
// cluster, and for `archipelago run`.
#include <optional>

#include "common/http/endpoint.h"
#include "operator/runtime/outer_status_source.h"

namespace archipelago::op {

class HttpStatusSource final : public OuterStatusSource {
 public:
  // With `address` every request goes there instead of to the pod. Each request names its pod in
  // the headers X-Archipelago-Run-Uid, X-Archipelago-Run (namespace/name) and X-Archipelago-Pod.
  explicit HttpStatusSource(std::optional<http::Endpoint> address = std::nullopt)
      : address_(std::move(address)) {}

  [[nodiscard]] Result<std::string> poll(const PodEndpoint& outer, Duration deadline) override;
  [[nodiscard]] Status put_settings(const PodEndpoint& outer, const nlohmann::json& settings,
                                    Duration deadline) override;
  [[nodiscard]] UnitProbe probe_unit(const PodEndpoint& learner, Duration deadline) override;

 private:
  [[nodiscard]] Result<std::string> get_status(const PodEndpoint& pod, Duration deadline) const;

  const std::optional<http::Endpoint> address_;
};

}  // namespace archipelago::op
