#include "operator/plan/pod_template.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

// Ours win: selectors and labels of ours decide where a pod runs and whether we find it again.
void merge_missing(json& into, const json& from) {
  if (!from.is_object()) return;
  if (!into.is_object()) into = json::object();
  for (const auto& [name, value] : from.items())
    if (!into.contains(name)) into[name] = value;
}

// Lists of named things: a name given by the template replaces ours, the others are added.
void merge_named(json& into, const json& from, const char* key) {
  if (!from.is_array()) return;
  if (!into.is_array()) into = json::array();
  for (const json& item : from) {
    const std::string name = string_at(item, {key});
    bool replaced = false;
    for (json& old : into)
      if (!name.empty() && string_at(old, {key}) == name) {
        old = item;
        replaced = true;
      }
    if (!replaced) into.push_back(item);
  }
}
}  // namespace

void merge_template(json& pod, const std::string& template_json) {
  const json t = json::parse(template_json, nullptr, false);
  if (!t.is_object()) return;
  json& meta = pod["metadata"];
  merge_missing(meta["labels"], at(t, {"labels"}));
  merge_missing(meta["annotations"], at(t, {"annotations"}));
  if (meta["annotations"].empty()) meta.erase("annotations");
  json& spec = pod["spec"];
  merge_missing(spec["nodeSelector"], at(t, {"nodeSelector"}));
  for (const char* field : {"tolerations", "affinity", "priorityClassName", "runtimeClassName",
                            "schedulerName", "topologySpreadConstraints", "schedulingGates"})
    if (t.contains(field)) spec[field] = t[field];
  merge_named(spec["volumes"], at(t, {"volumes"}), "name");
  json& container = spec["containers"][0];
  if (t.contains("resources")) container["resources"] = t["resources"];
  merge_named(container["env"], at(t, {"env"}), "name");
  merge_named(container["volumeMounts"], at(t, {"volumeMounts"}), "mountPath");
  if (container["env"].empty()) container.erase("env");
}

}  // namespace archipelago::op
