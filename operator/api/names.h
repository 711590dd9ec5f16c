#pragma once
// Names of children. Pod names carry the incarnation, so a successor never waits for its
// predecessor's name.
#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace archipelago::op {

inline constexpr std::size_t kMaxName = 63;  // DNS label: pods get it as hostname, labels as value

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

[[nodiscard]] bool is_dns_label(const std::string& text);
// The longest derived name (six digits for the incarnation) must fit 63 characters, and every part
// be a DNS label.
[[nodiscard]] Status check_names(const std::string& run, const std::string& datacenter,
                                 std::int32_t learner_units);

}  // namespace archipelago::op
