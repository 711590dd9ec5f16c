#include "operator/kube/slim.h"

#include <initializer_list>
#include <string_view>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;

constexpr char kLastApplied[] = "kubectl.kubernetes.io/last-applied-configuration";
using Keys = std::initializer_list<const char*>;

// Moves the named members of `from` that are there.
json pick(json& from, Keys keys) {
  json out = json::object();
  if (!from.is_object()) return out;
  for (const char* key : keys)
    if (const auto it = from.find(key); it != from.end()) out[key] = std::move(*it);
  return out;
}

json& member(json& of, const char* key) {
  static thread_local json none;
  none = nullptr;
  if (!of.is_object()) return none;
  const auto it = of.find(key);
  return it == of.end() ? none : *it;
}

json conditions_of(json& conditions, std::initializer_list<std::string_view> types) {
  json out = json::array();
  if (!conditions.is_array()) return out;
  for (json& c : conditions) {
    const std::string type = string_at(c, {"type"});
    for (const std::string_view wanted : types)
      if (type == wanted)
        out.push_back(pick(c, {"type", "status", "reason", "message", "lastTransitionTime"}));
  }
  return out;
}

json containers_of(json& statuses) {
  json out = json::array();
  if (!statuses.is_array()) return out;
  for (json& s : statuses) {
    json kept = pick(s, {"name", "restartCount"});
    json& state = member(s, "state");
    json slim_state = json::object();
    if (json& waiting = member(state, "waiting"); waiting.is_object())
      slim_state["waiting"] = pick(waiting, {"reason", "message"});
    if (json& ended = member(state, "terminated"); ended.is_object())
      slim_state["terminated"] = pick(ended, {"exitCode", "reason", "message"});
    kept["state"] = std::move(slim_state);
    out.push_back(std::move(kept));
  }
  return out;
}

json pod_status(json& status) {
  json out = pick(status, {"phase", "reason", "message", "podIP", "startTime"});
  out["conditions"] =
      conditions_of(member(status, "conditions"), {"Ready", "DisruptionTarget", "PodScheduled"});
  for (const char* key : {"initContainerStatuses", "containerStatuses"})
    if (json& statuses = member(status, key); statuses.is_array())
      out[key] = containers_of(statuses);
  return out;
}

// Our own labels and the controller are read, five thousand times; the rest is for people.
void slim_pod_meta(json& meta) {
  if (json& labels = member(meta, "labels"); labels.is_object())
    for (auto it = labels.begin(); it != labels.end();)
      it = it.key().starts_with("archipelago.training/") ? std::next(it) : labels.erase(it);
  json& owners = member(meta, "ownerReferences");
  if (!owners.is_array()) return;
  json kept = json::array();
  for (json& o : owners)
    if (bool_at(o, {"controller"})) kept.push_back(pick(o, {"kind", "name", "uid", "controller"}));
  owners = std::move(kept);
}

void slim_parts(Kind kind, json& object) {
  const auto shrink = [&](const char* key, Keys keys) {
    if (json& part = member(object, key); part.is_object()) part = pick(part, keys);
  };
  if (kind == Kind::kPod) {
    slim_pod_meta(member(object, "metadata"));
    shrink("metadata", {"name", "namespace", "uid", "resourceVersion", "creationTimestamp",
                        "deletionTimestamp", "labels", "ownerReferences"});
    shrink("spec", {"nodeName"});
    if (json& status = member(object, "status"); status.is_object()) status = pod_status(status);
  } else if (kind == Kind::kNode) {
    shrink("spec", {"taints", "unschedulable"});
    if (json& status = member(object, "status"); status.is_object()) {
      json conditions = conditions_of(member(status, "conditions"), {"Ready"});
      status = json{{"conditions", std::move(conditions)}};
    }
  } else if (kind == Kind::kService) {
    object.erase("spec");
    object.erase("status");
  } else if (kind == Kind::kClaim) {
    object.erase("spec");
    shrink("status", {"phase"});
  }
}
}  // namespace

json slimmed(Kind kind, json object, bool slim) {
  json& meta = member(object, "metadata");
  if (!meta.is_object()) return object;
  meta.erase("managedFields");
  if (!slim) return object;
  json& annotations = member(meta, "annotations");
  const bool ours = kind == Kind::kTraining || kind == Kind::kConfigMap;
  if (!ours)
    meta.erase("annotations");
  else if (annotations.is_object())
    annotations.erase(kLastApplied);
  slim_parts(kind, object);
  return object;
}

Result<Object> take_object(Kind kind, json value, bool slim) {
  const auto bad = [](const char* what) { return fail(ErrorKind::kCorrupt, what); };
  if (!value.is_object()) return bad("it is no JSON object");
  if (string_at(value, {"metadata", "name"}).empty()) return bad("it has no metadata.name");
  const std::string given = string_at(value, {"kind"});
  if (!given.empty() && given != to_string(kind)) return bad("it is of another kind");
  value["kind"] = to_string(kind);
  value["apiVersion"] = api_version(kind);
  return Object(slimmed(kind, std::move(value), slim));
}

}  // namespace archipelago::op::kube
