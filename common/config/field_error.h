#pragma once
// What is wrong with a DecoupledTraining, one entry a field: all of them at once, never only the
// first.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace archipelago::config {

struct FieldError {
  std::string path;     // "spec.datacenters[0].learnerUnits"; empty: the whole document
  std::string given;    // the value as JSON, shortened; empty: nothing was given
  std::string allowed;  // "1 to 256"
  std::string hint;     // what the user most likely meant; may be empty
  std::string problem;  // "is out of range", "is not supported yet", "is required"
  int line = 0;         // of the YAML text, from 1; 0 = unknown
};

// "spec.sync.overlap (line 12): 24 is out of range, allowed: 1 to 23. HINT: ...", one line.
[[nodiscard]] std::string format_error(const FieldError& error);
// One line an error, each ending in a newline.
[[nodiscard]] std::string format_errors(const std::vector<FieldError>& errors);

// Collects errors; bounded, because a hostile document could have one for each of its bytes.
class ErrorList {
 public:
  static constexpr std::size_t kMaxErrors = 100;

  void add(FieldError error);
  // True when an error concerns this path, something below it, or something it lies in: rules that
  // relate several fields are not checked on fields that are already wrong.
  [[nodiscard]] bool touches(std::string_view path) const;
  [[nodiscard]] bool empty() const { return errors_.empty(); }
  [[nodiscard]] const std::vector<FieldError>& errors() const { return errors_; }
  [[nodiscard]] std::vector<FieldError> take() { return std::move(errors_); }

 private:
  std::vector<FieldError> errors_;
};

// The value as a user would recognise it, at most 80 bytes, valid UTF-8, safe on any input.
[[nodiscard]] std::string show_value(const nlohmann::json& value);
[[nodiscard]] std::string show_text(std::string_view text);  // quoted, shortened

// The candidate nearest to word by edit distance (transpositions count once), or empty when none is
// near.
[[nodiscard]] std::string nearest(std::string_view word,
                                  const std::vector<std::string>& candidates);
[[nodiscard]] std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace archipelago::config
