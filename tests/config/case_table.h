#pragma once
// The tables of tests/config/cases, which an API server with the CRD is asked as well
// (tests/cluster/api/test_crd.py applies them in the same way).
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/files.h"

namespace archipelago::config {

using Json = nlohmann::json;

inline Json case_table(const std::string& name) {
  const auto text =
      read_file(std::string(ARCHIPELAGO_SOURCE_DIR) + "/tests/config/cases/" + name + ".json");
  return text ? Json::parse(*text) : Json();
}

// "sync/quorum" is below /spec, "/metadata/name" is not.
inline Json::json_pointer pointer_of(const std::string& text) {
  return Json::json_pointer(text.front() == '/' ? text : "/spec/" + text);
}

inline Json changed(Json document, const Json& change) {
  const Json set = change.value("set", Json::object());
  const Json fill = change.value("fill", Json::object());
  for (const auto& [path, value] : set.items()) document[pointer_of(path)] = value;
  for (const auto& [path, count] : fill.items()) {
    Json items = Json::array();
    for (int i = 0; i < count.get<int>(); ++i) items.push_back({{"name", "d" + std::to_string(i)}});
    document[pointer_of(path)] = items;
  }
  for (const Json& path : change.value("remove", Json::array())) {
    const Json::json_pointer at = pointer_of(path.get<std::string>());
    Json& parent = document[at.parent_pointer()];
    if (parent.is_array()) {
      parent.erase(std::stoul(at.back()));
    } else {
      parent.erase(at.back());
    }
  }
  return document;
}

}  // namespace archipelago::config
