#include "common/config/document_builder.h"

#include <utility>

#include "common/config/text_limits.h"

namespace archipelago::config {

std::string DocumentBuilder::path() const {
  if (frames_.empty()) return "";
  const Frame& top = frames_.back();
  if (top.container.is_array()) return top.path + "[" + std::to_string(top.container.size()) + "]";
  const std::string name = top.key.substr(0, 128);
  return top.path.empty() ? name : top.path + "." + name;
}

bool DocumentBuilder::expects_key() const {
  return !frames_.empty() && frames_.back().container.is_object() && !frames_.back().has_key;
}

void DocumentBuilder::refuse(std::string problem, int line, std::string hint) {
  errors_.add({path(), "", "", std::move(hint), std::move(problem), line});
}

bool DocumentBuilder::charge(std::size_t nodes) {
  nodes_ += nodes;
  if (nodes_ <= kMaxNodes) return true;
  errors_.add(
      {"", "", "", "", "the document has more than " + std::to_string(kMaxNodes) + " values", 0});
  return false;
}

bool DocumentBuilder::key(std::string name, int line) {
  Frame& top = frames_.back();
  top.key = std::move(name);
  top.has_key = true;
  top.skip = top.container.contains(top.key);
  if (top.skip) {
    refuse("is given twice", line, "remove one of the two");
  } else if (line > 0) {
    lines_[path()] = line;
  }
  return true;
}

bool DocumentBuilder::place(nlohmann::json value) {
  if (frames_.empty()) {
    root_ = std::move(value);
    return true;
  }
  Frame& top = frames_.back();
  if (top.container.is_array()) {
    top.container.push_back(std::move(value));
  } else {
    if (!top.skip) top.container[top.key] = std::move(value);
    top.has_key = false;
  }
  return true;
}

bool DocumentBuilder::value(nlohmann::json value) {
  // Long strings count as several values: aliases would multiply them past any bound on values
  // alone.
  const std::size_t bytes = value.is_string() ? value.get_ref<const std::string&>().size() : 0;
  if (!charge(1 + bytes / kBytesPerNode)) return false;
  last_ = value;
  return place(std::move(value));
}

bool DocumentBuilder::open(nlohmann::json container) {
  if (!charge(1)) return false;
  if (frames_.size() >= static_cast<std::size_t>(kMaxDepth)) {
    refuse("is nested deeper than " + std::to_string(kMaxDepth) + " levels", 0);
    return false;
  }
  std::string at = path();
  frames_.push_back({std::move(container), std::move(at), "", false, false});
  return true;
}

bool DocumentBuilder::close() {
  last_ = std::move(frames_.back().container);
  frames_.pop_back();
  return place(last_);
}

}  // namespace archipelago::config
