#include "operator/api/names.h"

#include <algorithm>
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

bool is_dns_label(const std::string& text) {
  const auto ok = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (text.empty() || text.size() > kMaxName) return false;
  if (!ok(text.front()) || !ok(text.back())) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) { return ok(c) || c == '-'; });
}

Status check_names(const std::string& run, const std::string& datacenter,
                   std::int32_t learner_units) {
  if (!is_dns_label(run))
    return fail(ErrorKind::kInvalid, "metadata.name: '" + run +
                                         "' is no DNS label (lower-case letters, digits and '-', "
                                         "at most 63)");
  if (!is_dns_label(datacenter))
    return fail(ErrorKind::kInvalid, "datacenter name: '" + datacenter +
                                         "' is no DNS label (lower-case letters, digits and '-', "
                                         "at most 63)");
  const std::string longest =
      learner_pod_name(run, datacenter, std::max(learner_units - 1, 0), 999999);
  const std::string outer = outer_pod_name(run, 999999);
  const std::string& worst = longest.size() >= outer.size() ? longest : outer;
  if (worst.size() > kMaxName)
    return fail(ErrorKind::kInvalid, "metadata.name: the derived pod name '" + worst + "' has " +
                                         std::to_string(worst.size()) +
                                         " characters, allowed: 63; shorten the run's or the "
                                         "datacenter's name");
  return {};
}

}  // namespace archipelago::op
