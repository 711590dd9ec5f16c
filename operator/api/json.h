#pragma once
// Reading JSON that others wrote: a missing member or one of another type gives the fallback, never
// an exception.
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace archipelago::op {

using Path = std::initializer_list<std::string_view>;

// The member at the path, or a shared null value.
[[nodiscard]] const nlohmann::json& at(const nlohmann::json& value, Path path);
[[nodiscard]] std::string string_at(const nlohmann::json& value, Path path,
                                    std::string_view fallback = "");
[[nodiscard]] std::int64_t int_at(const nlohmann::json& value, Path path,
                                  std::int64_t fallback = 0);
[[nodiscard]] double number_at(const nlohmann::json& value, Path path, double fallback = 0);
[[nodiscard]] bool bool_at(const nlohmann::json& value, Path path, bool fallback = false);
// Members that are strings.
[[nodiscard]] std::map<std::string, std::string> string_map_at(const nlohmann::json& value,
                                                               Path path);
// Compact text; invalid UTF-8 is replaced.
[[nodiscard]] std::string to_text(const nlohmann::json& value);

}  // namespace archipelago::op
