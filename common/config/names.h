#pragma once
// Names in a run and the lengths that Kubernetes allows them.
#include <cstddef>
#include <string>
#include <string_view>

#include "common/config/spec.h"

namespace archipelago::config {

inline constexpr std::size_t kMaxNameLength = 63;  // labels, host names, Service names

// Checks return what is allowed, or an empty string when the text is good.
[[nodiscard]] std::string check_label(std::string_view text);  // DNS-1123 label
[[nodiscard]] std::string check_subdomain(
    std::string_view text);  // DNS-1123 subdomain, at most 253
[[nodiscard]] std::string check_subdomain_or_empty(std::string_view text);
[[nodiscard]] std::string check_run_name(
    std::string_view text);  // DNS-1035 label: it starts Service names
[[nodiscard]] std::string check_path(std::string_view text);
[[nodiscard]] std::string check_absolute_path(std::string_view text);
[[nodiscard]] std::string check_image(std::string_view text);
[[nodiscard]] std::string check_uid(std::string_view text);

// Length of the longest name derived from the run alone ("RUN-outer-12345678", a claim).
[[nodiscard]] std::size_t longest_run_name(const std::string& run);
// Length of the longest pod name of a datacenter: RUN-DATACENTER-ORDINAL-iINCARNATION, six digits
// of incarnation.
[[nodiscard]] std::size_t longest_pod_name(const std::string& run,
                                           const DatacenterSpec& datacenter);

}  // namespace archipelago::config
