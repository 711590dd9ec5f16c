#pragma once
// Calls of the Kubernetes API as values: what is sent, and which rule of a role allows it. Names
// are percent-encoded here and nowhere else.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "operator/api/kinds.h"
#include "operator/cluster/cluster.h"

namespace archipelago::op::kube {

inline constexpr std::string_view kFieldManager = "archipelago-operator";
inline constexpr int kListLimit = 500;

// A rule of RBAC: {"", "pods", "create"}, {"archipelago.training", "decoupledtrainings/status",
// "update"}.
struct AccessRule {
  std::string group;
  std::string resource;
  std::string verb;
  auto operator<=>(const AccessRule&) const = default;
};

struct Request {
  std::string method = "GET";
  std::string path;  // "/api/v1/...?limit=500": encoded, without the server's path prefix
  std::string body;
  std::string content_type = "application/json";
  AccessRule rule;
  std::string object;       // "namespace/name", for messages
  bool repeatable = false;  // may be sent again inside the call: GET, apply, delete
  [[nodiscard]] bool mutating() const { return method != "GET"; }
  // "update decoupledtrainings/status default/r"
  [[nodiscard]] std::string what() const;
};

struct ListPage {
  std::string label_selector;  // "a=b,c=d"
  std::string continue_token;
  int limit = kListLimit;  // 0: none
};

[[nodiscard]] Request create(Kind kind, const std::string& name_space, const nlohmann::json& body);
// The same as a dry run: judged, not done.
[[nodiscard]] Request check(Kind kind, const std::string& name_space, const nlohmann::json& body);
[[nodiscard]] Request get(Kind kind, const ObjectKey& key);
// An empty namespace: all of them.
[[nodiscard]] Request list(Kind kind, const std::string& name_space, const ListPage& page);
[[nodiscard]] Request watch(Kind kind, const std::string& name_space,
                            const std::string& resource_version, const std::string& label_selector,
                            int timeout_seconds);
[[nodiscard]] Request update(Kind kind, const ObjectKey& key, const nlohmann::json& body);
[[nodiscard]] Request apply(Kind kind, const ObjectKey& key, const nlohmann::json& body);
[[nodiscard]] Request update_status(Kind kind, const ObjectKey& key, const nlohmann::json& body);
[[nodiscard]] Request remove(Kind kind, const ObjectKey& key, const DeleteOptions& options);

// What people do by hand, and what the program does for itself.
struct LogOptions {
  bool follow = false;
  bool previous = false;
  std::optional<std::int64_t> tail_lines;
  std::string container;  // empty: the only one
};
[[nodiscard]] Request pod_log(const ObjectKey& pod, const LogOptions& options);
// `target` is an absolute path with its query ("/v1/model/config.json?step=3"), sent to the pod's
// or the service's port through the API server.
[[nodiscard]] Request pod_proxy_get(const ObjectKey& pod, int port, std::string_view target);
[[nodiscard]] Request pod_proxy_put(const ObjectKey& pod, int port, std::string_view target,
                                    const std::string& body);
[[nodiscard]] Request service_proxy_get(const ObjectKey& service, int port,
                                        std::string_view target);
[[nodiscard]] Request evict(const ObjectKey& pod, std::optional<std::int64_t> grace_seconds);
[[nodiscard]] Request get_lease(const ObjectKey& key);
[[nodiscard]] Request create_lease(const std::string& name_space, const nlohmann::json& body);
[[nodiscard]] Request update_lease(const ObjectKey& key, const nlohmann::json& body);
[[nodiscard]] Request create_event(const std::string& name_space, const nlohmann::json& body);
// Merge patch: a later count over what the creation wrote.
[[nodiscard]] Request patch_event(const ObjectKey& key, const nlohmann::json& body);
[[nodiscard]] Request get_resources(std::string_view group_version);  // discovery of one group
[[nodiscard]] Request get_crd(const std::string& name);
[[nodiscard]] Request get_version();

// Every rule that the operator's own calls need (with leader election), sorted: the chart's role is
// generated from it. `cli_rules`: what a person's archipelago needs besides.
[[nodiscard]] std::vector<AccessRule> operator_rules();
[[nodiscard]] std::vector<AccessRule> cli_rules();

}  // namespace archipelago::op::kube
