#pragma once
// Kubernetes quantities: "500m", "2Gi", "129e6", "1".
#include <cstdint>
#include <string_view>

#include "common/base/result.h"

namespace archipelago::config {

// Bytes, rounded up; refuses negative values and what does not fit 63 bits.
[[nodiscard]] Result<std::int64_t> parse_bytes(std::string_view text);
// Cores, at least 0.001 and at most 100,000.
[[nodiscard]] Result<double> parse_cpu(std::string_view text);

}  // namespace archipelago::config
