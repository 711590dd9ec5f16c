#include "operator/kube/requests.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "common/http/endpoint.h"
#include "operator/api/json.h"

namespace archipelago::op::kube {
namespace {
using http::url_encode;
using nlohmann::json;

constexpr std::string_view kLeaseGroup = "coordination.k8s.io";
constexpr std::string_view kEventGroup = "events.k8s.io";
constexpr std::string_view kCrdGroup = "apiextensions.k8s.io";

// Where a resource lives: "/api/v1" or "/apis/GROUP/VERSION", and the group for the rule.
struct Place {
  std::string root;
  std::string group;
  std::string resource;
};

Place place(std::string_view group, std::string_view version, std::string_view resource) {
  const std::string v(version);
  return {group.empty() ? "/api/" + v : "/apis/" + std::string(group) + "/" + v, std::string(group),
          std::string(resource)};
}

Place place_of(Kind kind) {
  const std::string_view version = api_version(kind);
  const std::size_t slash = version.find('/');
  if (slash == std::string_view::npos) return place("", version, plural(kind));
  return place(version.substr(0, slash), version.substr(slash + 1), plural(kind));
}

std::string in(const std::string& name_space) {
  return name_space.empty() ? "" : "/namespaces/" + url_encode(name_space);
}

std::string collection(const Place& p, const std::string& name_space) {
  return p.root + in(name_space) + "/" + p.resource;
}

std::string text(const ObjectKey& key) {
  return key.name_space.empty() ? key.name : key.name_space + "/" + key.name;
}

// A subresource is named in the rule and not in the path that comes in.
Request make(std::string method, std::string path, const Place& p, std::string_view sub,
             std::string_view verb, const ObjectKey& key) {
  Request out;
  out.method = std::move(method);
  out.path = std::move(path);
  out.rule = {p.group, p.resource + (sub.empty() ? "" : "/" + std::string(sub)), std::string(verb)};
  out.object = text(key);
  return out;
}

std::string item(const Place& p, const ObjectKey& key, std::string_view sub = "") {
  return collection(p, key.name_space) + "/" + url_encode(key.name) +
         (sub.empty() ? "" : "/" + std::string(sub));
}

Request repeatable(Request r) {
  r.repeatable = true;
  return r;
}

Request with_body(Request r, const json& body) {
  r.body = to_text(body);
  return r;
}

// Adds "?k=v" or "&k=v"; nothing for an empty value.
void add(std::string& path, std::string_view key, std::string_view value) {
  if (value.empty()) return;
  path += path.find('?') == std::string::npos ? '?' : '&';
  path += key;
  path += '=';
  path += url_encode(value);
}

ObjectKey key_of(const std::string& name_space, const json& body) {
  return {name_space, string_at(body, {"metadata", "name"})};
}

Request apply_to(const Place& p, const ObjectKey& key, const json& body) {
  Request out = repeatable(make("PATCH", item(p, key), p, "", "patch", key));
  add(out.path, "fieldManager", kFieldManager);
  add(out.path, "force", "true");
  out.content_type = "application/apply-patch+yaml";
  return with_body(std::move(out), body);
}

Request proxy(std::string method, const Place& p, const ObjectKey& key, int port,
              std::string_view target, std::string_view verb) {
  const ObjectKey with_port{key.name_space, key.name};
  std::string path = collection(p, key.name_space) + "/" + url_encode(key.name) + ":" +
                     std::to_string(port) + "/proxy" + std::string(target);
  return make(std::move(method), std::move(path), p, "proxy", verb, with_port);
}
}  // namespace

std::string Request::what() const {
  return rule.verb + " " + rule.resource + (object.empty() ? "" : " " + object);
}

Request create(Kind kind, const std::string& name_space, const json& body) {
  const Place p = place_of(kind);
  return with_body(
      make("POST", collection(p, name_space), p, "", "create", key_of(name_space, body)), body);
}

Request check(Kind kind, const std::string& name_space, const json& body) {
  Request out = create(kind, name_space, body);
  add(out.path, "dryRun", "All");
  out.repeatable = true;
  return out;
}

Request get(Kind kind, const ObjectKey& key) {
  const Place p = place_of(kind);
  return repeatable(make("GET", item(p, key), p, "", "get", key));
}

Request list(Kind kind, const std::string& name_space, const ListPage& page) {
  const Place p = place_of(kind);
  Request out = repeatable(make("GET", collection(p, name_space), p, "", "list", {name_space, ""}));
  out.object = name_space.empty() ? "" : name_space + "/";
  if (page.limit > 0) add(out.path, "limit", std::to_string(page.limit));
  add(out.path, "continue", page.continue_token);
  add(out.path, "labelSelector", page.label_selector);
  return out;
}

Request watch(Kind kind, const std::string& name_space, const std::string& resource_version,
              const std::string& label_selector, int timeout_seconds) {
  const Place p = place_of(kind);
  Request out =
      repeatable(make("GET", collection(p, name_space), p, "", "watch", {name_space, ""}));
  out.object = name_space.empty() ? "" : name_space + "/";
  add(out.path, "watch", "1");
  add(out.path, "allowWatchBookmarks", "true");
  add(out.path, "timeoutSeconds", std::to_string(timeout_seconds));
  add(out.path, "resourceVersion", resource_version);
  add(out.path, "labelSelector", label_selector);
  return out;
}

Request update(Kind kind, const ObjectKey& key, const json& body) {
  const Place p = place_of(kind);
  return with_body(make("PUT", item(p, key), p, "", "update", key), body);
}

Request apply(Kind kind, const ObjectKey& key, const json& body) {
  return apply_to(place_of(kind), key, body);
}

Request update_status(Kind kind, const ObjectKey& key, const json& body) {
  const Place p = place_of(kind);
  return with_body(make("PUT", item(p, key, "status"), p, "status", "update", key), body);
}

Request remove(Kind kind, const ObjectKey& key, const DeleteOptions& options) {
  const Place p = place_of(kind);
  json body{{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"propagationPolicy", "Background"}};
  if (!options.uid.empty()) body["preconditions"] = {{"uid", options.uid}};
  if (options.grace_seconds) body["gracePeriodSeconds"] = *options.grace_seconds;
  return with_body(repeatable(make("DELETE", item(p, key), p, "", "delete", key)), body);
}

Request pod_log(const ObjectKey& pod, const LogOptions& options) {
  const Place p = place_of(Kind::kPod);
  Request out = repeatable(make("GET", item(p, pod, "log"), p, "log", "get", pod));
  add(out.path, "container", options.container);
  if (options.follow) add(out.path, "follow", "true");
  if (options.previous) add(out.path, "previous", "true");
  if (options.tail_lines) add(out.path, "tailLines", std::to_string(*options.tail_lines));
  return out;
}

Request pod_proxy_get(const ObjectKey& pod, int port, std::string_view target) {
  return repeatable(proxy("GET", place_of(Kind::kPod), pod, port, target, "get"));
}

Request pod_proxy_put(const ObjectKey& pod, int port, std::string_view target,
                      const std::string& body) {
  Request out = proxy("PUT", place_of(Kind::kPod), pod, port, target, "update");
  out.body = body;
  return out;
}

Request service_proxy_get(const ObjectKey& service, int port, std::string_view target) {
  return repeatable(proxy("GET", place_of(Kind::kService), service, port, target, "get"));
}

Request evict(const ObjectKey& pod, std::optional<std::int64_t> grace_seconds) {
  const Place p = place_of(Kind::kPod);
  json body{{"apiVersion", "policy/v1"},
            {"kind", "Eviction"},
            {"metadata", {{"name", pod.name}, {"namespace", pod.name_space}}}};
  if (grace_seconds) body["deleteOptions"] = {{"gracePeriodSeconds", *grace_seconds}};
  return with_body(make("POST", item(p, pod, "eviction"), p, "eviction", "create", pod), body);
}

Request get_lease(const ObjectKey& key) {
  const Place p = place(kLeaseGroup, "v1", "leases");
  return repeatable(make("GET", item(p, key), p, "", "get", key));
}

Request create_lease(const std::string& name_space, const json& body) {
  const Place p = place(kLeaseGroup, "v1", "leases");
  return with_body(
      make("POST", collection(p, name_space), p, "", "create", key_of(name_space, body)), body);
}

Request update_lease(const ObjectKey& key, const json& body) {
  const Place p = place(kLeaseGroup, "v1", "leases");
  return with_body(make("PUT", item(p, key), p, "", "update", key), body);
}

Request create_event(const std::string& name_space, const json& body) {
  const Place p = place(kEventGroup, "v1", "events");
  return with_body(
      make("POST", collection(p, name_space), p, "", "create", key_of(name_space, body)), body);
}

Request patch_event(const ObjectKey& key, const json& body) {
  const Place p = place(kEventGroup, "v1", "events");
  Request out = repeatable(make("PATCH", item(p, key), p, "", "patch", key));
  out.content_type = "application/merge-patch+json";
  return with_body(std::move(out), body);
}

Request get_resources(std::string_view group_version) {
  Request out;
  out.path = "/apis/" + std::string(group_version);
  out.rule = {"", "", "get"};  // open to every authenticated client (system:discovery)
  out.object = std::string(group_version);
  out.repeatable = true;
  return out;
}

Request get_crd(const std::string& name) {
  const Place p = place(kCrdGroup, "v1", "customresourcedefinitions");
  return repeatable(make("GET", item(p, {"", name}), p, "", "get", {"", name}));
}

Request get_version() {
  Request out;
  out.path = "/version";
  out.rule = {"", "", "get"};
  out.object = "version";
  out.repeatable = true;
  return out;
}

std::vector<AccessRule> operator_rules() {
  const std::string ours = "archipelago.training";
  std::vector<AccessRule> out{
      {ours, "decoupledtrainings", "get"},
      {ours, "decoupledtrainings/status", "update"},
      // Owner references with blockOwnerDeletion need it where that admission plugin runs.
      {ours, "decoupledtrainings/finalizers", "update"},
      {"", "pods", "get"},
      {"", "pods", "create"},
      {"", "pods", "delete"},
      {"", "pods/proxy", "get"},
      {"", "pods/proxy", "update"},
      {"", "services", "get"},
      {"", "services", "create"},
      {"", "services", "patch"},
      {"", "services", "delete"},
      {"", "configmaps", "get"},
      {"", "configmaps", "create"},
      {"", "configmaps", "patch"},
      {"", "configmaps", "delete"},
      {"", "persistentvolumeclaims", "get"},
      {"", "persistentvolumeclaims", "create"},
      {"", "persistentvolumeclaims", "delete"},
      {std::string(kLeaseGroup), "leases", "get"},
      {std::string(kLeaseGroup), "leases", "create"},
      {std::string(kLeaseGroup), "leases", "update"},
      {std::string(kEventGroup), "events", "create"},
      {std::string(kEventGroup), "events", "patch"},
  };
  for (const Kind kind :
       {Kind::kTraining, Kind::kPod, Kind::kService, Kind::kConfigMap, Kind::kClaim, Kind::kNode})
    for (const char* verb : {"list", "watch"})
      out.push_back({place_of(kind).group, std::string(plural(kind)), verb});
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<AccessRule> cli_rules() {
  const std::string ours = "archipelago.training";
  std::vector<AccessRule> out{{ours, "decoupledtrainings", "get"},
                              {ours, "decoupledtrainings", "list"},
                              {ours, "decoupledtrainings", "update"},
                              {"", "pods", "get"},
                              {"", "pods", "list"},
                              {"", "pods", "delete"},
                              {"", "pods/log", "get"},
                              {"", "pods/proxy", "get"},
                              {"", "pods/eviction", "create"},
                              {"", "services/proxy", "get"}};
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace archipelago::op::kube
