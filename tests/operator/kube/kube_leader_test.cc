// What the operator says and who it is: events, the lease, the write gate, discovery.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/kube/discovery.h"
#include "operator/kube/event_recorder.h"
#include "operator/kube/lease.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("events: one series a reason within ten minutes") {
  EventSeries series(8, 1);
  TimePoint now{};
  EventRecord e{Kind::kTraining, "team",  "r",        "u",     true,
                "UnitFailed",    "first", WallTime{}, "east-0"};
  REQUIRE(series.add(e, now));
  const auto first = series.take(now);
  REQUIRE(first);
  CHECK(first->count == 1);
  CHECK(!series.take(now));
  for (int i = 0; i < 100; ++i) REQUIRE(series.add(e, now));
  CHECK(!series.take(now));
  now += seconds(10);
  const auto again = series.take(now);
  REQUIRE(again);
  CHECK(again->count == 101);
  CHECK(again->name == first->name);
  EventRecord other = e;
  other.unit = "east-1";
  REQUIRE(series.add(other, now));
  CHECK(series.take(now)->name != first->name);
  now += seconds(600);
  REQUIRE(series.add(e, now));
  const auto later = series.take(now);
  REQUIRE(later);
  CHECK(later->count == 1);
  CHECK(later->name != first->name);
  SECTION("bounded") {
    int taken = 0;
    for (int i = 0; i < 100; ++i) {
      e.reason = "R" + std::to_string(i);
      taken += series.add(e, now) ? 1 : 0;
    }
    CHECK(taken == 8);
    int written = 0;
    while (series.take(now)) ++written;
    CHECK(written == 8);
    CHECK(!series.next_due());
  }
}

TEST_CASE("an event's body is what the API accepts") {
  EventRecord e{Kind::kNode, "",       std::string(300, 'n'),  "u",
                false,       "Reason", std::string(3000, 'x'), WallTime{},
                ""};
  const json body = event_body({e, "n.1", 1}, "archipelago-operator", std::string(300, 'h'));
  CHECK(body["metadata"]["namespace"] == "default");
  CHECK(body["type"] == "Normal");
  CHECK(body["note"].get<std::string>().size() <= 1024);
  CHECK(body["reportingInstance"].get<std::string>().size() <= 128);
  CHECK(body["eventTime"] == "1970-01-01T00:00:00.000000Z");
  CHECK(series_patch({e, "n.1", 1})["series"]["count"] == 2);  // the API allows no smaller one
}

TEST_CASE("who leads") {
  LeaderOptions o;
  o.identity = "me";
  const auto lease = [](const json& spec) {
    return json{{"metadata", {{"uid", "u"}, {"resourceVersion", "1"}}}, {"spec", spec}};
  };
  TimePoint now{};
  const auto look = [&](const LeaseView& v, const json& read) {
    return see(v, read, o.lease, now);
  };
  LeaseView view = look({}, json());
  CHECK(next_step(view, "me", now) == LeaseStep::kCreate);

  // An hour in the past or the future: only when we saw it counts, with the duration that it names.
  for (const char* time : {"1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00Z", "", "junk"}) {
    now = TimePoint{};
    const json theirs =
        lease({{"holderIdentity", "they"}, {"leaseDurationSeconds", 60}, {"renewTime", time}});
    view = look({}, theirs);
    CHECK(next_step(view, "me", now) == LeaseStep::kWait);
    now += seconds(59);
    view = look(view, theirs);
    CHECK(next_step(view, "me", now) == LeaseStep::kWait);
    now += seconds(1);
    CHECK(next_step(look(view, theirs), "me", now) == LeaseStep::kTake);
    json renewed = theirs;
    renewed["spec"]["renewTime"] = "2026-01-01T00:00:00.000001Z";
    CHECK(next_step(look(view, renewed), "me", now) == LeaseStep::kWait);
    json touched = theirs;  // by somebody's annotation: no renewal
    touched["metadata"]["resourceVersion"] = "2";
    CHECK(next_step(look(view, touched), "me", now) == LeaseStep::kTake);
  }
  for (const json& spec : {json{{"holderIdentity", "they"}},
                           json{{"holderIdentity", "they"}, {"leaseDurationSeconds", -1}},
                           json{{"holderIdentity", "they"}, {"leaseDurationSeconds", "x"}}})
    CHECK(look({}, lease(spec)).duration == o.lease);
  CHECK(next_step(look({}, lease({{"holderIdentity", ""}})), "me", now) == LeaseStep::kTake);
  CHECK(next_step(look({}, lease(nullptr)), "me", now) == LeaseStep::kTake);
  CHECK(next_step(look({}, lease({{"holderIdentity", "me"}})), "me", now) == LeaseStep::kRenew);

  view = look({}, lease({{"holderIdentity", "they"}, {"leaseTransitions", 4}, {"foreign", 1}}));
  const json taken = lease_body(view, LeaseStep::kTake, o, WallTime{});
  CHECK(taken["spec"]["holderIdentity"] == "me");
  CHECK(taken["spec"]["leaseTransitions"] == 5);
  CHECK(taken["spec"]["renewTime"] == "1970-01-01T00:00:00.000000Z");
  CHECK(taken["spec"]["foreign"] == 1);
  CHECK(taken["metadata"]["resourceVersion"] == "1");
  CHECK(lease_body(look({}, taken), LeaseStep::kRenew, o, WallTime{})["spec"]["leaseTransitions"] ==
        5);
  CHECK(released_body(look({}, taken), WallTime{})["spec"]["holderIdentity"] == "");

  view = look({}, taken);
  const TimePoint renewed = now;
  CHECK(!is_lost(view, "me", renewed, o, renewed + seconds(9.9)));
  CHECK(is_lost(view, "me", renewed, o, renewed + seconds(10)));
  CHECK(is_lost(look({}, lease({{"holderIdentity", "they"}})), "me", renewed, o, renewed));
}

TEST_CASE("leader options are checked") {
  LeaderOptions good;
  CHECK(check_leader_options(good));
  const auto with = [&](double lease, double renew, double retry) {
    LeaderOptions o = good;
    o.lease = seconds(lease);
    o.renew_deadline = seconds(renew);
    o.retry = seconds(retry);
    return check_leader_options(o).has_value();
  };
  CHECK(with(4, 3, 1));
  CHECK(!with(10, 10, 2));
  CHECK(!with(15, 10, 9));
  CHECK(!with(15.5, 10, 2));
  CHECK(!with(15, 10, 0));
}

TEST_CASE("the write gate") {
  ManualClock boot;
  boot.advance(seconds(1000));
  std::vector<std::string> said;
  WriteGate gate(boot, [&](const std::string& why) { said.push_back(why); });
  CHECK(gate.check("create pods"));  // no leader election
  gate.require_lease(seconds(4));
  CHECK(!gate.open());
  CHECK(!gate.check("create pods"));
  REQUIRE(said.size() == 1);
  CHECK(has(said[0], "create pods"));
  gate.open_until(boot.now() + seconds(10));
  CHECK(gate.check("x"));
  boot.advance(seconds(9.999));
  CHECK(gate.check("x"));
  boot.advance(seconds(0.001));
  CHECK(!gate.check("x"));
  gate.open_until(boot.now() + seconds(10));
  CHECK(gate.check("x"));
  gate.close();
  CHECK(!gate.check("x"));
}

TEST_CASE("discovery says what to do") {
  const json ours{{"resources", json::array({{{"name", "decoupledtrainings"}},
                                             {{"name", "decoupledtrainings/status"}}})}};
  const Result<json> none = fail(ErrorKind::kNotFound, "");
  CHECK(read_discovery(ours, none).served == Served::kYes);
  const Discovery missing = read_discovery(none, none);
  CHECK(missing.served == Served::kNoResource);
  CHECK(has(missing.message, "kubectl apply"));
  const Discovery other =
      read_discovery(none, json{{"versions", json::array({{{"version", "v1"}}})}});
  CHECK(other.served == Served::kNoVersion);
  CHECK(has(other.message, "served: v1"));
  CHECK(read_discovery(json{{"resources", json::array({{{"name", "decoupledtrainings"}}})}}, none)
            .served == Served::kNoVersion);
  CHECK(read_discovery(json::object(), none).served == Served::kNoResource);
  CHECK(read_discovery(fail(ErrorKind::kUnavailable, "down"), none).served == Served::kUnknown);
  CHECK(read_discovery(fail(ErrorKind::kRefused, "403"), none).served == Served::kUnknown);
}

}  // namespace archipelago::op::kube
