#include "operator/kube/kube_config.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/config/yaml_json.h"
#include "operator/api/json.h"
#include "operator/kube/base64.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr std::uint64_t kMaxFile = 1U << 20;

tl::unexpected<Error> refuse(const std::string& field, const std::string& problem) {
  return fail(ErrorKind::kInvalid, field + ": " + problem);
}

// The object of that name in a list of {name, <member>: {...}}.
Result<json> named(const json& document, const std::string& list, const std::string& member,
                   const std::string& name) {
  std::string known;
  const json& items = at(document, {list});
  if (items.is_array())
    for (const json& item : items) {
      const std::string its = string_at(item, {"name"});
      if (its == name) {
        const json& inner = at(item, {member});
        return inner.is_object() ? inner : json::object();
      }
      known += (known.empty() ? "" : ", ") + its;
    }
  return refuse(list, "there is no '" + name + "', allowed: " + (known.empty() ? "none" : known));
}

Result<std::string> text_of(const json& object, const std::string& where, const char* key) {
  const json& value = at(object, {key});
  if (value.is_null()) return std::string();
  if (!value.is_string())
    return refuse(where + "." + key, "is no text (quote it), allowed: a string");
  return value.get<std::string>();
}

std::filesystem::path beside(const std::filesystem::path& folder, const std::string& file) {
  if (file.empty()) return {};
  return folder / file;  // an absolute file replaces the folder
}

// `key`-data goes before `key`, as in kubectl.
Result<PemSource> pem_of(const json& object, const std::string& where, const std::string& key,
                         const std::filesystem::path& folder) {
  PemSource out;
  ARCH_TRY(const std::string data, text_of(object, where, (key + "-data").c_str()));
  ARCH_TRY(const std::string file, text_of(object, where, key.c_str()));
  if (data.empty()) {
    out.file = beside(folder, file);
    return out;
  }
  const auto decoded = kube::decode_base64(data);
  if (!decoded) return refuse(where + "." + key + "-data", "is no base64");
  out.text = *decoded;
  return out;
}

Status read_server(const std::string& field, std::string_view url, KubeAccess& out) {
  const auto bad = [&] {
    return refuse(field,
                  "'" + std::string(url) + "', allowed: https://HOST[:PORT][/PREFIX] or http://");
  };
  std::string_view rest = url;
  out.https = !rest.starts_with("http://");
  if (rest.starts_with("https://"))
    rest.remove_prefix(8);
  else if (rest.starts_with("http://"))
    rest.remove_prefix(7);
  else
    return bad();
  if (rest.find_first_of("?#@ ") != std::string_view::npos) return bad();
  const std::size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  out.path_prefix = slash == std::string_view::npos ? "" : std::string(rest.substr(slash));
  while (out.path_prefix.ends_with('/')) out.path_prefix.pop_back();
  const std::size_t bracket = authority.rfind(']');
  const std::size_t colon = authority.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  std::string_view host = has_port ? authority.substr(0, colon) : authority;
  out.server.port = out.https ? 443 : 80;
  if (has_port) {
    const std::string_view digits = authority.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), out.server.port);
    if (error != std::errc() || end != digits.data() + digits.size() || out.server.port < 1 ||
        out.server.port > 65535)
      return bad();
  }
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad();  // IPv6 without brackets: where the port begins can't be told
  }
  if (host.empty()) return bad();
  out.server.host = std::string(host);
  return {};
}

Status read_cluster(const json& cluster, const std::string& where,
                    const std::filesystem::path& folder, KubeAccess& out) {
  ARCH_TRY(const std::string server, text_of(cluster, where, "server"));
  ARCH_TRY_VOID(read_server(where + ".server", server, out));
  if (bool_at(cluster, {"insecure-skip-tls-verify"}))
    return refuse(where + ".insecure-skip-tls-verify",
                  "is not supported: the server is always verified; give certificate-authority");
  if (!string_at(cluster, {"proxy-url"}).empty())
    return refuse(where + ".proxy-url", "is not supported: calls go direct");
  ARCH_TRY(out.server_name, text_of(cluster, where, "tls-server-name"));
  ARCH_TRY(out.credentials.ca, pem_of(cluster, where, "certificate-authority", folder));
  return {};
}

Status read_user(const json& user, const std::string& where, const std::filesystem::path& folder,
                 CredentialSource& out) {
  for (const char* plugin : {"exec", "auth-provider"})
    if (!at(user, {plugin}).is_null())
      return refuse(where + "." + plugin,
                    "credential plugins are not supported; use a service account's token "
                    "(kubectl create token NAME), a tokenFile or a client certificate");
  for (const char* other : {"username", "password", "as"})
    if (!at(user, {other}).is_null())
      return refuse(where + "." + other,
                    "is not supported, allowed: token, tokenFile, client-certificate");
  ARCH_TRY(out.certificate, pem_of(user, where, "client-certificate", folder));
  ARCH_TRY(out.key, pem_of(user, where, "client-key", folder));
  if (out.certificate.given() != out.key.given())
    return refuse(where, "client-certificate and client-key belong together: one is missing");
  ARCH_TRY(out.token, text_of(user, where, "token"));
  ARCH_TRY(const std::string token_file, text_of(user, where, "tokenFile"));
  out.token_file = beside(folder, token_file);
  return {};
}

Result<KubeAccess> in_cluster(const KubeEnvironment& environment) {
  KubeAccess out;
  const std::string host = environment.variable("KUBERNETES_SERVICE_HOST").value_or("");
  const std::string port = environment.variable("KUBERNETES_SERVICE_PORT").value_or("443");
  const bool v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  const std::string url = "https://" + (v6 ? "[" + host + "]" : host) + ":" + port;
  ARCH_TRY_VOID(read_server("KUBERNETES_SERVICE_HOST and _PORT", url, out));
  out.in_cluster = true;
  out.origin = "the pod's service account";
  const auto& folder = environment.service_account;
  out.credentials.token_file = folder / "token";
  out.credentials.ca.file = folder / "ca.crt";
  if (const auto text = read_file(folder / "namespace", 4096)) {
    out.name_space = *text;
    while (!out.name_space.empty() &&
           std::isspace(static_cast<unsigned char>(out.name_space.back())))
      out.name_space.pop_back();
    if (out.name_space.empty()) out.name_space = "default";
  }
  return out;
}

Result<KubeAccess> from_file(const std::filesystem::path& path, const std::string& context) {
  ARCH_TRY(const std::string text, read_file(path, kMaxFile));
  auto access = parse_kubeconfig(text, context, path.parent_path());
  if (!access) return fail(access.error().with_context(path.string()));
  access->origin = path.string();
  return access;
}

// The first file of a list "a:b" that exists, or the first one.
std::filesystem::path first_of(const std::string& list) {
  std::string first;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    const std::string one = list.substr(begin, end - begin);
    std::error_code ignored;
    if (!one.empty() && std::filesystem::exists(one, ignored)) return one;
    if (first.empty()) first = one;
    begin = end + 1;
  }
  return first;
}
}  // namespace

std::string KubeAccess::url() const {
  return (https ? "https://" : "http://") + server.text() + path_prefix;
}

KubeEnvironment KubeEnvironment::real() {
  KubeEnvironment out;
  out.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
  return out;
}

Result<KubeAccess> parse_kubeconfig(const std::string& text, const std::string& context,
                                    const std::filesystem::path& folder) {
  const auto document = config::parse_yaml_text(text);
  if (!document) return fail(ErrorKind::kInvalid, config::format_error(document.error().front()));
  const json& root = document->value;
  if (!root.is_object()) return fail(ErrorKind::kInvalid, "is no kubeconfig (a map is expected)");
  const std::string name = context.empty() ? string_at(root, {"current-context"}) : context;
  if (name.empty())
    return refuse("current-context", "is empty: name a context (kubectl config use-context NAME)");
  ARCH_TRY(const json chosen, named(root, "contexts", "context", name));
  const std::string cluster = string_at(chosen, {"cluster"});
  const std::string user = string_at(chosen, {"user"});
  KubeAccess out;
  out.name_space = string_at(chosen, {"namespace"});
  if (out.name_space.empty()) out.name_space = "default";
  ARCH_TRY(const json cluster_entry, named(root, "clusters", "cluster", cluster));
  ARCH_TRY_VOID(read_cluster(cluster_entry, "clusters[" + cluster + "]", folder, out));
  if (user.empty()) return out;
  ARCH_TRY(const json user_entry, named(root, "users", "user", user));
  ARCH_TRY_VOID(read_user(user_entry, "users[" + user + "]", folder, out.credentials));
  return out;
}

Result<KubeAccess> load_kube_access(const std::string& path, const std::string& context,
                                    const KubeEnvironment& environment) {
  if (!path.empty()) return from_file(path, context);
  if (const auto list = environment.variable("KUBECONFIG"))
    return from_file(first_of(*list), context);
  if (const auto home = environment.variable("HOME")) {
    const auto file = std::filesystem::path(*home) / ".kube" / "config";
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return from_file(file, context);
  }
  if (environment.variable("KUBERNETES_SERVICE_HOST")) return in_cluster(environment);
  return fail(ErrorKind::kNotFound,
              "no cluster is known: give --kubeconfig FILE, set KUBECONFIG, write ~/.kube/config, "
              "or run in a pod with a service account");
}

}  // namespace archipelago::op
