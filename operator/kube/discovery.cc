#include "operator/kube/discovery.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/api/names.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

bool has_resource(const json& resources, std::string_view name) {
  const json& list = at(resources, {"resources"});
  return list.is_array() && std::any_of(list.begin(), list.end(), [&](const json& r) {
           return string_at(r, {"name"}) == name;
         });
}

std::string versions_of(const json& group) {
  std::string out;
  const json& list = at(group, {"versions"});
  if (list.is_array())
    for (const json& v : list)
      out += (out.empty() ? "" : ", ") + string_at(v, {"version"}).substr(0, 64);
  return out.empty() ? "none" : out;
}
}  // namespace

namespace kube {
Discovery read_discovery(const Result<json>& resources, const Result<json>& group) {
  const std::string name(plural(Kind::kTraining));
  const std::string version(api_version(Kind::kTraining));
  const std::string install = std::string("; install it: ") + kInstallResource;
  if (resources) {
    if (!has_resource(*resources, name))
      return {Served::kNoResource, "", version + " has no " + name + install};
    if (!has_resource(*resources, name + "/status"))
      return {Served::kNoVersion, "",
              name + " has no status subresource: it is of another release" + install};
    return {Served::kYes, "", ""};
  }
  if (resources.error().kind != ErrorKind::kNotFound)
    return {Served::kUnknown, "", resources.error().message};
  if (group)
    return {Served::kNoVersion, "",
            version + " is not served (served: " + versions_of(*group) +
                "): the definition is of another release" + install};
  if (group.error().kind == ErrorKind::kNotFound)
    return {Served::kNoResource, "",
            "the DecoupledTraining resource is not installed in this cluster" + install};
  return {Served::kUnknown, "", group.error().message};
}
}  // namespace kube

Discovery discover(KubeClient& client) {
  const std::string_view version = api_version(Kind::kTraining);
  const auto server = client.call(kube::get_version());
  const auto resources = client.call(kube::get_resources(version));
  Result<json> group = fail(ErrorKind::kNotFound, "");
  if (!resources && resources.error().kind == ErrorKind::kNotFound)
    group = client.call(kube::get_resources(version.substr(0, version.find('/'))));
  Discovery out = kube::read_discovery(resources, group);
  if (server) out.server_version = string_at(*server, {"gitVersion"}).substr(0, 64);
  return out;
}

}  // namespace archipelago::op
