// Leader election over a Lease, and what happens to writes without one.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/kube/leader.h"
#include "operator/runtime/reflector.h"
#include "tests/operator/kube/kube_client_fixture.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

// One Lease with its versions, and a switch that makes the server silent.
class LeaseServer {
 public:
  void operator()(const SeenRequest& r, Peer& p) {
    if (down_) return p.status(500, "InternalError");
    std::lock_guard lock(mutex_);
    if (!r.has("/leases")) return p.json(a_pod("a"));
    if (r.method == "GET") {
      if (lease_.is_null()) return p.status(404, "NotFound");
      return p.json(lease_);
    }
    json body = json::parse(r.body);
    const bool fresh = string_at(body, {"metadata", "resourceVersion"}) == std::to_string(version_);
    if (r.method == "POST" ? !lease_.is_null() : !fresh) return p.status(409, "Conflict");
    body["metadata"]["resourceVersion"] = std::to_string(++version_);
    body["metadata"]["uid"] = "u";
    lease_ = body;
    p.json(lease_);
  }
  std::string holder() {
    std::lock_guard lock(mutex_);
    return string_at(lease_, {"spec", "holderIdentity"});
  }
  std::atomic<bool> down_{false};

 private:
  std::mutex mutex_;
  json lease_;
  int version_ = 0;
};

LeaderOptions quick(const std::string& identity) {
  LeaderOptions o;
  o.identity = identity;
  o.lease = seconds(2);
  o.renew_deadline = seconds(1);
  o.retry = seconds(0.2);
  return o;
}

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000 && !holds(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return holds();
}

struct Candidate {
  Candidate(const KubeAccess& access, const std::string& name) {
    client = std::move(*KubeClient::open(access, {}, clock, Logger::null(), nullptr, &gate));
    elector = std::make_unique<LeaderElector>(*client, boot, gate, Logger::null(), quick(name),
                                              [this](const std::string&) { ++lost; });
    elector->start();
  }
  SystemClock clock;
  BootClock boot;
  std::atomic<int> closed{0};
  std::atomic<int> lost{0};
  WriteGate gate{boot, [this](const std::string&) { ++closed; }};
  std::unique_ptr<KubeClient> client;
  std::unique_ptr<LeaderElector> elector;
};
}  // namespace

TEST_CASE("one leads, the other takes over when it gives the lease back") {
  LeaseServer lease;
  const ScriptedServer server(std::ref(lease));
  Candidate one(server.access(), "one");
  REQUIRE(one.elector->wait_until_leading({}));
  Candidate two(server.access(), "two");
  KubeCluster writes(*one.client);
  for (int i = 0; i < 15; ++i) {  // longer than the lease: it is renewed
    CHECK(writes.create(a_pod("a")));
    CHECK(!two.elector->leading());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  CHECK(two.elector->holder() == "one");
  one.elector->stop();
  CHECK(one.lost == 0);
  CHECK(!one.gate.open());
  CHECK(two.elector->wait_until_leading({}));
  CHECK(lease.holder() == "two");
}

TEST_CASE("who can't renew stops before another may begin") {
  LeaseServer lease;
  const ScriptedServer server(std::ref(lease));
  Candidate one(server.access(), "one");
  REQUIRE(one.elector->wait_until_leading({}));
  KubeCluster writes(*one.client);
  CHECK(writes.create(a_pod("a")));
  lease.down_ = true;
  REQUIRE(eventually([&] { return one.lost == 1; }));
  CHECK(!one.elector->leading());
  lease.down_ = false;
  const int before = server.count("POST", "/pods");
  CHECK(!writes.create(a_pod("a")));
  CHECK(one.closed == 1);
  CHECK(server.count("POST", "/pods") == before);  // not one write
  Candidate two(server.access(), "two");
  CHECK(two.elector->wait_until_leading({}));
}

TEST_CASE("waiting for the lease ends on stop") {
  LeaseServer lease;
  lease.down_ = true;
  const ScriptedServer server(std::ref(lease));
  Candidate one(server.access(), "one");
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  CHECK(!one.elector->wait_until_leading(stop.get_token()));
}

TEST_CASE("a write without the lease ends the process, and is never sent") {
  ScriptedServer server([](const SeenRequest&, Peer& p) { p.json(a_pod("a")); });
  const KubeAccess access = server.access();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const SystemClock clock;
    const BootClock boot;
    WriteGate gate(boot);
    gate.require_lease(seconds(4));
    auto client = KubeClient::open(access, {}, clock, Logger::null(), nullptr, &gate);
    (void)(*client)->call(kube::get(Kind::kPod, {"n", "a"}));  // reads are free
    (void)(*client)->call(kube::create(Kind::kPod, "n", a_pod("a")));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kExitLeaseLost);
  CHECK(server.count("GET") == 1);
  CHECK(server.count("POST") == 0);
}

TEST_CASE("deletions that were missed are found by the next list") {
  std::atomic<int> lists{0};
  Scene s([&](const SeenRequest& r, Peer& p) {
    if (r.has("watch=1")) {
      if (lists == 1) return p.status(410, "Expired");
      p.begin_stream();
      return p.hold();
    }
    ++lists;
    p.json(lists == 1 ? pod_list({"a", "b"}, "5") : pod_list({"b"}, "9"));
  });
  ObjectStore store;
  std::mutex mutex;
  std::vector<std::string> changes;
  Reflector reflector(*s.cluster, Kind::kPod, "n", store, s.clock, Logger::null(),
                      [&](const Object& o) {
                        std::lock_guard lock(mutex);
                        changes.push_back(o.name());
                      });
  reflector.start();
  CHECK(eventually([&] { return lists == 2 && s.server.count("GET", "resourceVersion=9") == 1; }));
  CHECK(!store.get({"n", "a"}));
  CHECK(store.get({"n", "b"}));
  {
    std::lock_guard lock(mutex);
    CHECK(changes == std::vector<std::string>{"a", "b", "a"});
  }
  s.client->stop_reading();
  reflector.stop();
}

}  // namespace archipelago::op
