#pragma once
// JSON text to a value: limits while parsing, no exceptions, duplicate keys refused, all of them
// named.
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tl/expected.hpp>

#include "common/config/field_error.h"

namespace archipelago::config {

struct JsonTextErrors {
  std::vector<FieldError> errors;
  bool syntax = false;  // the text is no JSON at all (it may be YAML)
};

[[nodiscard]] tl::expected<nlohmann::json, JsonTextErrors> parse_json_text(std::string_view text);

}  // namespace archipelago::config
