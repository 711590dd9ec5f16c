#pragma once
// Bounds of a document, checked before or while it is parsed (deep nesting and alias expansion
// exhaust parsers).
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"

namespace archipelago::config {

inline constexpr std::size_t kMaxTextBytes = std::size_t{1}
                                             << 20;  // an API server stores at most 1.5 MB
inline constexpr int kMaxDepth = 32;
inline constexpr std::size_t kMaxNodes = 50'000;  // alias expansion included
inline constexpr std::size_t kBytesPerNode = 32;  // strings count by length too
inline constexpr int kMaxAliases = 64;

// Size, valid UTF-8, no control characters but tab, line feed, carriage return.
[[nodiscard]] Status check_text(std::string_view text);
// Deepest nesting of brackets outside double quotes: a cheap look before any parser sees the text.
// An upper bound for JSON; in YAML brackets may stand in plain text, where 1,000 of them is still
// no sensible document.
[[nodiscard]] std::size_t bracket_depth(std::string_view text);
// Depth and node count of a value that someone else parsed. Iterative: the value may be too deep to
// recurse.
[[nodiscard]] Status check_value(const nlohmann::json& value);

}  // namespace archipelago::config
