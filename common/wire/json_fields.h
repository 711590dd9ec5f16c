#pragma once
// A reader of one JSON object that remembers its first error: fields are read in sequence, then
// `done()` says whether all of them were there, in range and finite. Private to
// common/wire/*_json.cc.
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace archipelago::wire {

using Json = nlohmann::json;

// Nesting is checked before the parse: a document of 200,000 brackets must not reach a recursive
// parser.
[[nodiscard]] Result<Json> parse_object(std::string_view text, std::size_t max_bytes);
[[nodiscard]] inline std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Fields {
 public:
  Fields(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {
    if (!json.is_object()) error_ = path_ + " must be an object";
  }

  template <class Int>
  void integer(const char* key, Int& out, std::int64_t low, std::int64_t high,
               bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr) return;
    if (!value->is_number_integer()) return set_error(std::string(key) + " must be an integer");
    if (value->is_number_unsigned() &&
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      return set_error(std::string(key) + " is too large");
    const auto number = value->get<std::int64_t>();
    if (number < low || number > high)
      return set_error(std::string(key) + ": given " + std::to_string(number) + ", allowed " +
                       std::to_string(low) + " to " + std::to_string(high));
    out = static_cast<Int>(number);
  }
  template <class Tag, class Rep>
  void id(const char* key, Id<Tag, Rep>& out, std::int64_t low, bool required = true) {
    integer(key, out.value, low, std::numeric_limits<Rep>::max(), required);
  }
  // Absent means "no value" and leaves `out` alone; non-finite numbers can't be written in JSON.
  void number(const char* key, double& out, double low = -1e300, double high = 1e300) {
    const Json* value = find(key, false);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_number()) return set_error(std::string(key) + " must be a number");
    const double d = value->get<double>();
    if (!std::isfinite(d) || d < low || d > high)
      return set_error(std::string(key) + " is out of range");
    out = d;
  }
  void text(const char* key, std::string& out, std::size_t max, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr) return;
    if (!value->is_string()) return set_error(std::string(key) + " must be a string");
    const auto& s = value->get_ref<const std::string&>();
    if (s.size() > max)
      return set_error(std::string(key) + ": longer than " + std::to_string(max) + " bytes");
    out = s;
  }
  void boolean(const char* key, bool& out) {
    const Json* value = find(key, false);
    if (value == nullptr) return;
    if (!value->is_boolean()) return set_error(std::string(key) + " must be true or false");
    out = value->get<bool>();
  }
  template <class Enum>
  void choice(const char* key, Enum& out,
              const std::vector<std::pair<std::string_view, Enum>>& names) {
    std::string given;
    text(key, given, 64);
    for (const auto& [name, value] : names)
      if (name == given) {
        out = value;
        return;
      }
    set_error(std::string(key) + ": unknown value '" + given + "'");
  }
  // Calls each(element) for at most `max` elements of an optional array.
  template <class Each>
  void list(const char* key, std::size_t max, Each each) {
    const Json* value = find(key, false);
    if (value == nullptr) return;
    if (!value->is_array()) return set_error(std::string(key) + " must be a list");
    if (value->size() > max)
      return set_error(std::string(key) + ": more than " + std::to_string(max) + " elements");
    for (const auto& element : *value) each(element);
  }
  [[nodiscard]] const Json* find(const char* key, bool required) {
    if (!error_.empty()) return nullptr;
    const auto it = json_->find(key);
    if (it != json_->end()) return &*it;
    if (required) set_error(std::string(key) + " is missing");
    return nullptr;
  }
  // A nested reader's verdict counts as ours.
  void nested(const Fields& inner) {
    if (error_.empty()) error_ = inner.error_;
  }
  void set_error(const std::string& what) {
    if (error_.empty()) error_ = path_ + "." + what;
  }
  [[nodiscard]] std::string path(const char* key) const { return path_ + "." + key; }
  [[nodiscard]] Status done() const {
    if (error_.empty()) return {};
    return fail(ErrorKind::kInvalid, error_);
  }

 private:
  const Json* json_;
  std::string path_;
  std::string error_;
};

// A JSON array of integers into strong ids.
template <class IdType>
void read_ids(Fields& fields, const char* key, std::size_t max, std::vector<IdType>& out) {
  fields.list(key, max, [&](const Json& element) {
    if (!element.is_number_integer())
      return fields.set_error(std::string(key) + " must hold integers");
    out.emplace_back(static_cast<typename IdType::rep>(element.get<std::int64_t>()));
  });
}

inline void put_number(Json& json, const char* key, double value) {
  if (std::isfinite(value)) json[key] = value;
}

}  // namespace archipelago::wire
