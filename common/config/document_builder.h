#pragma once
// Builds one JSON value out of parse events (JSON or YAML) under the limits of text_limits.h; knows
// the path of each value and, where the source has lines, the line.
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/config/field_error.h"

namespace archipelago::config {

using LineMap = std::map<std::string, int>;  // path -> line, from 1

class DocumentBuilder {
 public:
  // Each returns false once a limit is passed: the caller stops the parser. Duplicate keys are
  // reported and skipped.
  bool value(nlohmann::json value);
  bool open(nlohmann::json container);  // empty object or array
  bool close();
  bool key(std::string name, int line);  // line 0: unknown

  [[nodiscard]] bool expects_key() const;
  [[nodiscard]] std::string path() const;  // of the value that comes next
  // nodes: size of a value that is put in whole (an alias).
  bool charge(std::size_t nodes);
  // The container or value that was completed last, for anchors.
  [[nodiscard]] const nlohmann::json& last() const { return last_; }
  void refuse(std::string problem, int line, std::string hint = "");

  [[nodiscard]] const std::vector<FieldError>& errors() const { return errors_.errors(); }
  [[nodiscard]] std::vector<FieldError> take_errors() { return errors_.take(); }
  [[nodiscard]] nlohmann::json take() { return std::move(root_); }
  [[nodiscard]] LineMap take_lines() { return std::move(lines_); }

 private:
  struct Frame {
    nlohmann::json container;
    std::string path;
    std::string key;
    bool has_key = false;
    bool skip = false;  // value of a duplicate key
  };
  bool place(nlohmann::json value);

  std::vector<Frame> frames_;
  nlohmann::json root_;
  nlohmann::json last_;
  LineMap lines_;
  ErrorList errors_;
  std::size_t nodes_ = 0;
};

}  // namespace archipelago::config
