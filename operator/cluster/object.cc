#include "operator/cluster/object.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::op {

Object::Object(nlohmann::json value)
    : value_(std::make_shared<const nlohmann::json>(std::move(value))),
      kind_(parse_kind(string_at(*value_, {"kind"})).value_or(Kind::kTraining)) {}

std::string Object::name() const { return string_at(*value_, {"metadata", "name"}); }
std::string Object::name_space() const { return string_at(*value_, {"metadata", "namespace"}); }
std::string Object::uid() const { return string_at(*value_, {"metadata", "uid"}); }
std::string Object::resource_version() const {
  return string_at(*value_, {"metadata", "resourceVersion"});
}
std::int64_t Object::generation() const { return int_at(*value_, {"metadata", "generation"}); }
std::map<std::string, std::string> Object::labels() const {
  return string_map_at(*value_, {"metadata", "labels"});
}
std::string Object::label(const std::string& key) const {
  return string_at(*value_, {"metadata", "labels", key});
}
std::string Object::controller_uid() const {
  const nlohmann::json& owners = at(*value_, {"metadata", "ownerReferences"});
  if (owners.is_array())
    for (const nlohmann::json& o : owners)
      if (bool_at(o, {"controller"})) return string_at(o, {"uid"});
  return "";
}
bool Object::deleting() const { return at(*value_, {"metadata", "deletionTimestamp"}).is_string(); }
const nlohmann::json& Object::spec() const { return at(*value_, {"spec"}); }
const nlohmann::json& Object::status() const { return at(*value_, {"status"}); }

}  // namespace archipelago::op
