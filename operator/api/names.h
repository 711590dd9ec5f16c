#pragma once
// Names of children. Pod names carry the incarnation, so a successor never waits for its
// predecessor's name.
#include <cstdint>
#include <string>

namespace archipelago::op {

// What a cluster that doesn't serve our resource is told.
inline constexpr char kInstallResource[] =
    "kubectl apply --server-side -f crds/decoupledtrainings.archipelago.training.yaml";

[[nodiscard]] std::string learner_pod_name(
    const std::string& run, const std::string& datacenter, std::int32_t ordinal,
    std::int64_t incarnation);  // <run>-<dc>-<ordinal>-i<inc>
[[nodiscard]] std::string outer_pod_name(const std::string& run,
                                         std::int64_t incarnation);      // <run>-outer-i<n>
[[nodiscard]] std::string outer_service_name(const std::string& run);    // <run>-outer
[[nodiscard]] std::string spec_config_map_name(const std::string& run);  // <run>-spec
// <run>-outer-<first 8 hex digits of the uid>: a new run of the same name never meets the old run's
// claim.
[[nodiscard]] std::string outer_claim_name(const std::string& run, const std::string& run_uid);

}  // namespace archipelago::op
