// apply_set: "path=value" into a document.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/config/parse.h"
#include "common/config/text_limits.h"
#include "common/config/yaml_json.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

struct Step {
  std::string name;
  std::optional<std::size_t> index;
};

// "datacenters[0].learnerUnits" -> {datacenters, [0], learnerUnits}; empty when it is no path.
std::vector<Step> split(std::string_view path) {
  std::vector<Step> steps;
  std::string name;
  const auto flush = [&] {
    if (!name.empty()) steps.push_back({std::exchange(name, ""), std::nullopt});
  };
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '\\' && i + 1 < path.size()) {
      name += path[++i];
    } else if (path[i] == '.') {
      if (name.empty() && (i == 0 || path[i - 1] != ']')) return {};
      flush();
      if (i + 1 == path.size()) return {};
    } else if (path[i] == '[') {
      flush();
      std::size_t index = 0;
      const char* end = path.data() + path.size();
      const auto [at, error] = std::from_chars(path.data() + i + 1, end, index);
      if (error != std::errc() || at == end || *at != ']' || steps.empty()) return {};
      steps.push_back({"", index});
      i = static_cast<std::size_t>(at - path.data());
      if (i + 1 < path.size() && path[i + 1] != '.' && path[i + 1] != '[') return {};
    } else {
      name += path[i];
    }
  }
  flush();
  return steps;
}

std::string names_of(const Json& list) {
  std::vector<std::string> names;
  for (const Json& item : list) {
    if (item.is_object() && item.contains("name") && item["name"].is_string())
      names.push_back(show_value(item["name"]));
  }
  return join(names, ", ");
}

Result<Json*> descend_list(Json& list, const Step& step) {
  if (step.index) {
    if (*step.index < list.size()) return &list[*step.index];
    return fail(ErrorKind::kInvalid, "[" + std::to_string(*step.index) +
                                         "] is past the list's end (" +
                                         std::to_string(list.size()) + " items)");
  }
  for (Json& item : list) {
    if (item.is_object() && item.contains("name") && item["name"] == step.name) return &item;
  }
  return fail(ErrorKind::kInvalid,
              "no item named " + show_text(step.name) + ", there are: " + names_of(list));
}

Result<Json*> descend(Json& at, const Step& step) {
  if (at.is_array()) return descend_list(at, step);
  if (step.index)
    return fail(ErrorKind::kInvalid,
                "[" + std::to_string(*step.index) + "] of something that is no list");
  if (at.is_null()) at = Json::object();
  if (!at.is_object())
    return fail(ErrorKind::kInvalid, show_text(step.name) + " lies in a plain value");
  return &at[step.name];
}

Result<Json> read_value(std::string_view text) {
  if (text.empty()) return Json("");
  ARCH_TRY_VOID(check_text(text));
  auto document = parse_yaml_text(text);
  if (!document) return fail(ErrorKind::kInvalid, format_error(document.error().front()));
  return std::move(document->value);
}

}  // namespace

Status apply_set(Json& document, std::string_view assignment) {
  const auto context = [&](const Error& error) {
    return fail(error.with_context("--set " + show_text(assignment)));
  };
  const std::size_t equals = assignment.find('=');
  std::vector<Step> steps;
  if (equals != std::string_view::npos) steps = split(assignment.substr(0, equals));
  if (steps.empty() || steps.size() > static_cast<std::size_t>(kMaxDepth)) {
    return context({ErrorKind::kInvalid, "is no path=value, such as sync.quorum=2"});
  }
  constexpr std::array<std::string_view, 5> kTop{"apiVersion", "kind", "metadata", "spec",
                                                 "status"};
  if (std::find(kTop.begin(), kTop.end(), steps.front().name) == kTop.end())
    steps.insert(steps.begin(), {"spec", {}});
  auto value = read_value(assignment.substr(equals + 1));
  if (!value) return context(value.error());
  Json* at = &document;
  for (const Step& step : steps) {
    auto next = descend(*at, step);
    if (!next) return context(next.error());
    at = *next;
  }
  *at = std::move(*value);
  return {};
}

}  // namespace archipelago::config
