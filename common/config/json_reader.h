#pragma once
// Typed reads out of a JSON object: type, integrality, finiteness, range and length are checked
// (nlohmann's own conversions turn -1, 3.7 and 300 into something else in silence), every key must
// be asked for or it is an unknown field, and errors are collected with their path.
//
// A getter returns true when the key was there and good; else the output keeps its default.
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/config/field_error.h"

namespace archipelago::config {

struct Interval {
  double min = 0;
  double max = 0;
  bool min_open = false;  // min itself is not allowed
  bool max_open = false;
};

template <class E>
struct Named {
  E value;
  std::string_view name;
  bool supported = true;  // false: known, and refused until its behaviour exists
};

class ObjectReader {
 public:
  // object may be null: then nothing is given. Anything but an object or null is an error.
  ObjectReader(const nlohmann::json* object, std::string path, ErrorList& errors);

  template <class T>
  bool integer(std::string_view key, T& out, std::int64_t min, std::int64_t max) {
    std::int64_t value = 0;
    if (!read_integer(key, value, min, max)) return false;
    out = static_cast<T>(value);
    return true;
  }
  bool number(std::string_view key, double& out, Interval range);  // "1h30m" gets the hint 5400
  bool boolean(std::string_view key, bool& out);
  bool text(std::string_view key, std::string& out, std::size_t max_length);
  // check: empty when good, else what is allowed.
  using TextCheck = std::string (*)(std::string_view);
  bool text(std::string_view key, std::string& out, TextCheck check);
  bool text_list(std::string_view key, std::vector<std::string>& out, std::size_t max_items,
                 TextCheck check);
  bool text_map(std::string_view key, std::map<std::string, std::string>& out,
                std::size_t max_items, std::size_t max_length);

  template <class E, std::size_t N>
  bool choice(std::string_view key, E& out, const std::array<Named<E>, N>& names) {
    std::vector<NamedView> views;
    for (const Named<E>& named : names) views.push_back({named.name, named.supported});
    const int index = read_choice(key, views);
    if (index < 0) return false;
    out = names[static_cast<std::size_t>(index)].value;
    return true;
  }

  // A field whose behaviour does not exist yet: only its default may be given.
  void only(std::string_view key, const nlohmann::json& value);
  // A field that exists in later versions and has no default.
  void refuse(std::string_view key, std::string allowed);

  [[nodiscard]] ObjectReader object(std::string_view key);
  // The items of a list of objects.
  void list(std::string_view key, std::size_t max_items,
            const std::function<void(ObjectReader&, std::size_t)>& each);
  // The value itself, for fields with a shape of their own; null when absent.
  [[nodiscard]] const nlohmann::json* raw(std::string_view key);
  void tolerate(std::string_view key) { static_cast<void>(raw(key)); }

  [[nodiscard]] ErrorList* errors() const { return errors_; }
  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] bool given() const { return object_ != nullptr; }
  [[nodiscard]] std::string path(std::string_view key) const;
  void error(std::string_view key, std::string problem, std::string allowed, std::string hint = "");
  // Every key that nobody asked for is an unknown field. Call last.
  void finish();

 private:
  struct NamedView {
    std::string_view name;
    bool supported;
  };
  bool read_integer(std::string_view key, std::int64_t& out, std::int64_t min, std::int64_t max);
  int read_choice(std::string_view key, const std::vector<NamedView>& names);

  const nlohmann::json* object_ = nullptr;
  std::string path_;
  ErrorList* errors_;
  std::vector<std::string> known_;
};

// "30s", "1h30m", "250ms" as seconds; negative when it is no duration. For hints only.
[[nodiscard]] double duration_seconds(std::string_view text);

}  // namespace archipelago::config
