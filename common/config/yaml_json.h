#pragma once
// YAML text to a JSON value by rules of our own; the .cc is the only file that includes yaml-cpp,
// whose conversions surprise (yes is true, 010 is 8, a second document and a second equal key
// vanish in silence).
//
// Plain scalars: null, ~ and nothing are null; true and false (also True, TRUE) are booleans;
// decimal digits without a leading zero are integers; decimal fractions and exponents (0.5, 1e3)
// are floats, which integer fields refuse. Everything else is a string: yes, no, on, off, 010,
// 0x1F, 1_000, .nan, .inf, dates. Quoted scalars are strings.
//
// Refused: duplicate keys, keys that are no scalars, a second document, tags other than !!str,
// merge keys (<<), aliases beyond kMaxAliases or inside their own anchor, and what text_limits.h
// bounds.
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tl/expected.hpp>

#include "common/config/document_builder.h"
#include "common/config/field_error.h"

namespace archipelago::config {

struct YamlDocument {
  nlohmann::json value;
  LineMap lines;
};

[[nodiscard]] tl::expected<YamlDocument, std::vector<FieldError>> parse_yaml_text(
    std::string_view text);

}  // namespace archipelago::config
