#pragma once
// The objects of a run as they are sent to the API server (resource.md "Children"). Pure; defaults
// that the server would fill in are left out.
#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/config/spec.h"
#include "operator/plan/options.h"

namespace archipelago::op {

inline constexpr int kExchangePort = 8470;
inline constexpr int kAdminPort = 8471;
inline constexpr char kSpecPath[] = "/etc/archipelago/spec.json";
inline constexpr char kStatePath[] = "/var/lib/archipelago";
inline constexpr char kDataPath[] = "/data";

[[nodiscard]] nlohmann::json build_learner_pod(const config::DecoupledTraining& run,
                                               const config::DatacenterSpec& datacenter,
                                               std::int32_t ordinal, std::int64_t incarnation,
                                               const PlanOptions& options);
[[nodiscard]] nlohmann::json build_outer_pod(const config::DecoupledTraining& run,
                                             std::int64_t incarnation, const PlanOptions& options);
[[nodiscard]] nlohmann::json build_outer_service(const config::DecoupledTraining& run);
[[nodiscard]] nlohmann::json build_outer_claim(const config::DecoupledTraining& run);
// `spec_text`: resolved_spec_text(run).
[[nodiscard]] nlohmann::json build_spec_config_map(const config::DecoupledTraining& run,
                                                   const std::string& spec_text);
// The resolved resource as both daemons read it; the same run gives the same bytes.
[[nodiscard]] std::string resolved_spec_text(const config::DecoupledTraining& run);
// The claim that the outer optimizer mounts.
[[nodiscard]] std::string claim_in_use(const config::DecoupledTraining& run);

}  // namespace archipelago::op
