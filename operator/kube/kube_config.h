#pragma once
// How to reach an API server: a kubeconfig file or, in a pod, the files of its service account. The
// subset of kubeconfig that is read: current-context; the cluster's server (with a path prefix),
// certificate authority (file or data) and tls-server-name; the user's client certificate and key
// (file or data), token or tokenFile; the context's namespace. Plugins (exec, auth-provider), user
// and password, and insecure-skip-tls-verify are refused: kInvalid says which and what to use.
// Proxy variables of the environment are not used: calls go direct.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/http/endpoint.h"

namespace archipelago::op {

// PEM text, or the file that has it and is read again when it changes. Both empty: none.
struct PemSource {
  std::string text;
  std::filesystem::path file;
  [[nodiscard]] bool given() const { return !text.empty() || !file.empty(); }
};

struct CredentialSource {
  PemSource ca;           // none: the system's store
  PemSource certificate;  // both or none
  PemSource key;
  std::string token;                 // for ever the same
  std::filesystem::path token_file;  // read again; goes before `token`
};

struct KubeAccess {
  http::Endpoint server;  // IPv6 addresses without brackets
  bool https = true;
  std::string path_prefix;  // "" or "/k8s/clusters/c-1"
  std::string server_name;  // that the certificate must be for; empty: the host
  std::string name_space = "default";
  CredentialSource credentials;
  bool in_cluster = false;
  std::string origin;  // for messages: the file or "the pod's service account"
  // "https://[fd00::1]:6443/prefix"
  [[nodiscard]] std::string url() const;
};

// What the loading depends on, for tests.
struct KubeEnvironment {
  std::function<std::optional<std::string>(const std::string& name)> variable;
  std::filesystem::path service_account = "/var/run/secrets/kubernetes.io/serviceaccount";
  [[nodiscard]] static KubeEnvironment real();
};

// `path` when given, else $KUBECONFIG (its first file that exists), else ~/.kube/config if it is
// there, else the pod's service account. An empty `context` is the file's current-context.
// kNotFound when there is none of them, kInvalid names file, field, what was given, what is
// allowed.
[[nodiscard]] Result<KubeAccess> load_kube_access(
    const std::string& path, const std::string& context,
    const KubeEnvironment& environment = KubeEnvironment::real());

// The text of a kubeconfig; relative file names are taken from `folder`.
[[nodiscard]] Result<KubeAccess> parse_kubeconfig(const std::string& text,
                                                  const std::string& context,
                                                  const std::filesystem::path& folder);

}  // namespace archipelago::op
