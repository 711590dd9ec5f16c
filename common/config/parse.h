#pragma once
// A DecoupledTraining from YAML or JSON text, or from an object as an API server stores it:
// defaults resolved, every rule of docs/resource.md checked, all errors at once.
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <tl/expected.hpp>

#include "common/base/result.h"
#include "common/config/field_error.h"
#include "common/config/spec.h"

namespace archipelago::config {

inline constexpr std::string_view kApiVersion = "archipelago.training/v1alpha1";
inline constexpr std::string_view kKind = "DecoupledTraining";

template <class T>
using Parsed = tl::expected<T, std::vector<FieldError>>;

// Text to a JSON value without looking at fields: JSON when it reads as JSON, else YAML
// (yaml_json.h).
[[nodiscard]] Parsed<nlohmann::json> parse_document(std::string_view text);

// sets: "sync.quorum=2" overrides, applied in order before the fields are read (apply_set).
[[nodiscard]] Parsed<DecoupledTraining> parse_training(std::string_view text,
                                                       const std::vector<std::string>& sets = {});
// As stored: metadata's and status' fields of Kubernetes are tolerated; spec is as strict as text.
[[nodiscard]] Parsed<DecoupledTraining> parse_training_object(const nlohmann::json& object);
// The same under one name; only for JSON values proper, because text converts to one in silence.
template <class Json>
requires std::is_same_v<Json, nlohmann::json>
[[nodiscard]] Parsed<DecoupledTraining> parse_training(const Json& object) {
  return parse_training_object(object);
}

// The fully resolved resource; parse_training(to_json(x)) == x.
[[nodiscard]] nlohmann::json to_json(const DecoupledTraining& training);

// "path=value" into a document. A path that starts with none of apiVersion, kind, metadata, spec,
// status is below spec. List items by index or by their name: datacenters[0].learnerUnits,
// datacenters.us-east.learnerUnits. "\." is a dot inside a key. The value is read by the YAML rules
// of yaml_json.h ("[0.9, 0.95]" is a list).
[[nodiscard]] Status apply_set(nlohmann::json& document, std::string_view assignment);

// The names as the resource spells them.
[[nodiscard]] std::string_view to_string(DataFormat value);
[[nodiscard]] std::string_view to_string(Precision value);
[[nodiscard]] std::string_view to_string(GraceRule value);
[[nodiscard]] std::string_view to_string(MergeRule value);
[[nodiscard]] std::string_view to_string(CodecName value);
[[nodiscard]] std::string_view to_string(AttentionBias value);
[[nodiscard]] std::string_view to_string(RopeScaling value);
[[nodiscard]] std::string_view to_string(LrSchedule value);
[[nodiscard]] std::string_view to_string(RetainPolicy value);

}  // namespace archipelago::config
