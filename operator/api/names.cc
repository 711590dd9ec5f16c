#include "operator/api/names.h"

#include <cctype>

namespace archipelago::op {

std::string learner_pod_name(const std::string& run, const std::string& datacenter,
                             std::int32_t ordinal, std::int64_t incarnation) {
  return run + "-" + datacenter + "-" + std::to_string(ordinal) + "-i" +
         std::to_string(incarnation);
}
std::string outer_pod_name(const std::string& run, std::int64_t incarnation) {
  return run + "-outer-i" + std::to_string(incarnation);
}
std::string outer_service_name(const std::string& run) { return run + "-outer"; }
std::string spec_config_map_name(const std::string& run) { return run + "-spec"; }

std::string outer_claim_name(const std::string& run, const std::string& run_uid) {
  std::string hex;
  for (const char c : run_uid) {
    if (hex.size() == 8) break;
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0)
      hex += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return run + "-outer-" + hex;
}

}  // namespace archipelago::op
