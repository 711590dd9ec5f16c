#pragma once
// An API object {apiVersion, kind, metadata, spec, status, ...}: immutable, cheap to copy, safe to
// share over threads.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "operator/api/kinds.h"

namespace archipelago::op {

struct ObjectKey {
  std::string name_space;  // empty for cluster-scoped kinds
  std::string name;
  auto operator<=>(const ObjectKey&) const = default;
};

class Object {
 public:
  explicit Object(nlohmann::json value);

  [[nodiscard]] const nlohmann::json& json() const { return *value_; }
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] ObjectKey key() const { return {name_space(), name()}; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] std::string name_space() const;
  [[nodiscard]] std::string uid() const;
  [[nodiscard]] std::string resource_version() const;  // opaque: compare for equality only
  [[nodiscard]] std::int64_t generation() const;
  [[nodiscard]] std::map<std::string, std::string> labels() const;
  [[nodiscard]] std::string label(const std::string& key) const;  // "" when absent
  [[nodiscard]] std::string controller_uid()
      const;                            // of the owner reference with controller: true, or ""
  [[nodiscard]] bool deleting() const;  // deletionTimestamp is set
  [[nodiscard]] const nlohmann::json& spec() const;    // null when absent
  [[nodiscard]] const nlohmann::json& status() const;  // null when absent

 private:
  std::shared_ptr<const nlohmann::json> value_;
  Kind kind_;
};

}  // namespace archipelago::op
