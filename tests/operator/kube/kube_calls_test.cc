// The client's decisions as tables: requests, retry, rate, watch lines, slim objects, events,
// lease.
#include <algorithm>
#include <map>
#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/kube/rate_limit.h"
#include "operator/kube/retry.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;

http::Response reply(int status, const std::string& body = "", const std::string& wait = "") {
  http::Response out;
  out.status = status;
  out.body = body;
  if (!wait.empty()) out.headers["retry-after"] = wait;
  return out;
}
std::string status_body(int code, const std::string& reason, const std::string& message,
                        const json& details = json::object()) {
  return json{{"kind", "Status"}, {"apiVersion", "v1"}, {"code", code},
              {"reason", reason}, {"message", message}, {"details", details}}
      .dump();
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
const ObjectKey kRun{"team", "r"};
}  // namespace

TEST_CASE("requests: method, path, rule") {
  const json body{{"metadata", {{"name", "r"}, {"namespace", "team"}}}};
  struct Row {
    Request request;
    const char* method;
    std::string path;
    AccessRule rule;
  };
  const std::string dt = "/apis/archipelago.training/v1alpha1/namespaces/team/decoupledtrainings";
  const std::vector<Row> rows{
      {create(Kind::kPod, "team", body),
       "POST",
       "/api/v1/namespaces/team/pods",
       {"", "pods", "create"}},
      {get(Kind::kTraining, kRun),
       "GET",
       dt + "/r",
       {"archipelago.training", "decoupledtrainings", "get"}},
      {update_status(Kind::kTraining, kRun, body),
       "PUT",
       dt + "/r/status",
       {"archipelago.training", "decoupledtrainings/status", "update"}},
      {list(Kind::kNode, "", {}), "GET", "/api/v1/nodes?limit=500", {"", "nodes", "list"}},
      {list(Kind::kPod, "", {"a=b", "t&k", 500}),
       "GET",
       "/api/v1/pods?limit=500&continue=t%26k&labelSelector=a%3Db",
       {"", "pods", "list"}},
      {watch(Kind::kPod, "team", "12", "a=b", 290),
       "GET",
       "/api/v1/namespaces/team/"
       "pods?watch=1&allowWatchBookmarks=true&timeoutSeconds=290&resourceVersion=12&"
       "labelSelector=a%3Db",
       {"", "pods", "watch"}},
      {apply(Kind::kConfigMap, kRun, body),
       "PATCH",
       "/api/v1/namespaces/team/configmaps/r?fieldManager=archipelago-operator&force=true",
       {"", "configmaps", "patch"}},
      {pod_log(kRun, {true, true, 10, "c"}),
       "GET",
       "/api/v1/namespaces/team/pods/r/log?container=c&follow=true&previous=true&tailLines=10",
       {"", "pods/log", "get"}},
      {pod_proxy_get(kRun, 8081, "/v1/model/a?step=3"),
       "GET",
       "/api/v1/namespaces/team/pods/r:8081/proxy/v1/model/a?step=3",
       {"", "pods/proxy", "get"}},
      {service_proxy_get(kRun, 80, "/"),
       "GET",
       "/api/v1/namespaces/team/services/r:80/proxy/",
       {"", "services/proxy", "get"}},
      {evict(kRun, {}),
       "POST",
       "/api/v1/namespaces/team/pods/r/eviction",
       {"", "pods/eviction", "create"}},
      {get_lease(kRun),
       "GET",
       "/apis/coordination.k8s.io/v1/namespaces/team/leases/r",
       {"coordination.k8s.io", "leases", "get"}},
      {get(Kind::kPod, {"a/b", "c d"}),
       "GET",
       "/api/v1/namespaces/a%2Fb/pods/c%20d",
       {"", "pods", "get"}},
  };
  for (const Row& row : rows) {
    INFO(row.request.path);
    CHECK(row.request.method == row.method);
    CHECK(row.request.path == row.path);
    CHECK(row.request.rule == row.rule);
    CHECK(row.request.mutating() == (row.request.method != "GET"));
  }
  CHECK(apply(Kind::kConfigMap, kRun, body).content_type == "application/apply-patch+yaml");
}

TEST_CASE("a delete has its precondition, grace and propagation") {
  const Request r = remove(Kind::kPod, kRun, {"u1", 0});
  const json body = json::parse(r.body);
  CHECK(r.method == "DELETE");
  CHECK(body["preconditions"]["uid"] == "u1");
  CHECK(body["gracePeriodSeconds"] == 0);
  CHECK(body["propagationPolicy"] == "Background");
  const json plain = json::parse(remove(Kind::kPod, kRun, {}).body);
  CHECK(!plain.contains("preconditions"));
  CHECK(!plain.contains("gracePeriodSeconds"));
}

TEST_CASE("what may be sent again inside a call: reads, applies, deletes") {
  CHECK(get(Kind::kPod, kRun).repeatable);
  CHECK(apply(Kind::kService, kRun, {}).repeatable);
  CHECK(remove(Kind::kPod, kRun, {}).repeatable);
  CHECK(!create(Kind::kPod, "team", {}).repeatable);
  CHECK(!update(Kind::kPod, kRun, {}).repeatable);
  CHECK(!update_status(Kind::kTraining, kRun, {}).repeatable);
  CHECK(!evict(kRun, {}).repeatable);
}

TEST_CASE("every request of the operator is in its role, and nothing else is") {
  const json body{{"metadata", {{"name", "x"}}}};
  std::set<AccessRule> used;
  const auto use = [&](const Request& r) { used.insert(r.rule); };
  for (const Kind k :
       {Kind::kTraining, Kind::kPod, Kind::kService, Kind::kConfigMap, Kind::kClaim, Kind::kNode}) {
    use(list(k, "", {}));
    use(watch(k, "", "1", "", 1));
  }
  for (const Kind k : {Kind::kTraining, Kind::kPod, Kind::kService, Kind::kConfigMap, Kind::kClaim})
    use(get(k, kRun));
  for (const Kind k : {Kind::kPod, Kind::kService, Kind::kConfigMap, Kind::kClaim}) {
    use(create(k, "team", body));
    use(remove(k, kRun, {}));
  }
  for (const Kind k : {Kind::kService, Kind::kConfigMap}) use(apply(k, kRun, body));
  use(update_status(Kind::kTraining, kRun, body));
  use(pod_proxy_get(kRun, 1, "/"));
  use(pod_proxy_put(kRun, 1, "/", ""));
  for (const Request& r : {get_lease(kRun), create_lease("team", body), update_lease(kRun, body),
                           create_event("team", body), patch_event(kRun, body)})
    use(r);
  used.insert({"archipelago.training", "decoupledtrainings/finalizers",
               "update"});  // no request: an admission check
  const auto rules = operator_rules();
  CHECK(std::set<AccessRule>(rules.begin(), rules.end()) == used);
  CHECK(std::is_sorted(rules.begin(), rules.end()));
}

TEST_CASE("answers become kinds, with the server's words kept") {
  const Request post = create(Kind::kPod, "team", {{"metadata", {{"name", "p"}}}});
  const Request read = get(Kind::kPod, kRun);
  struct Row {
    const Request& request;
    http::Response answer;
    ErrorKind kind;
    const char* says;
  };
  const std::string rbac =
      R"(pods is forbidden: User "u" cannot create resource "pods" in API group "")";
  for (const Row& row : std::vector<Row>{
           {post, reply(409, status_body(409, "AlreadyExists", "pods \"p\" already exists")),
            ErrorKind::kConflict, "already exists"},
           {post, reply(403, status_body(403, "Forbidden", rbac)), ErrorKind::kRefused,
            "create pods team/p: 403 Forbidden: pods is forbidden"},
           {post, reply(403, status_body(403, "Forbidden", "exceeded quota: q")),
            ErrorKind::kRefused, "exceeded quota"},
           {post,
            reply(404, status_body(404, "NotFound", "namespaces \"team\" not found",
                                   {{"kind", "namespaces"}})),
            ErrorKind::kNotFound, "namespace does not exist"},
           {post,
            reply(403, status_body(403, "Forbidden",
                                   "unable to create new content in namespace team because it is "
                                   "being terminated")),
            ErrorKind::kNotFound, "namespace is going"},
           {post,
            reply(403,
                  status_body(403, "Forbidden", "x",
                              {{"causes", json::array({{{"reason", "NamespaceTerminating"}}})}})),
            ErrorKind::kNotFound, "namespace is going"},
           {read, reply(404, status_body(404, "NotFound", "pods \"r\" not found")),
            ErrorKind::kNotFound, "get pods team/r: 404"},
           {post, reply(422, status_body(422, "Invalid", "spec.x: bad")), ErrorKind::kInvalid,
            "spec.x"},
           {post, reply(400), ErrorKind::kInvalid, "400"},
           {post, reply(413), ErrorKind::kInvalid, "413"},
           {read, reply(401, status_body(401, "Unauthorized", "Unauthorized")),
            ErrorKind::kUnavailable, "does not accept the credentials"},
           {read, reply(410, status_body(410, "Expired", "too old")), ErrorKind::kFenced,
            "too old"},
           {read, reply(429), ErrorKind::kUnavailable, "429"},
           {read, reply(500, "oops\nsecret second line"), ErrorKind::kUnavailable, "oops"},
           {read, reply(503), ErrorKind::kUnavailable, "503"},
           {read, reply(504), ErrorKind::kTimeout, "504"}}) {
    const Error e = error_of(row.request, row.answer);
    INFO(e.message);
    CHECK(e.kind == row.kind);
    CHECK(has(e.message, row.says));
    CHECK(!has(e.message, "second line"));
  }
  CHECK(error_of(read, Error{ErrorKind::kRefused, "certificate"}).kind == ErrorKind::kUnavailable);
  CHECK(error_of(read, Error{ErrorKind::kTimeout, "t"}).kind == ErrorKind::kTimeout);
}

TEST_CASE("Retry-After in seconds, as a date, and in the Status") {
  WallTime now{};
  REQUIRE(parse_wall("1994-11-06T08:49:30.000Z", &now));
  CHECK(retry_after(reply(429, "", "7"), now) == Duration(seconds(7)));
  CHECK(retry_after(reply(503, "", "Sun, 06 Nov 1994 08:49:37 GMT"), now) == Duration(seconds(7)));
  CHECK(retry_after(reply(503, "", "Sun, 06 Nov 1994 08:00:00 GMT"), now) == Duration(0));
  CHECK(retry_after(reply(429, status_body(429, "TooManyRequests", "", {{"retryAfterSeconds", 3}})),
                    now) == Duration(seconds(3)));
  CHECK(retry_after(reply(429, "", "999999999"), now) <= Duration(seconds(3600)));
  for (const char* junk :
       {"soon", "-5", "1e9", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Xxx 1994 08:49:37 GMT"})
    CHECK(!retry_after(reply(429, "", junk), now));
}

TEST_CASE("which calls are sent again, and after how long") {
  Rng rng(1);
  const Request read = get(Kind::kPod, kRun);
  const Request post = create(Kind::kPod, "team", {});
  const TimePoint t0{};
  const auto decide = [&](const Request& r, Result<http::Response> a, int number = 1) {
    return decide_retry(r, a, {number, t0 + seconds(30), t0, WallTime{}}, rng);
  };
  CHECK(decide(read, reply(500)).again);
  CHECK(decide(read, fail(ErrorKind::kUnavailable, "")).again);
  CHECK(!decide(read, reply(404)).again);
  CHECK(!decide(read, reply(403)).again);
  CHECK(!decide(read, reply(409)).again);
  CHECK(!decide(read, fail(ErrorKind::kCancelled, "")).again);
  CHECK(!decide(read, reply(500), kMaxTries).again);
  CHECK(!decide(post, reply(500)).again);
  CHECK(!decide(post, fail(ErrorKind::kTimeout, "")).again);
  const RetryDecision told = decide(read, reply(429, "", "7"));
  CHECK(told.again);
  CHECK(told.wait >= Duration(seconds(7)));
  CHECK(told.wait <= Duration(seconds(7 * 1.2)));
  const RetryDecision queued = decide(post, reply(429, "", "7"));
  CHECK(!queued.again);
  CHECK(queued.pause >= Duration(seconds(7)));
  CHECK(!decide(read, reply(429, "", "60")).again);  // beyond the call's deadline
  CHECK(decide(read, reply(429, "", "60")).pause >= Duration(seconds(60)));
}

TEST_CASE("the rate limit: decisions first, progress a quarter, events last") {
  TimePoint now{};
  RateRule rule(40, 40, 2);
  const auto burst = [&](CallClass c) {
    int n = 0;
    while (n < 1000 && rule.ask(c, now) == Duration(0)) ++n;
    return n;
  };
  SECTION("a burst, then the rate") {
    CHECK(burst(CallClass::kDecision) == 40);
    now += seconds(1);
    CHECK(burst(CallClass::kDecision) == 40);
    const Duration wait = rule.ask(CallClass::kDecision, now);
    CHECK(wait > Duration(0));
    CHECK(wait <= Duration(seconds(0.026)));
  }
  SECTION("progress takes at most a quarter, whatever its demand, each in its turn") {
    std::multimap<TimePoint, int> booked;  // by turn
    int at_once = 0;
    std::vector<int> order;
    for (int i = 0; i < 200; ++i) {
      const Duration wait = rule.progress_turn(false, now);
      if (wait > Duration(0))
        booked.emplace(now + wait, i);
      else
        ++at_once;
    }
    CHECK(at_once == 10);  // the burst's quarter
    const TimePoint end = now + seconds(10);
    int total = at_once;
    while (!booked.empty() && booked.begin()->first <= end) {
      now = booked.begin()->first;
      order.push_back(booked.begin()->second);
      booked.erase(booked.begin());
      CHECK(rule.progress_turn(true, now) == Duration(0));
      CHECK(rule.ask(CallClass::kProgress, now) == Duration(0));
      ++total;
    }
    CHECK(total >= 10 + 99);
    CHECK(total <= 10 + 101);
    CHECK(std::is_sorted(order.begin(), order.end()));
  }
  SECTION("a turn that comes at a bad time is booked again, and nobody waits in a call for it") {
    CHECK(rule.progress_turn(true, now) == Duration(0));
    SECTION("a decision waits") { rule.waiting(CallClass::kDecision, 1); }
    SECTION("the limit is used up") { CHECK(burst(CallClass::kDecision) == 40); }
    SECTION("enough progress is under way") {
      rule.under_way(CallClass::kProgress, 1);
      CHECK(rule.progress_turn(true, now) == Duration(0));
      rule.under_way(CallClass::kProgress, 1);
    }
    CHECK(rule.progress_turn(true, now) > Duration(0));
    for (int i = 0; i < 20; ++i) (void)rule.progress_turn(true, now);
    CHECK(rule.progress_turn(true, now) > Duration(seconds(1)));  // ten turns a second, no more
  }
  SECTION("progress and events yield to a decision that waits") {
    rule.waiting(CallClass::kDecision, 1);
    CHECK(rule.ask(CallClass::kProgress, now) > Duration(0));
    CHECK(rule.ask(CallClass::kEvent, now) > Duration(0));
    CHECK(rule.ask(CallClass::kDecision, now) == Duration(0));
    rule.waiting(CallClass::kDecision, -1);
    CHECK(rule.ask(CallClass::kProgress, now) == Duration(0));
  }
  SECTION("events leave half of the limit alone and yield to progress") {
    CHECK(burst(CallClass::kEvent) == 4);
    while (rule.ask(CallClass::kDecision, now) == Duration(0)) {
    }
    now += seconds(0.25);
    CHECK(rule.ask(CallClass::kEvent, now) > Duration(0));  // ten tokens, twenty are others'
    now += seconds(0.5);
    rule.waiting(CallClass::kProgress, 1);
    CHECK(rule.ask(CallClass::kEvent, now) > Duration(0));
    rule.waiting(CallClass::kProgress, -1);
    CHECK(rule.ask(CallClass::kEvent, now) == Duration(0));
  }
  SECTION("the lease never waits") {
    burst(CallClass::kDecision);
    CHECK(burst(CallClass::kLease) == 1000);
  }
}

}  // namespace archipelago::op::kube
