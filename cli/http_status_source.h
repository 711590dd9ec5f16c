#pragma once
// The daemons' admin ports over plain HTTP, as a local run's controller asks them.
#include "operator/runtime/outer_status_source.h"

namespace archipelago::cli {

class HttpStatusSource final : public op::OuterStatusSource {
 public:
  [[nodiscard]] Result<nlohmann::json> poll(const op::PodEndpoint& outer,
                                            Duration deadline) override;
  [[nodiscard]] Status put_settings(const op::PodEndpoint& outer, const nlohmann::json& settings,
                                    Duration deadline) override;
  [[nodiscard]] op::UnitProbe probe_unit(const op::PodEndpoint& learner,
                                         Duration deadline) override;
};

}  // namespace archipelago::cli
