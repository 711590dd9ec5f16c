#pragma once
// The daemons' ports through the API server's pod proxy: for an operator outside the cluster, where
// pods' own addresses lead nowhere.
#include "operator/kube/kube_client.h"
#include "operator/runtime/outer_status_source.h"

namespace archipelago::op {

class ProxiedStatusSource final : public OuterStatusSource {
 public:
  explicit ProxiedStatusSource(KubeClient& client) : client_(client) {}

  [[nodiscard]] Result<std::string> poll(const PodEndpoint& outer, Duration deadline) override;
  [[nodiscard]] Status put_settings(const PodEndpoint& outer, const nlohmann::json& settings,
                                    Duration deadline) override;
  [[nodiscard]] UnitProbe probe_unit(const PodEndpoint& learner, Duration deadline) override;

 private:
  KubeClient& client_;
};

}  // namespace archipelago::op
