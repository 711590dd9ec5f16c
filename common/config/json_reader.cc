#include "common/config/json_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

std::string show_number(double value) { return Json(value).dump(); }

std::string show_limit(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15)
    return std::to_string(static_cast<std::int64_t>(value));
  return show_number(value);
}

std::string describe(const Interval& range) {
  return (range.min_open ? "more than " : "") + show_limit(range.min) +
         (range.max_open ? " to less than " : " to ") + show_limit(range.max);
}

bool digits_only(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string integer_hint(const Json& value) {
  if (value.is_number_float()) {
    const double v = value.get<double>();
    if (std::floor(v) != v) return "";
    if (std::abs(v) < 9e15)
      return "write the plain digits " + std::to_string(static_cast<std::int64_t>(v));
    return "";
  }
  if (!value.is_string()) return "";
  const auto& text = value.get_ref<const std::string&>();
  if (digits_only(text) && text.size() > 1 && text[0] == '0') {
    return "a leading zero means octal to some parsers: write the number without it";
  }
  if (digits_only(text)) return "remove the quotes";
  if (const double seconds = duration_seconds(text); seconds >= 0) {
    return "write it in seconds: " + show_limit(seconds);
  }
  return "";
}

}  // namespace

double duration_seconds(std::string_view text) {
  double total = 0;
  bool any = false;
  while (!text.empty()) {
    std::size_t at = 0;
    double value = 0;
    while (at < text.size() && at < 9 && text[at] >= '0' && text[at] <= '9')
      value = value * 10 + (text[at++] - '0');
    if (at == 0) return -1;
    text.remove_prefix(at);
    double unit = 0;
    std::size_t length = 1;
    if (text.substr(0, 2) == "ms") {
      unit = 0.001;
      length = 2;
    } else if (!text.empty()) {
      unit = text[0] == 's'   ? 1
             : text[0] == 'm' ? 60
             : text[0] == 'h' ? 3600
             : text[0] == 'd' ? 86400
                              : 0;
    }
    if (unit == 0) return -1;
    text.remove_prefix(length);
    total += value * unit;
    any = true;
  }
  return any ? total : -1;
}

ObjectReader::ObjectReader(const Json* object, std::string path, ErrorList& errors)
    : path_(std::move(path)), errors_(&errors) {
  if (object == nullptr || object->is_null()) return;
  if (!object->is_object()) {
    errors_->add({path_, show_value(*object), "an object", "", "is not an object", 0});
    return;
  }
  object_ = object;
}

std::string ObjectReader::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

bool ObjectReader::has(std::string_view key) const {
  return object_ != nullptr && object_->contains(key);
}

const Json* ObjectReader::raw(std::string_view key) {
  known_.emplace_back(key);
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(key);
  return found == object_->end() ? nullptr : &*found;
}

void ObjectReader::error(std::string_view key, std::string problem, std::string allowed,
                         std::string hint) {
  std::string given;
  if (object_ != nullptr) {
    if (const auto found = object_->find(key); found != object_->end()) given = show_value(*found);
  }
  errors_->add(
      {path(key), std::move(given), std::move(allowed), std::move(hint), std::move(problem), 0});
}

bool ObjectReader::read_integer(std::string_view key, std::int64_t& out, std::int64_t min,
                                std::int64_t max) {
  const Json* value = raw(key);
  if (value == nullptr) return false;
  const std::string allowed = std::to_string(min) + " to " + std::to_string(max);
  if (!value->is_number_integer()) {  // true for unsigned too
    error(key, "is not a whole number in plain digits", allowed, integer_hint(*value));
    return false;
  }
  const bool huge = value->is_number_unsigned() &&
                    value->get<std::uint64_t>() >
                        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t number = huge ? 0 : value->get<std::int64_t>();
  if (huge || number < min || number > max) {
    error(key, "is out of range", allowed);
    return false;
  }
  out = number;
  return true;
}

bool ObjectReader::number(std::string_view key, double& out, Interval range) {
  const Json* value = raw(key);
  if (value == nullptr) return false;
  if (!value->is_number()) {
    error(key, "is not a number", describe(range), integer_hint(*value));
    return false;
  }
  const double number = value->get<double>();
  const bool low = range.min_open ? number <= range.min : number < range.min;
  const bool high = range.max_open ? number >= range.max : number > range.max;
  if (!std::isfinite(number) || low || high) {
    error(key, "is out of range", describe(range));
    return false;
  }
  out = number + 0.0;  // -0 becomes 0
  return true;
}

bool ObjectReader::boolean(std::string_view key, bool& out) {
  const Json* value = raw(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    error(key, "is not a boolean", "true, false",
          value->is_string() ? "yes, no, on and off are strings here" : "");
    return false;
  }
  out = value->get<bool>();
  return true;
}

bool ObjectReader::text(std::string_view key, std::string& out, std::size_t max_length) {
  const Json* value = raw(key);
  if (value == nullptr) return false;
  const std::string allowed = "a string of at most " + std::to_string(max_length) + " bytes";
  if (!value->is_string()) {
    error(key, "is not a string", allowed,
          value->is_structured() || value->is_null() ? "" : "put it in quotes");
    return false;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_length || text.find('\0') != std::string::npos) {
    error(key, "is too long (" + std::to_string(text.size()) + " bytes) or holds a zero byte",
          allowed);
    return false;
  }
  out = text;
  return true;
}

bool ObjectReader::text(std::string_view key, std::string& out, TextCheck check) {
  std::string value;
  if (!text(key, value, std::size_t{4096})) return false;
  if (std::string allowed = check(value); !allowed.empty()) {
    error(key, "is not allowed", std::move(allowed));
    return false;
  }
  out = std::move(value);
  return true;
}

bool ObjectReader::text_list(std::string_view key, std::vector<std::string>& out,
                             std::size_t max_items, TextCheck check) {
  const Json* value = raw(key);
  if (value == nullptr) return false;
  if (!value->is_array() || value->size() > max_items) {
    error(key, "is not a list of the right size",
          "a list of at most " + std::to_string(max_items) + " strings");
    return false;
  }
  std::vector<std::string> items;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& item = (*value)[i];
    const std::string allowed =
        item.is_string() ? check(item.get_ref<const std::string&>()) : "a string";
    if (!allowed.empty()) {
      errors_->add({path(key) + "[" + std::to_string(i) + "]", show_value(item), allowed, "",
                    "is not allowed", 0});
      return false;
    }
    items.push_back(item.get<std::string>());
  }
  out = std::move(items);
  return true;
}

bool ObjectReader::text_map(std::string_view key, std::map<std::string, std::string>& out,
                            std::size_t max_items, std::size_t max_length) {
  const Json* value = raw(key);
  if (value == nullptr || value->is_null()) return false;
  if (!value->is_object() || value->size() > max_items) {
    error(key, "is not a map of strings",
          "at most " + std::to_string(max_items) + " strings by name");
    return false;
  }
  std::map<std::string, std::string> items;
  for (const auto& [name, item] : value->items()) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > max_length ||
        name.empty() || name.size() > 317) {
      errors_->add(
          {path(key) + "." + name.substr(0, 64), show_value(item),
           "a string of at most " + std::to_string(max_length) + " bytes under a name of 1 to 317",
           item.is_structured() ? "" : "put the value in quotes", "is not allowed", 0});
      return false;
    }
    items[name] = item.get<std::string>();
  }
  out = std::move(items);
  return true;
}

int ObjectReader::read_choice(std::string_view key, const std::vector<NamedView>& names) {
  const Json* value = raw(key);
  if (value == nullptr) return -1;
  std::vector<std::string> allowed;
  bool has_off = false;
  for (const NamedView& named : names) {
    if (named.supported) allowed.emplace_back(named.name);
    has_off = has_off || named.name == "off";
  }
  if (!value->is_string()) {
    const bool boolean_off = has_off && value->is_boolean();
    error(key, "is not allowed", join(allowed, ", "),
          boolean_off ? "put off in quotes: \"off\"" : "");
    return -1;
  }
  const auto& text = value->get_ref<const std::string&>();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].name != text) continue;
    if (names[i].supported) return static_cast<int>(i);
    error(key, "is not supported yet", join(allowed, ", "));
    return -1;
  }
  const std::string near = nearest(text, allowed);
  error(key, "is not allowed", join(allowed, ", "),
        near.empty() ? "" : "did you mean " + near + "?");
  return -1;
}

void ObjectReader::only(std::string_view key, const Json& value) {
  const Json* given = raw(key);
  if (given == nullptr || *given == value) return;
  const std::string allowed = value.is_structured() ? value.dump() : show_value(value);
  error(key, "is not supported yet", value.is_null() ? "null" : allowed);
}

void ObjectReader::refuse(std::string_view key, std::string allowed) {
  if (raw(key) != nullptr) error(key, "is not supported yet", std::move(allowed));
}

ObjectReader ObjectReader::object(std::string_view key) { return {raw(key), path(key), *errors_}; }

void ObjectReader::list(std::string_view key, std::size_t max_items,
                        const std::function<void(ObjectReader&, std::size_t)>& each) {
  const Json* value = raw(key);
  if (value == nullptr) return;
  if (!value->is_array() || value->size() > max_items) {
    error(key, "is not a list of the right size",
          "a list of at most " + std::to_string(max_items) + " objects");
    return;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    const std::string at = path(key) + "[" + std::to_string(i) + "]";
    const Json& item = (*value)[i];
    if (!item.is_object()) {
      errors_->add({at, show_value(item), "an object", "", "is not an object", 0});
      continue;
    }
    ObjectReader reader(&item, at, *errors_);
    each(reader, i);
  }
}

void ObjectReader::finish() {
  if (object_ == nullptr) return;
  for (const auto& [name, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::vector<std::string> missing;
    std::copy_if(known_.begin(), known_.end(), std::back_inserter(missing),
                 [&](const std::string& known) { return !object_->contains(known); });
    const std::string near = nearest(name, missing);
    std::string shown = name.substr(0, 64);
    if (shown.size() < name.size()) shown += "...";
    errors_->add({path(shown), "", join(known_, ", "),
                  near.empty() ? "" : "did you mean " + near + "?", "is an unknown field", 0});
  }
}

}  // namespace archipelago::config
