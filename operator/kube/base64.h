#pragma once
// RFC 4648, as kubeconfig's -data fields have it: padding may be missing, white space is skipped.
#include <optional>
#include <string>
#include <string_view>

namespace archipelago::op::kube {

[[nodiscard]] std::optional<std::string> decode_base64(std::string_view text);

}  // namespace archipelago::op::kube
