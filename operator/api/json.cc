#include "operator/api/json.h"

#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

namespace archipelago::op {

using nlohmann::json;

const json& at(const json& value, Path path) {
  static const json kNull;
  const json* here = &value;
  for (const std::string_view name : path) {
    if (!here->is_object()) return kNull;
    const auto it = here->find(name);
    if (it == here->end()) return kNull;
    here = &*it;
  }
  return *here;
}

std::string string_at(const json& value, Path path, std::string_view fallback) {
  const json& v = at(value, path);
  return v.is_string() ? v.get<std::string>() : std::string(fallback);
}

std::int64_t int_at(const json& value, Path path, std::int64_t fallback) {
  const json& v = at(value, path);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  if (v.is_number_unsigned()) {
    const auto u = v.get<std::uint64_t>();
    return u <= static_cast<std::uint64_t>(kMax) ? static_cast<std::int64_t>(u) : fallback;
  }
  if (v.is_number_integer()) return v.get<std::int64_t>();
  if (v.is_number_float()) {
    const double d = v.get<double>();
    if (std::isfinite(d) && std::abs(d) < 9.0e18) return static_cast<std::int64_t>(d);
  }
  return fallback;
}

double number_at(const json& value, Path path, double fallback) {
  const json& v = at(value, path);
  if (!v.is_number()) return fallback;
  const double d = v.get<double>();
  return std::isfinite(d) ? d : fallback;
}

bool bool_at(const json& value, Path path, bool fallback) {
  const json& v = at(value, path);
  return v.is_boolean() ? v.get<bool>() : fallback;
}

std::map<std::string, std::string> string_map_at(const json& value, Path path) {
  std::map<std::string, std::string> out;
  const json& v = at(value, path);
  if (!v.is_object()) return out;
  for (const auto& [name, member] : v.items())
    if (member.is_string()) out.emplace(name, member.get<std::string>());
  return out;
}

std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace archipelago::op
