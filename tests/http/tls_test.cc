// The client over TLS: whose certificates it takes, and that deadlines, cancel, early answers and
// kept connections are those of the plain client.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <numeric>
#include <thread>

#include <catch2/catch.hpp>
#include <httplib.h>

#include "common/http/client.h"
#include "tests/http/certificates.h"
#include "tests/http/raw_socket.h"

namespace archipelago::http {
namespace {

using testing::Identity;
using testing::make_identity;
using testing::Wanted;

const Identity& authority() {
  static const Identity made = make_identity({.common_name = "test CA", .authority = true});
  return made;
}

struct ServerWishes {
  Wanted certificate = {.alternative_names = "IP:127.0.0.1,IP:::1,DNS:outer.example"};
  bool asks_client = false;
  bool self_signed = false;
  int newest_protocol = 0;
  std::string host = "127.0.0.1";
};

// An HTTPS server of httplib on a port of its own.
class TlsServer {
 public:
  explicit TlsServer(const ServerWishes& wishes = {})
      : identity_(make_identity(wishes.certificate, wishes.self_signed ? nullptr : &authority())) {
    server_ = std::make_unique<httplib::SSLServer>([&](SSL_CTX& context) {
      SSL_CTX_use_certificate(&context, identity_.certificate.get());
      SSL_CTX_use_PrivateKey(&context, identity_.key.get());
      if (wishes.newest_protocol != 0)
        SSL_CTX_set_max_proto_version(&context, wishes.newest_protocol);
      if (wishes.asks_client) {
        X509_STORE_add_cert(SSL_CTX_get_cert_store(&context), authority().certificate.get());
        SSL_CTX_set_verify(&context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
      }
      return true;
    });
    server_->Get("/hello", [](const httplib::Request&, httplib::Response& to) {
      to.set_content("hello", "text/plain");
    });
    server_->Put("/sum", [](const httplib::Request&, httplib::Response& to,
                            const httplib::ContentReader& read) {
      std::uint64_t sum = 0, size = 0;
      read([&](const char* data, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i)
          sum += static_cast<unsigned char>(data[i]) * (i % 7 + 1);
        size += n;
        return true;
      });
      to.set_content(std::to_string(size), "text/plain");
    });
    server_->Put("/deny", [](const httplib::Request&, httplib::Response& to,
                             const httplib::ContentReader&) { to.status = 413; });
    server_->Get("/big", [this](const httplib::Request&, httplib::Response& to) {
      to.set_content_provider(big, "application/octet-stream",
                              [](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
                                std::string piece(std::min<std::size_t>(length, 70'001), '\0');
                                for (std::size_t i = 0; i < piece.size(); ++i)
                                  piece[i] = static_cast<char>((offset + i) % 251);
                                return sink.write(piece.data(), piece.size());
                              });
    });
    server_->Get("/slow", [this](const httplib::Request&, httplib::Response& to) {
      to.set_content_provider(1'000'000, "text/plain",
                              [this](std::size_t, std::size_t, httplib::DataSink& sink) {
                                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                return !done_ && sink.write("x", 1);
                              });
    });
  }
  void start(const std::string& host = "127.0.0.1") {
    port_ = server_->bind_to_any_port(host);
    thread_ = std::jthread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~TlsServer() {
    done_ = true;
    server_->stop();
  }
  httplib::SSLServer& operator*() { return *server_; }
  [[nodiscard]] int port() const { return port_; }
  std::size_t big = 30'000'000;

 private:
  Identity identity_;
  std::unique_ptr<httplib::SSLServer> server_;
  std::atomic<bool> done_{false};
  int port_ = -1;
  std::jthread thread_;
};

ClientOptions to(int port, const std::string& host = "127.0.0.1") {
  ClientOptions options;
  options.server = {host, port};
  options.total_timeout = seconds(20);
  options.tls = TlsOptions{.ca_pem = authority().certificate_pem()};
  return options;
}

Error error_from(const ClientOptions& options) {
  Client client(options);
  const auto reply = client.request("GET", "/hello");
  return reply ? Error{ErrorKind::kInternal, "was answered"} : reply.error();
}

std::size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// A port that takes connections and never says a word.
struct Mute {
  Mute() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    const bool ok = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                    ::listen(fd.get(), 16) == 0 &&
                    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0;
    port = ok ? ntohs(at.sin_port) : -1;
  }
  UniqueFd fd;
  int port = -1;
};

TEST_CASE("A-08: alternative names, addresses of both families in any form, never a bare CN") {
  struct Row {
    std::string names, host, server_name;
    bool accepted;
  };
  const Row row = GENERATE(values<Row>({
      {"IP:127.0.0.1", "127.0.0.1", "", true},
      {"IP:::1", "::1", "", true},
      {"IP:0:0:0:0:0:0:0:1", "::1", "", true},
      {"IP:::1", "::1", "0000:0000:0000:0000:0000:0000:0000:0001", true},
      {"IP:::1", "::1", "[::1]", true},
      {"DNS:localhost", "localhost", "", true},
      {"DNS:outer.example", "127.0.0.1", "outer.example", true},
      {"DNS:outer.example", "127.0.0.1", "OUTER.example.", true},
      {"DNS:*.test.example", "127.0.0.1", "outer.test.example", true},
      {"IP:127.0.0.2", "127.0.0.1", "", false},
      {"IP:::2", "::1", "", false},
      {"DNS:127.0.0.1", "127.0.0.1", "", false},
      {"DNS:*.test.example", "127.0.0.1", "a.outer.test.example", false},
      {"DNS:other.example", "127.0.0.1", "outer.example", false},
      {"IP:127.0.0.1", "127.0.0.1", "outer.example", false},
  }));
  CAPTURE(row.names, row.host, row.server_name);
  ServerWishes wishes;
  wishes.certificate = {.common_name = row.host, .alternative_names = row.names};
  TlsServer server(wishes);
  server.start(row.host);
  ClientOptions options = to(server.port(), row.host);
  options.tls->server_name = row.server_name;
  Client client(options);
  const auto reply = client.request("GET", "/hello");
  CHECK(reply.has_value() == row.accepted);
  if (reply) CHECK(reply->body == "hello");
  if (row.accepted || reply) return;
  CHECK(reply.error().kind == ErrorKind::kRefused);
  const std::string name = row.server_name.empty() ? row.host : row.server_name;
  CHECK(reply.error().message.find("certificate is not for " + name) != std::string::npos);
}

TEST_CASE("A-08: a common name alone is not enough") {
  const std::string name = GENERATE("outer.example", "127.0.0.1");
  ServerWishes wishes;
  wishes.certificate = {.common_name = name};
  TlsServer server(wishes);
  server.start();
  ClientOptions options = to(server.port());
  options.tls->server_name = name;
  const Error error = error_from(options);
  CHECK(error.kind == ErrorKind::kRefused);
  CHECK(error.message.find("not for " + name) != std::string::npos);
}

TEST_CASE("certificates of strangers, of the past and of the future are refused") {
  const auto [self_signed, from, until, text] = GENERATE(table<bool, long, long, std::string>({
      {true, -3600, 3600, "not signed by the given CA"},
      {false, -7200, -3600, "expired"},
      {false, 3600, 7200, "not valid yet"},
  }));
  ServerWishes wishes;
  wishes.self_signed = self_signed;
  wishes.certificate.from_s = from;
  wishes.certificate.to_s = until;
  TlsServer server(wishes);
  server.start();
  const Error error = error_from(to(server.port()));
  CHECK(error.kind == ErrorKind::kRefused);
  CHECK(error.message.find(text) != std::string::npos);
}

TEST_CASE("a CA of the same name with another key, and the system's store, are strangers") {
  TlsServer server;
  server.start();
  const Identity twin = make_identity({.common_name = "test CA", .authority = true});
  ClientOptions options = to(server.port());
  options.tls->ca_pem = GENERATE_COPY(values<std::string>({"", twin.certificate_pem()}));
  const Error error = error_from(options);
  CHECK(error.kind == ErrorKind::kRefused);
  CHECK(error.message.find("certificate") != std::string::npos);
}

TEST_CASE("several CAs in one text, and a server's own certificate as the CA") {
  ServerWishes wishes;
  wishes.self_signed = GENERATE(false, true);
  const Identity other = make_identity({.common_name = "other CA", .authority = true});
  TlsServer server(wishes);
  server.start();
  ClientOptions options = to(server.port());
  options.tls->ca_pem = other.certificate_pem() + "# and ours\n" + options.tls->ca_pem;
  Client client(options);
  CHECK(client.request("GET", "/hello").has_value() == !wishes.self_signed);
}

TEST_CASE("client certificates: the right one, none, a stranger's") {
  ServerWishes wishes;
  wishes.asks_client = true;
  wishes.newest_protocol = GENERATE(0, TLS1_2_VERSION);  // the refusal comes later in TLS 1.3
  TlsServer server(wishes);
  server.start();
  ClientOptions options = to(server.port());
  const Identity us = make_identity({.common_name = "operator"}, &authority());
  const Identity stranger = make_identity({.common_name = "stranger"});
  options.tls->certificate_pem = us.certificate_pem();
  options.tls->key_pem = us.key_pem();
  {
    Client client(options);
    REQUIRE(client.request("GET", "/hello"));
    CHECK(client.request("POST", "/nowhere", "{}")->status == 404);
  }
  options.tls->certificate_pem = options.tls->key_pem = "";
  Error error = error_from(options);
  CHECK(error.kind == ErrorKind::kRefused);
  CHECK(error.message.find("check client certificate") != std::string::npos);
  options.tls->certificate_pem = stranger.certificate_pem();
  options.tls->key_pem = stranger.key_pem();
  error = error_from(options);
  CHECK(error.kind == ErrorKind::kRefused);
  CHECK(error.message.find("check client certificate") != std::string::npos);
}

TEST_CASE("texts that can't be used are errors that name them and never show them") {
  const Identity us = make_identity({}, &authority());
  const Identity other = make_identity({}, &authority());
  const std::string ca = authority().certificate_pem();
  struct Row {
    TlsOptions tls;
    std::string text;
  };
  const Row row = GENERATE_COPY(values<Row>({
      {{.ca_pem = "SECRET"}, "ca_pem"},
      {{.ca_pem = ca + ca.substr(0, 200)}, "ca_pem"},
      {{.ca_pem = ca, .certificate_pem = us.certificate_pem()}, "both or none"},
      {{.ca_pem = ca, .key_pem = us.key_pem()}, "both or none"},
      {{.ca_pem = ca, .certificate_pem = "SECRET", .key_pem = us.key_pem()}, "certificate_pem"},
      {{.ca_pem = ca, .certificate_pem = us.certificate_pem(), .key_pem = "SECRET"}, "key_pem"},
      {{.ca_pem = ca, .certificate_pem = us.certificate_pem(), .key_pem = other.key_pem()},
       "is not the key"},
  }));
  CAPTURE(row.text);
  const auto checked = check_tls(row.tls, "127.0.0.1");
  REQUIRE_FALSE(checked);
  CHECK(checked.error().kind == ErrorKind::kInvalid);
  CHECK(checked.error().message.find(row.text) != std::string::npos);
  ClientOptions options = to(1);
  options.tls = row.tls;
  const Error error = error_from(options);
  CHECK(error.message == checked.error().message);
  CHECK(error.message.find("SECRET") == std::string::npos);
  CHECK(error.message.find("BEGIN") == std::string::npos);
}

TEST_CASE("a server of plain HTTP, and one of TLS 1.1 at most") {
  httplib::Server plain;
  const int port = plain.bind_to_any_port("127.0.0.1");
  std::jthread thread([&] { plain.listen_after_bind(); });
  while (!plain.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Error error = error_from(to(port));
  plain.stop();
  CHECK(error.kind == ErrorKind::kUnavailable);
  CHECK(error.message.find("does not speak TLS") != std::string::npos);
  ServerWishes wishes;
  wishes.newest_protocol = TLS1_1_VERSION;
  TlsServer old(wishes);
  old.start();
  CHECK(error_from(to(old.port())).message.find("TLS") != std::string::npos);
}

TEST_CASE("big bodies both ways over TLS, counted in bytes of HTTP") {
  ServerWishes wishes;
  wishes.newest_protocol = GENERATE(0, TLS1_2_VERSION);
  TlsServer server(wishes);
  server.start();
  Client client(to(server.port()));
  std::vector<std::byte> up(20'000'003);
  for (int i = 0; i < 2; ++i) {
    const auto sent = client.put_bytes("/sum", {}, up, seconds(60));
    REQUIRE(sent);
    CHECK(sent->body == std::to_string(up.size()));
    std::uint64_t at = 0, most = 0;
    bool right = true;
    const auto got = client.get_stream(
        "/big", {}, 1U << 30,
        [&](std::span<const std::byte> piece) {
          for (const std::byte b : piece)
            right = right && std::to_integer<int>(b) == int(at++ % 251);
          most = client.bytes_received();
          return Status();
        },
        seconds(60));
    REQUIRE(got);
    CHECK(right);
    CHECK(at == server.big);
    CHECK(most > server.big);
    CHECK(most < server.big + 1000);
  }
}

TEST_CASE("an early answer stops an upload over TLS") {
  TlsServer server;
  server.start();
  Client client(to(server.port()));
  std::uint64_t asked = 0;
  const auto reply = client.put_stream(
      "/deny", {}, std::uint64_t{1} << 30,
      [&](std::uint64_t, std::span<std::byte> into) -> Result<std::size_t> {
        asked += into.size();
        return into.size();
      },
      seconds(30));
  REQUIRE(reply);
  CHECK(reply->status == 413);
  CHECK(asked < (std::uint64_t{1} << 29));
  CHECK(client.request("GET", "/hello")->body == "hello");
}

TEST_CASE("deadline and cancel in the middle of a body over TLS") {
  const bool cancel = GENERATE(false, true);
  TlsServer server;
  server.start();
  ClientOptions options = to(server.port());
  options.total_timeout = cancel ? seconds(30) : seconds(0.4);
  Client client(options);
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (cancel) client.cancel();
  });
  const auto reply = client.request("GET", "/slow");
  other.join();
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == (cancel ? ErrorKind::kCancelled : ErrorKind::kTimeout));
  client.resume();
  CHECK(client.request("GET", "/hello")->body == "hello");
}

TEST_CASE("a handshake has a deadline and can be cancelled") {
  const int how = GENERATE(0, 1, 2);
  Mute mute;
  ClientOptions options = to(mute.port);
  options.connect_timeout = how == 0 ? seconds(0.3) : seconds(30);
  options.total_timeout = how == 1 ? seconds(0.3) : seconds(30);
  options.io_timeout = seconds(30);
  Client client(options);
  std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (how == 2) client.cancel();
  });
  const TimePoint begin = SystemClock().now();
  const auto reply = client.request("GET", "/hello");
  other.join();
  REQUIRE_FALSE(reply);
  CHECK(reply.error().kind == (how == 2 ? ErrorKind::kCancelled : ErrorKind::kTimeout));
  CHECK(SystemClock().now() - begin < seconds(20));
}

TEST_CASE("a server that closes kept TLS connections costs one reconnect, and leaks nothing") {
  const auto uses = GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{100});
  TlsServer server;
  (*server).set_keep_alive_max_count(uses);
  (*server).set_keep_alive_timeout(1);
  server.start();
  Client client(to(server.port()));
  REQUIRE(client.request("GET", "/hello"));
  const std::size_t before = open_files();
  for (int i = 0; i < 40; ++i) {
    const auto reply = client.request(i % 2 == 0 ? "GET" : "POST", "/hello", i % 2 == 0 ? "" : "x");
    REQUIRE(reply);
    CHECK(reply->status == (i % 2 == 0 ? 200 : 404));
    if (i == 20) std::this_thread::sleep_for(std::chrono::milliseconds(1300));  // idle: it closes
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(open_files() <= before + 2);
}

TEST_CASE("A-13: clients that come and go leave no descriptors") {
  TlsServer server;
  server.start();
  const ClientOptions options = to(server.port());
  const std::size_t before = open_files();
  for (int i = 0; i < 200; ++i) {
    Client client(options);
    REQUIRE(client.request("GET", "/hello"));
  }
  for (int i = 0; i < 100 && open_files() > before + 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(open_files() <= before + 2);
}

TEST_CASE("A-09: proxies of the environment are not used") {
  TlsServer server;
  server.start();
  ::setenv("HTTPS_PROXY", "http://127.0.0.1:1", 1);
  ::setenv("https_proxy", "http://127.0.0.1:1", 1);
  Client client(to(server.port()));
  const auto reply = client.request("GET", "/hello");
  ::unsetenv("HTTPS_PROXY");
  ::unsetenv("https_proxy");
  CHECK(reply.has_value());
}

}  // namespace
}  // namespace archipelago::http
