// Where the API server is and who we are: kubeconfig, service account, credentials that rotate.
#include "operator/kube/kube_config.h"

#include <filesystem>
#include <map>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "operator/kube/base64.h"
#include "operator/kube/credentials.h"

namespace archipelago::op {
namespace {
namespace fs = std::filesystem;

KubeEnvironment environment(std::map<std::string, std::string> variables,
                            const fs::path& account = "/none") {
  KubeEnvironment out;
  out.variable = [variables =
                      std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
  out.service_account = account;
  return out;
}

std::string kubeconfig(const std::string& cluster, const std::string& user,
                       const std::string& context = "cluster: c, user: u") {
  return "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {" +
         context +
         "}}, {name: y, context: {cluster: c, user: u, namespace: team}}]\nclusters: [{name: c, "
         "cluster: {" +
         cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n";
}

void put(const fs::path& file, const std::string& text) { REQUIRE(write_file_durably(file, text)); }

// What the kubelet does: the file is a link into a folder that is swapped by renaming a link.
void swap_token(const fs::path& folder, const std::string& text) {
  static int count = 0;
  const fs::path fresh = folder / ("v" + std::to_string(++count));
  put(fresh, text);
  fs::create_symlink(fresh, folder / "next");
  fs::rename(folder / "next", folder / "token");
}
constexpr char kPem[] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
}  // namespace

TEST_CASE("a server's address is read with its port, prefix and brackets") {
  struct Row {
    const char* url;
    const char* host;
    int port;
    const char* prefix;
    bool https;
  };
  for (const Row& row :
       {Row{"https://1.2.3.4:6443", "1.2.3.4", 6443, "", true},
        Row{"https://api.example", "api.example", 443, "", true},
        Row{"http://127.0.0.1:8001/", "127.0.0.1", 8001, "", false},
        Row{"https://[fd00::1]:6443", "fd00::1", 6443, "", true},
        Row{"https://[fd00::1]/k8s/clusters/c-1", "fd00::1", 443, "/k8s/clusters/c-1", true}}) {
    const auto access = parse_kubeconfig(
        kubeconfig("server: \"" + std::string(row.url) + "\"", "token: t"), "", "/");
    INFO(row.url);
    REQUIRE(access);
    CHECK(access->server.host == row.host);
    CHECK(access->server.port == row.port);
    CHECK(access->path_prefix == row.prefix);
    CHECK(access->https == row.https);
    CHECK(access->credentials.token == "t");
  }
  for (const char* bad :
       {"", "1.2.3.4:6443", "https://", "https://fd00::1:6443", "https://[fd00::1:6443",
        "https://a:0", "https://a:70000", "https://a:x", "https://u@a", "ftp://a"})
    CHECK(
        !parse_kubeconfig(kubeconfig("server: \"" + std::string(bad) + "\"", "token: t"), "", "/"));
}

TEST_CASE("contexts, namespaces and files of a kubeconfig") {
  const std::string text = kubeconfig(
      "server: \"https://a\", certificate-authority: pki/ca.crt",
      "client-certificate: /abs/me.crt, client-key-data: LS0tLS1CRUdJTg==, tokenFile: tok");
  const auto x = parse_kubeconfig(text, "", "/home/me/.kube");
  REQUIRE(x);
  CHECK(x->name_space == "default");
  CHECK(x->credentials.ca.file == "/home/me/.kube/pki/ca.crt");
  CHECK(x->credentials.certificate.file == "/abs/me.crt");
  CHECK(x->credentials.key.text == "-----BEGIN");
  CHECK(x->credentials.token_file == "/home/me/.kube/tok");
  CHECK(parse_kubeconfig(text, "y", "/")->name_space == "team");
  const auto missing = parse_kubeconfig(text, "z", "/");
  REQUIRE(!missing);
  CHECK(missing.error().message.find("'z', allowed: x, y") != std::string::npos);
}

TEST_CASE("what is not supported is refused by name") {
  struct Row {
    const char* cluster;
    const char* user;
    const char* says;
  };
  for (const Row& row :
       {Row{"server: \"https://a\"", "exec: {command: aws}", "users[u].exec"},
        Row{"server: \"https://a\"", "auth-provider: {name: gcp}", "users[u].auth-provider"},
        Row{"server: \"https://a\"", "username: me, password: p", "users[u].username"},
        Row{"server: \"https://a\", insecure-skip-tls-verify: true", "token: t",
            "insecure-skip-tls-verify"},
        Row{"server: \"https://a\", proxy-url: \"http://p\"", "token: t", "proxy-url"},
        Row{"server: \"https://a\", certificate-authority-data: \"%%%\"", "token: t",
            "certificate-authority-data"},
        Row{"server: \"https://a\"", "client-certificate: a.crt", "belong together"},
        Row{"server: \"https://a\"", "token: 123", "users[u].token"}}) {
    const auto access = parse_kubeconfig(kubeconfig(row.cluster, row.user), "", "/");
    INFO(row.says);
    REQUIRE(!access);
    CHECK(access.error().kind == ErrorKind::kInvalid);
    CHECK(access.error().message.find(row.says) != std::string::npos);
    CHECK(access.error().message.find("password: p") == std::string::npos);
  }
  CHECK(!parse_kubeconfig("[]", "", "/"));
  CHECK(!parse_kubeconfig("a: {", "", "/"));
}

TEST_CASE("the order of places: given file, KUBECONFIG, home, service account") {
  const TempDir dir;
  const auto file = [&](const std::string& name, const std::string& host) {
    const fs::path path = dir.path() / name;
    fs::create_directories(path.parent_path());
    put(path, kubeconfig("server: \"https://" + host + "\"", "token: t"));
    return path.string();
  };
  const std::string given = file("given", "given");
  const std::string env = file("env", "env");
  file(".kube/config", "home");
  const std::map<std::string, std::string> all{{"KUBECONFIG", "/nowhere:" + env},
                                               {"HOME", dir.path().string()},
                                               {"KUBERNETES_SERVICE_HOST", "fd00::1"},
                                               {"KUBERNETES_SERVICE_PORT", "443"}};
  CHECK(load_kube_access(given, "", environment(all))->server.host == "given");
  CHECK(load_kube_access("", "", environment(all))->server.host == "env");
  CHECK(load_kube_access("", "", environment({{"HOME", all.at("HOME")}}))->server.host == "home");
  CHECK(load_kube_access("", "", environment({})).error().message.find("--kubeconfig") !=
        std::string::npos);
  CHECK(!load_kube_access("/nowhere", "", environment(all)));
  SECTION("a pod's service account, IPv6 with and without brackets") {
    put(dir.path() / "namespace", "archipelago-system\n");
    for (const char* host : {"fd00::1", "[fd00::1]"}) {
      const auto pod = load_kube_access(
          "", "",
          environment({{"KUBERNETES_SERVICE_HOST", host}, {"KUBERNETES_SERVICE_PORT", "6443"}},
                      dir.path()));
      REQUIRE(pod);
      CHECK(pod->in_cluster);
      CHECK(pod->url() == "https://[fd00::1]:6443");
      CHECK(pod->name_space == "archipelago-system");
      CHECK(pod->credentials.token_file == dir.path() / "token");
      CHECK(pod->credentials.ca.file == dir.path() / "ca.crt");
    }
  }
}

TEST_CASE("base64 with and without padding") {
  CHECK(kube::decode_base64("aGFsbG8=") == "hallo");
  CHECK(kube::decode_base64("aGFs\n bG8") == "hallo");
  CHECK(kube::decode_base64("") == "");
  for (const char* bad : {"a", "aG=s", "aGFs%", "aGFsbG8==="}) CHECK(!kube::decode_base64(bad));
}

TEST_CASE("credentials are read again by age and on demand, and the last good ones stay") {
  const TempDir dir;
  ManualClock clock;
  CredentialSource source;
  source.token_file = dir.path() / "token";
  source.ca.file = dir.path() / "ca.crt";
  swap_token(dir.path(), "one\n");
  put(source.ca.file, kPem);
  kube::CredentialStore store(source, seconds(60), clock, Logger::null());
  REQUIRE(store.load());
  CHECK(store.current().bearer == "one");  // without the newline
  swap_token(dir.path(), "two\n");
  CHECK(store.current().bearer == "one");  // not looked at yet
  clock.advance(seconds(60));
  CHECK(store.current().bearer == "two");
  const auto generation = store.current().generation;

  SECTION("a 401 asks for a look at once, at most once a second") {
    swap_token(dir.path(), "three");
    CHECK(store.refresh().bearer == "two");
    clock.advance(seconds(1));
    CHECK(store.refresh().bearer == "three");
    CHECK(store.refresh().generation == generation);  // connections may stay
  }
  SECTION("an empty file for an instant changes nothing") {
    swap_token(dir.path(), "");
    clock.advance(seconds(60));
    CHECK(store.current().bearer == "two");
    swap_token(dir.path(), "four\n");
    clock.advance(seconds(60));
    CHECK(store.current().bearer == "four");
  }
  SECTION("a missing or hostile token changes nothing") {
    for (const char* text : {"a\nInjected: header", "a b", "\xff"}) {
      swap_token(dir.path(), text);
      clock.advance(seconds(60));
      CHECK(store.current().bearer == "two");
    }
    fs::remove(dir.path() / "token");
    clock.advance(seconds(60));
    CHECK(store.current().bearer == "two");
  }
  SECTION("a new CA makes a new generation, even while the token is being replaced") {
    put(source.ca.file, std::string(kPem) + kPem);
    swap_token(dir.path(), "");
    clock.advance(seconds(60));
    CHECK(store.current().generation == generation + 1);
    CHECK(store.current().bearer == "two");
    put(source.ca.file, "not yet written");
    clock.advance(seconds(60));
    CHECK(store.current().generation == generation + 1);
    CHECK(store.current().ca_pem.size() > std::string(kPem).size());
  }
}

TEST_CASE("the first read of credentials must succeed, and names the file") {
  const TempDir dir;
  ManualClock clock;
  CredentialSource source;
  source.token_file = dir.path() / "token";
  const Status missing = kube::CredentialStore(source, seconds(60), clock, Logger::null()).load();
  REQUIRE(!missing);
  CHECK(missing.error().message.find("token") != std::string::npos);
  put(source.token_file, "\n");
  CHECK(!kube::CredentialStore(source, seconds(60), clock, Logger::null()).load());
  put(source.token_file, "secret word");
  const Status bad = kube::CredentialStore(source, seconds(60), clock, Logger::null()).load();
  REQUIRE(!bad);
  CHECK(bad.error().message.find("secret") == std::string::npos);
}

}  // namespace archipelago::op
