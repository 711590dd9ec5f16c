#include "common/config/parse.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "common/config/json_reader.h"
#include "common/config/json_text.h"
#include "common/config/read_spec.h"
#include "common/config/rules.h"
#include "common/config/text_limits.h"
#include "common/config/yaml_json.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

struct Document {
  Json value;
  LineMap lines;  // empty for JSON
};

bool looks_like_json(std::string_view text) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

std::vector<FieldError> one_error(const Error& error) {
  return {{"", "", "", "", error.message, 0}};
}

Parsed<Document> read_document(std::string_view text) {
  if (const Status good = check_text(text); !good) return tl::unexpected(one_error(good.error()));
  std::vector<FieldError> json_errors;
  if (looks_like_json(text)) {
    auto json = parse_json_text(text);
    if (json) return Document{std::move(*json), {}};
    // "{" also starts YAML's flow style: only what no JSON parser would take gets a second try.
    json_errors = std::move(json.error().errors);
    if (!json.error().syntax) return tl::unexpected(std::move(json_errors));
  }
  auto yaml = parse_yaml_text(text);
  if (yaml) return Document{std::move(yaml->value), std::move(yaml->lines)};
  return tl::unexpected(json_errors.empty() ? std::move(yaml.error()) : std::move(json_errors));
}

void read_kind(ObjectReader& top) {
  std::string text;
  if (!top.text("apiVersion", text, std::size_t{128}) && !top.has("apiVersion")) {
    top.error("apiVersion", "is required", std::string(kApiVersion));
  } else if (!text.empty() && text != kApiVersion) {
    top.error("apiVersion", "is not known", std::string(kApiVersion));
  }
  text.clear();
  if (!top.text("kind", text, std::size_t{128}) && !top.has("kind")) {
    top.error("kind", "is required", std::string(kKind));
  } else if (!text.empty() && text != kKind) {
    top.error("kind", "is not known", std::string(kKind));
  }
}

Parsed<DecoupledTraining> read_training(const Json& object) {
  ErrorList errors;
  DecoupledTraining training;
  Given given;
  ObjectReader top(&object, "", errors);
  if (!top.given()) {
    if (errors.empty()) errors.add({"", "null", "an object", "", "is no DecoupledTraining", 0});
    return tl::unexpected(errors.take());
  }
  read_kind(top);
  read_metadata(top.object("metadata"), training);
  read_training_spec(top.object("spec"), training.spec, given);
  top.tolerate("status");
  top.finish();
  resolve_defaults(training.spec, given);
  check_rules(training, errors);
  if (!errors.empty()) return tl::unexpected(errors.take());
  return training;
}

// The line of the path or of the nearest thing above it.
int line_of(const LineMap& lines, std::string path) {
  while (!path.empty()) {
    if (const auto found = lines.find(path); found != lines.end()) return found->second;
    const std::size_t cut = path.find_last_of(".[");
    path.resize(cut == std::string::npos ? 0 : cut);
  }
  return 0;
}

}  // namespace

Parsed<Json> parse_document(std::string_view text) {
  auto document = read_document(text);
  if (!document) return tl::unexpected(std::move(document.error()));
  return std::move(document->value);
}

Parsed<DecoupledTraining> parse_training(std::string_view text,
                                         const std::vector<std::string>& sets) {
  auto document = read_document(text);
  if (!document) return tl::unexpected(std::move(document.error()));
  std::vector<FieldError> bad_sets;
  for (const std::string& set : sets) {
    if (const Status applied = apply_set(document->value, set); !applied) {
      bad_sets.push_back(one_error(applied.error()).front());
    }
  }
  if (!bad_sets.empty()) return tl::unexpected(std::move(bad_sets));
  auto training = read_training(document->value);
  // Lines are the text's; an override may have moved what an error is about.
  if (!training && sets.empty()) {
    for (FieldError& error : training.error()) {
      if (error.line == 0 && error.problem != "is required")
        error.line = line_of(document->lines, error.path);
    }
  }
  return training;
}

Parsed<DecoupledTraining> parse_training_object(const Json& object) {
  if (const Status good = check_value(object); !good)
    return tl::unexpected(one_error(good.error()));
  return read_training(object);
}

}  // namespace archipelago::config
