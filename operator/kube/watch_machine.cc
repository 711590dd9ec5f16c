#include "operator/kube/watch_machine.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/slim.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;

WatchStep skip(std::string why) { return {StepKind::kSkip, {}, std::move(why)}; }

// A Status object, however it came: as the object of an ERROR, bare on the line, or as the "object"
// of an event that calls itself something else.
WatchStep read_status(const json& status) {
  const std::int64_t code = int_at(status, {"code"});
  const std::string reason = string_at(status, {"reason"});
  const std::string message = string_at(status, {"message"}).substr(0, 1024);
  const std::string text = std::to_string(code) + " " + reason + ": " + message;
  if (code == 410 || reason == "Expired" || reason == "Gone") return {StepKind::kGone, {}, text};
  return {StepKind::kFailed, {}, text};
}

bool is_status(const json& value) {
  return string_at(value, {"kind"}) == "Status" && string_at(value, {"apiVersion"}) == "v1";
}
}  // namespace

bool is_gone(int http_status) { return http_status == 410; }

WatchStep read_watch_line(Kind kind, std::string_view line, bool slim) {
  json document = json::parse(line, nullptr, false);
  if (!document.is_object()) return skip("a line that is no JSON object");
  if (is_status(document)) return read_status(document);
  const std::string type = string_at(document, {"type"});
  const auto found = document.find("object");
  if (type == "ERROR") return read_status(found == document.end() ? json() : *found);
  if (found == document.end() || !found->is_object())
    return skip("an event of type '" + type.substr(0, 32) + "' without an object");
  if (is_status(*found)) return read_status(*found);
  WatchStep out{StepKind::kEvent, {}, ""};
  out.event.resource_version = string_at(*found, {"metadata", "resourceVersion"});
  if (type == "BOOKMARK") {
    if (out.event.resource_version.empty()) return skip("a bookmark without a version");
    out.event.type = WatchType::kBookmark;  // whatever else its object has is no object
    return out;
  }
  if (type == "ADDED")
    out.event.type = WatchType::kAdded;
  else if (type == "MODIFIED")
    out.event.type = WatchType::kModified;
  else if (type == "DELETED")
    out.event.type = WatchType::kDeleted;
  else
    return skip("an event of unknown type '" + type.substr(0, 32) + "'");
  auto object = take_object(kind, std::move(*found), slim);
  if (!object) return skip("an object that can't be read: " + object.error().message);
  out.event.object = std::move(*object);
  return out;
}

}  // namespace archipelago::op::kube
