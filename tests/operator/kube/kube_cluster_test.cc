// KubeCluster on an API server that misbehaves as real ones and networks do.
#include <fstream>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "operator/api/json.h"
#include "tests/operator/kube/kube_client_fixture.h"

namespace archipelago::op {
namespace {
using nlohmann::json;
namespace fs = std::filesystem;

const ObjectKey kPodA{"n", "a"};

std::size_t open_descriptors() {
  std::size_t out = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++out;
  return out;
}
// Of this process, in bytes.
std::size_t resident() {
  std::ifstream in("/proc/self/statm");
  std::size_t all = 0, pages = 0;
  in >> all >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}
KubeClientOptions agent() {
  KubeClientOptions out;
  out.user_agent = "archipelago-operator/1.2.3";
  out.seed = 1;
  return out;
}
void put(const fs::path& file, const std::string& text) { REQUIRE(write_file_durably(file, text)); }
}  // namespace

TEST_CASE("who calls and with what: agent, bearer, nothing of it in the log") {
  const TempDir dir;
  CredentialSource source;
  source.token = "top-secret";
  const std::string log = (dir.path() / "log").string();
  Scene s([](const SeenRequest&, Peer& p) { p.json(a_pod("a")); }, agent(), {}, source, nullptr,
          false, Logger::to_file("t", log, LogLevel::kDebug));
  REQUIRE(s.cluster->get(Kind::kPod, kPodA));
  const SeenRequest seen = s.server.seen().at(0);
  CHECK(seen.header("authorization") == "Bearer top-secret");
  CHECK(seen.headers.count("user-agent") == 1);
  CHECK(seen.header("user-agent") == "archipelago-operator/1.2.3");
  const std::string text = *read_file(log);
  CHECK(text.find("audit-1") != std::string::npos);
  CHECK(text.find("top-secret") == std::string::npos);
}

TEST_CASE("what the client counts is there from the start, at 0") {
  Metrics metrics;
  const SystemClock clock;
  KubeAccess access;
  access.https = false;
  access.server = {"127.0.0.1", 1};
  REQUIRE(KubeClient::open(access, {}, clock, Logger::null(), &metrics));
  const std::string text = metrics.render();
  for (const char* line :
       {"archipelago_operator_api_requests_total{code=\"200\",verb=\"watch\"} 0",
        "archipelago_operator_api_requests_total{code=\"201\",verb=\"create\"} 0",
        "archipelago_operator_watch_restarts_total{kind=\"Pod\",reason=\"gone\"} 0",
        "archipelago_operator_undecodable_objects_total{kind=\"DecoupledTraining\"} 0",
        "archipelago_operator_events_dropped_total 0",
        "archipelago_operator_api_rate_wait_seconds_count 0"}) {
    CAPTURE(line, text);
    CHECK(text.find(line) != std::string::npos);
  }
}

TEST_CASE("an IPv6 server, whatever proxy the environment names") {
  ::setenv("HTTP_PROXY", "http://127.0.0.1:1", 1);
  ::setenv("HTTPS_PROXY", "http://127.0.0.1:1", 1);
  Scene s([](const SeenRequest&, Peer& p) { p.json(a_pod("a")); }, {}, {}, {}, nullptr, true);
  CHECK(s.cluster->get(Kind::kPod, kPodA));
  CHECK(s.server.seen().at(0).header("host") == "[::1]:" + std::to_string(s.server.port()));
  ::unsetenv("HTTP_PROXY");
  ::unsetenv("HTTPS_PROXY");
}

TEST_CASE("a token that was swapped: 401, one look at the file, one retry, also of a POST") {
  const TempDir dir;
  CredentialSource source;
  source.token_file = dir.path() / "token";
  put(source.token_file, "old\n");
  std::string accepted = "Bearer old";
  std::mutex mutex;
  Scene s(
      [&](const SeenRequest& r, Peer& p) {
        std::lock_guard lock(mutex);
        if (r.header("authorization") == accepted) return p.json(a_pod("a"));
        p.status(401, "Unauthorized");
      },
      {}, {}, source);
  REQUIRE(s.cluster->get(Kind::kPod, kPodA));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // no two looks within a second
  {
    std::lock_guard lock(mutex);
    accepted = "Bearer new";
  }
  put(source.token_file, "new\n");
  CHECK(s.cluster->create(a_pod("a")));
  CHECK(s.server.count("POST") == 2);
  {
    std::lock_guard lock(mutex);
    accepted = "Bearer never";
  }
  const auto refused = s.cluster->get(Kind::kPod, kPodA);
  REQUIRE(!refused);
  CHECK(refused.error().kind == ErrorKind::kUnavailable);  // it may heal: no verdict on the object
  CHECK(s.server.count("GET") == 3);
}

TEST_CASE("a version that is too old is kGone, in each of its forms") {
  int form = 0;
  Scene s([&](const SeenRequest&, Peer& p) {
    if (form == 0) return p.status(410, "Expired");
    p.begin_stream();
    if (form == 1)
      p.event("ERROR",
              {{"kind", "Status"}, {"apiVersion", "v1"}, {"code", 410}, {"reason", "Expired"}});
    if (form == 2)
      p.chunk(R"({"kind":"Status","apiVersion":"v1","code":410})"
              "\n");
    p.end_stream();
  });
  for (form = 0; form < 3; ++form) {
    auto watch = s.cluster->watch(Kind::kPod, "n", "5");
    REQUIRE(watch);
    const auto event = s.next(**watch);
    REQUIRE(event);
    CHECK(event->type == WatchType::kGone);
    CHECK(!event->object);
    CHECK(!s.next(**watch, 0.02));
  }
}

TEST_CASE("the server's ERROR of another code ends the stream, late, and is no object") {
  Scene s([](const SeenRequest&, Peer& p) {
    p.begin_stream();
    p.event("ERROR", {{"code", 500}});
    p.hold();
  });
  const TimePoint began = s.clock.now();
  auto watch = s.cluster->watch(Kind::kPod, "n", "5");
  REQUIRE(watch);
  const auto event = s.next(**watch);
  REQUIRE(event);
  CHECK(event->type == WatchType::kEnded);
  CHECK(s.clock.now() - began > seconds(0.5));  // a loop of it is no hot loop
}

TEST_CASE("a watch that begins with an error says it, the role's lack is kept in words") {
  Scene s([](const SeenRequest&, Peer& p) {
    p.status(403, "Forbidden", R"(pods is forbidden: User "u" cannot watch resource "pods")");
  });
  const auto watch = s.cluster->watch(Kind::kPod, "n", "5");
  REQUIRE(!watch);
  CHECK(watch.error().kind == ErrorKind::kRefused);
  CHECK(watch.error().message.find("watch pods n/: 403 Forbidden: pods is forbidden") == 0);
}

TEST_CASE("events come in order through bookmarks, junk, splits and long lines") {
  Scene s([](const SeenRequest& r, Peer& p) {
    CHECK(r.has("allowWatchBookmarks=true"));
    CHECK(r.has("resourceVersion=5"));
    CHECK(r.has("labelSelector=app.kubernetes.io%2Fmanaged-by%3Darchipelago-operator"));
    p.begin_stream();
    const std::string line = json{{"type", "ADDED"}, {"object", a_pod("a", "6")}}.dump() + "\r\n";
    for (const char c : line) p.chunk(std::string(1, c));
    p.chunk("\r\n\nnot json\n");
    p.event("BOOKMARK",
            {{"metadata", {{"resourceVersion", "7"}}}, {"spec", {{"containers", nullptr}}}});
    p.event("ADDED", {{"spec", "no name"}});
    p.chunk(std::string(std::size_t{9} << 20, 'x') + "\n");
    p.chunk(json{{"type", "MODIFIED"}, {"object", a_pod("a", "8")}}.dump() + "\n" +
            json{{"type", "DELETED"}, {"object", a_pod("a", "9")}}.dump() + "\n");
    p.end_stream();
  });
  auto watch = s.cluster->watch(Kind::kPod, "n", "5");
  REQUIRE(watch);
  std::vector<WatchType> types;
  std::vector<std::string> versions;
  while (const auto e = s.next(**watch)) {
    types.push_back(e->type);
    versions.push_back(e->resource_version);
    if (e->type == WatchType::kEnded) break;
  }
  CHECK(types == std::vector<WatchType>{WatchType::kAdded, WatchType::kBookmark,
                                        WatchType::kModified, WatchType::kDeleted,
                                        WatchType::kEnded});
  CHECK(versions == std::vector<std::string>{"6", "7", "8", "9", ""});
}

TEST_CASE("a connection that died in silence ends after the idle limit") {
  KubeClusterOptions options;
  options.watch_idle = seconds(0.3);
  Scene s(
      [](const SeenRequest&, Peer& p) {
        p.begin_stream();
        p.event("ADDED", a_pod("a"));
        p.hold();
      },
      {}, options);
  auto watch = s.cluster->watch(Kind::kPod, "n", "5");
  REQUIRE(watch);
  CHECK(s.next(**watch)->type == WatchType::kAdded);
  CHECK(s.next(**watch)->type == WatchType::kEnded);
}

TEST_CASE("a slow reader holds the stream back, and loses nothing") {
  KubeClusterOptions options;
  options.watch_buffer = 4;
  Scene s(
      [](const SeenRequest&, Peer& p) {
        p.begin_stream();
        for (int i = 0; i < 3000; ++i) p.event("MODIFIED", a_pod("a", std::to_string(i)));
        p.end_stream();
      },
      {}, options);
  auto watch = s.cluster->watch(Kind::kPod, "n", "5");
  REQUIRE(watch);
  for (int i = 0; i < 3000; ++i) REQUIRE(s.next(**watch)->resource_version == std::to_string(i));
  CHECK(s.next(**watch)->type == WatchType::kEnded);
}

TEST_CASE("stop: next returns, the stream is dropped, reads that wait are cancelled") {
  Scene s([](const SeenRequest& r, Peer& p) {
    if (r.has("watch=1")) p.begin_stream();
    p.hold();
  });
  auto watch = s.cluster->watch(Kind::kPod, "n", "5");
  REQUIRE(watch);
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  CHECK(!(*watch)->next(s.clock.now() + seconds(600), stop.get_token()));
  watch->reset();  // would hang on a reader that is not woken
  Result<Object> got = fail(ErrorKind::kInternal, "");
  std::jthread reader([&] { got = s.cluster->get(Kind::kPod, kPodA); });
  while (s.server.count("GET", "/pods/a") == 0) std::this_thread::yield();
  s.client->stop_reading();
  reader.join();
  REQUIRE(!got);
  CHECK(got.error().kind == ErrorKind::kCancelled);
  CHECK(s.cluster->get(Kind::kPod, kPodA).error().kind == ErrorKind::kCancelled);
}

TEST_CASE("two thousand reconnects leave no descriptor and no memory behind") {
  Scene s([](const SeenRequest&, Peer& p) {
    p.begin_stream();
    p.event("BOOKMARK", {{"metadata", {{"resourceVersion", "7"}}}});
    p.end_stream();
    p.drop();
  });
  const auto once = [&] {
    auto watch = s.cluster->watch(Kind::kPod, "n", "5");
    REQUIRE(watch);
    while (s.next(**watch)->type != WatchType::kEnded) {
    }
  };
  for (int i = 0; i < 20; ++i) once();
  const std::size_t before = open_descriptors();
  [[maybe_unused]] const std::size_t held = resident();
  for (int i = 0; i < 2000; ++i) once();
  CHECK(open_descriptors() <= before + 8);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what is freed
  CHECK(resident() < held + (std::size_t{16} << 20));  // 8 KB a reconnect would be seen
#endif
}

TEST_CASE("429 and 503: a read waits and goes on, a write is told to come later") {
  std::atomic<int> refusals{2};
  std::atomic<int> code{429};
  std::string heads = "Retry-After: 1\r\n";
  Scene s([&](const SeenRequest& r, Peer& p) {
    if (refusals-- > 0) return p.status(code, "TooManyRequests", "slow down", heads);
    if (r.has("watch=1")) {
      p.begin_stream();
      return p.hold();
    }
    if (r.method == "GET" && !r.has("/pods/")) return p.json(pod_list({"a"}, "9"));
    p.json(a_pod("a"));
  });
  const TimePoint began = s.clock.now();
  SECTION("list") {
    CHECK(s.cluster->list(Kind::kPod, {})->items.size() == 1);
    CHECK(s.clock.now() - began >= seconds(2));
  }
  SECTION("watch, without a list in between") {
    CHECK(s.cluster->watch(Kind::kPod, "n", "5"));
    CHECK(s.clock.now() - began >= seconds(2));
    CHECK(s.server.count("GET") == 3);
  }
  SECTION("503 with a date") {
    code = 503;
    refusals = 1;
    heads = "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n";  // long ago: the usual backoff
    CHECK(s.cluster->get(Kind::kPod, kPodA));
  }
  SECTION("a hundred refused POSTs in a row: the server sees few of them") {
    refusals = 100;
    for (int i = 0; i < 100; ++i) {
      const auto made = s.cluster->create(a_pod("a"));
      REQUIRE(!made);
      CHECK(made.error().kind == ErrorKind::kUnavailable);
    }
    CHECK(s.server.count("POST") <= 3 + static_cast<int>(to_seconds(s.clock.now() - began)));
    CHECK(s.cluster->get(Kind::kPod, kPodA).has_value() == false);  // its own refusals, five tries
    refusals = 0;
    while (!s.cluster->create(a_pod("a")))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  SECTION("status, a hundred times without a time to wait") {
    heads = "";
    refusals = 100;
    int tries = 0;
    json run = a_pod("r");
    while (!s.cluster->update_status(run, WriteClass::kDecision)) REQUIRE(++tries <= 100);
    CHECK(tries == 100);
  }
}

TEST_CASE("a connection lost in mid-request: reads go on, a POST is unknown and not repeated") {
  std::atomic<int> cuts{1};
  Scene s([&](const SeenRequest&, Peer& p) {
    if (cuts-- > 0) return p.drop();
    p.json(a_pod("a"));
  });
  CHECK(s.cluster->get(Kind::kPod, kPodA));
  CHECK(s.server.count("GET") == 2);
  cuts = 1;
  const auto made = s.cluster->create(a_pod("a"));
  REQUIRE(!made);
  CHECK(made.error().kind == ErrorKind::kUnavailable);
  CHECK(s.server.count("POST") == 1);
  cuts = 1;
  CHECK(s.cluster->apply(a_pod("a")));
  CHECK(s.cluster->remove(Kind::kPod, kPodA, {"u", 0}));
}

TEST_CASE("a list in pages whose token expires, one item of nonsense") {
  std::atomic<int> lists{0};
  Scene s([&](const SeenRequest& r, Peer& p) {
    if (r.has("continue=t1")) return p.status(410, "Expired");
    if (++lists == 1) return p.json(pod_list({"a"}, "8", "t1"));
    json page = pod_list({"b", "c"}, "9");
    page["items"].push_back("nonsense");
    p.json(page);
  });
  const auto list = s.cluster->list(Kind::kPod, {"n", {{"k", "v"}}});
  REQUIRE(list);
  CHECK(list->items.size() == 2);
  CHECK(list->resource_version == "9");
  CHECK(s.server.seen().at(0).has("archipelago-operator%2Ck%3Dv"));
}

TEST_CASE("bodies that are wrong are refused before they are sent") {
  Scene s([](const SeenRequest&, Peer& p) { p.json(a_pod("a")); });
  for (const json& bad :
       {json{{"kind", "Secret"}}, json{{"kind", "Pod"}, {"apiVersion", "v1"}},
        json{{"kind", "Pod"}, {"apiVersion", "v1"}, {"metadata", {{"name", "a"}}}},
        json{{"kind", "Pod"},
             {"apiVersion", "v2"},
             {"metadata", {{"name", "a"}, {"namespace", "n"}}}}})
    CHECK(s.cluster->create(bad).error().kind == ErrorKind::kInvalid);
  CHECK(s.server.seen().empty());
}

TEST_CASE("events never wait, whatever the server does") {
  Scene s([](const SeenRequest&, Peer& p) { p.hold(); });
  EventRecord e{Kind::kTraining, "n", "r", "u", true, "R", "m", s.clock.wall(), ""};
  for (int i = 0; i < 10'000; ++i) {  // the server answers none of them
    e.reason = "R" + std::to_string(i);
    s.cluster->record(e);
  }
  while (s.server.count("POST") == 0) std::this_thread::yield();
  s.client->stop_reading();  // the event that is under way is given up
  s.cluster.reset();
  CHECK(s.server.count("POST") == 1);
}

TEST_CASE("an event is created once, with its regards") {
  Scene s([](const SeenRequest&, Peer& p) { p.json(json::object()); });
  EventRecord e{Kind::kTraining, "n", "r", "u", true, "UnitFailed", "m", s.clock.wall(), "east-0"};
  for (int i = 0; i < 100; ++i) s.cluster->record(e);
  while (s.server.count("POST", "/apis/events.k8s.io/v1/namespaces/n/events") == 0)
    std::this_thread::yield();
  s.cluster.reset();
  REQUIRE(s.server.seen().size() == 1);
  const json body = json::parse(s.server.seen()[0].body);
  CHECK(string_at(body, {"regarding", "kind"}) == "DecoupledTraining");
  CHECK(string_at(body, {"regarding", "uid"}) == "u");
}

TEST_CASE("logs as a stream of text") {
  Scene s([](const SeenRequest&, Peer& p) {
    p.begin_stream();
    p.chunk("line one\nli");
    p.chunk("ne two\n");
    p.end_stream();
  });
  std::string text;
  CHECK(s.client->stream(kube::pod_log(kPodA, {true, false, 10, ""}),
                         [&](std::span<const std::byte> b) -> Status {
                           text.append(reinterpret_cast<const char*>(b.data()), b.size());
                           return {};
                         },
                         {}));
  CHECK(text == "line one\nline two\n");
  CHECK(s.server.seen().at(0).has("follow=true&tailLines=10"));
}

}  // namespace archipelago::op
