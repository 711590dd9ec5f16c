// The client on an API server of TLS whose certificates and tokens are replaced while connections
// are kept, on both loopback addresses.
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <httplib.h>

#include "common/base/files.h"
#include "operator/kube/kube_cluster.h"
#include "tests/http/certificates.h"

namespace archipelago::op {
namespace {

using http::testing::Identity;
using http::testing::make_identity;

constexpr char kPod[] = R"({"kind": "Pod", "apiVersion": "v1", "metadata":
    {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"}})";

Identity authority(const std::string& name) {
  return make_identity({.common_name = name, .authority = true});
}

// Any GET is answered with a pod, where the token is the right one.
class ApiOfTls {
 public:
  ApiOfTls(const Identity& signer, const std::string& host, int port = 0)
      : identity_(make_identity({.alternative_names = "IP:127.0.0.1,IP:::1"}, &signer)) {
    server_ = std::make_unique<httplib::SSLServer>([&](SSL_CTX& context) {
      SSL_CTX_use_certificate(&context, identity_.certificate.get());
      SSL_CTX_use_PrivateKey(&context, identity_.key.get());
      return true;
    });
    server_->set_keep_alive_max_count(1'000'000);
    server_->Get(".*", [this](const httplib::Request& from, httplib::Response& to) {
      const std::lock_guard lock(mutex_);
      peers_.insert(from.remote_port);
      if (!token_.empty() && from.get_header_value("Authorization") != "Bearer " + token_)
        to.status = 401;
      else
        to.set_content(kPod, "application/json");
    });
    REQUIRE((port == 0 ? (port_ = server_->bind_to_any_port(host)) > 0
                       : server_->bind_to_port(host, port_ = port)));
    thread_ = std::jthread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~ApiOfTls() { server_->stop(); }
  ApiOfTls(const ApiOfTls&) = delete;
  ApiOfTls& operator=(const ApiOfTls&) = delete;

  [[nodiscard]] int port() const { return port_; }
  void want_token(const std::string& token) {
    const std::lock_guard lock(mutex_);
    token_ = token;
  }
  [[nodiscard]] std::size_t connections() const {
    const std::lock_guard lock(mutex_);
    return peers_.size();
  }

 private:
  Identity identity_;
  std::unique_ptr<httplib::SSLServer> server_;
  mutable std::mutex mutex_;
  std::string token_;
  std::set<int> peers_;
  int port_ = -1;
  std::jthread thread_;
};

void put(const std::filesystem::path& file, const std::string& text) {
  REQUIRE(write_file_durably(file, text));
}

struct TlsScene {
  TlsScene(const std::string& host, int port, CredentialSource source) {
    KubeAccess access;
    access.server = {host, port};
    access.credentials = std::move(source);
    KubeClientOptions options;
    options.credential_age = seconds(0.05);
    options.call_timeout = seconds(3);
    options.try_timeout = seconds(2);
    auto opened = KubeClient::open(access, options, clock, Logger::null());
    REQUIRE(opened);
    client = std::move(*opened);
    cluster = std::make_unique<KubeCluster>(*client);
  }
  [[nodiscard]] bool reaches() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the files' age
    return cluster->get(Kind::kPod, {"n", "a"}).has_value();
  }
  SystemClock clock;
  std::unique_ptr<KubeClient> client;
  std::unique_ptr<KubeCluster> cluster;
};

}  // namespace

TEST_CASE("an authority that is replaced while connections are kept") {
  const std::string host = GENERATE("127.0.0.1", "::1");
  CAPTURE(host);
  const TempDir dir;
  const Identity before = authority("before"), after = authority("after");
  CredentialSource source;
  source.ca.file = dir.path() / "ca.crt";
  put(source.ca.file, before.certificate_pem());
  auto server = std::make_unique<ApiOfTls>(before, host);
  const int port = server->port();
  const TlsScene scene(host, port, source);
  REQUIRE(scene.reaches());
  REQUIRE(scene.reaches());
  CHECK(server->connections() == 1);  // it is kept
  SECTION("both for a time: no call is lost") {
    put(source.ca.file, before.certificate_pem() + after.certificate_pem());
    CHECK(scene.reaches());
    CHECK(server->connections() == 2);  // made anew, with what the file says now
    server.reset();
    server = std::make_unique<ApiOfTls>(after, host, port);
    CHECK(scene.reaches());
    put(source.ca.file, after.certificate_pem());
    CHECK(scene.reaches());
  }
  SECTION("at once: a server of the old one is not spoken to on a kept connection, either") {
    put(source.ca.file, after.certificate_pem());
    CHECK(!scene.reaches());
    CHECK(server->connections() == 1);
    server.reset();
    server = std::make_unique<ApiOfTls>(after, host, port);
    CHECK(scene.reaches());
  }
  SECTION("a file that is no certificate for a moment leaves the last good one") {
    put(source.ca.file, "half a fi");
    CHECK(scene.reaches());
    CHECK(server->connections() == 1);
  }
}

TEST_CASE("a token that is replaced while TLS connections are kept") {
  const TempDir dir;
  const Identity signer = authority("test");
  CredentialSource source;
  source.ca.text = signer.certificate_pem();
  source.token_file = dir.path() / "token";
  put(source.token_file, "one\n");
  ApiOfTls server(signer, "::1");
  server.want_token("one");
  const TlsScene scene("::1", server.port(), source);
  REQUIRE(scene.reaches());
  put(source.token_file, "two\n");
  server.want_token("two");
  CHECK(scene.reaches());
  CHECK(server.connections() == 1);  // a token is no reason for a new connection
  server.want_token("three");
  CHECK(!scene.reaches());
  put(source.token_file, "three\n");
  CHECK(scene.reaches());
}

}  // namespace archipelago::op
