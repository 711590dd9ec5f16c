#include "operator/local/chaos.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace archipelago;
using namespace archipelago::op;
using nlohmann::json;

namespace {
const ChaosNames kNames{{"us-east-0", "us-east-1", "eu-west-0"}, {"us-east", "eu-west"}};

ChaosSchedule schedule(const char* text) {
  auto parsed = ChaosSchedule::parse(json::parse(text), kNames);
  if (!parsed) FAIL(parsed.error().message);
  return *parsed;
}
ChaosView at(std::int64_t step, std::optional<double> seconds,
             std::vector<std::string> live = {"us-east-0"}) {
  return {step, seconds, std::move(live)};
}
}  // namespace

TEST_CASE("events are due once, at their step or time") {
  auto chaos = schedule(R"({"events": [
    {"atStep": 10, "action": "kill", "target": "us-east-0"},
    {"atSeconds": 5, "action": "slow", "target": "eu-west-0", "factor": 2.5, "seconds": 3},
    {"atStep": 20, "action": "lose", "datacenter": "eu-west", "seconds": 4},
    {"atStep": 30, "action": "kill", "target": "outer-optimizer"}]})");
  CHECK(chaos.due(at(9, std::nullopt)).empty());
  auto first = chaos.due(at(10, 1.0));
  REQUIRE(first.size() == 1);
  CHECK(first[0].kind == ChaosKind::kKill);
  CHECK(first[0].target == "us-east-0");
  CHECK(chaos.due(at(12, 4.9)).empty());
  auto second = chaos.due(at(25, 5.0));
  REQUIRE(second.size() == 2);
  CHECK(second[0].factor == 2.5);
  CHECK(second[1].datacenter == "eu-west");
  CHECK(chaos.due(at(40, 6.0))[0].target == kChaosOuterOptimizer);
  CHECK(chaos.remaining() == 0);
}

TEST_CASE("random targets come from the live units, by the seed") {
  const char* text = R"({"seed": 3, "events": [{"atStep": 1, "action": "kill", "target": "random"},
                                               {"atStep": 2, "action": "evict", "target": "random"}]})";
  auto chaos = schedule(text);
  CHECK(chaos.due(at(1, 0.0, {})).empty());  // nobody lives: it stays due
  const std::vector<std::string> live{"eu-west-0", "us-east-0", "us-east-1"};
  auto a = chaos.due(at(2, 1.0, live));
  REQUIRE(a.size() == 2);
  auto again = schedule(text);
  auto b = again.due(at(2, 1.0, live));
  CHECK(a[0].target == b[0].target);
  CHECK(a[1].target == b[1].target);
}

TEST_CASE("rates are drawn from their seed and end") {
  auto five = schedule(
      R"({"events": [{"rate": {"count": 5, "durationSeconds": 120, "startSeconds": 10, "seed": 4},
                                       "action": "kill", "target": "random"}]})");
  REQUIRE(five.events().size() == 5);
  for (const auto& e : five.events()) {
    CHECK(*e.at_seconds >= 10);
    CHECK(*e.at_seconds <= 130);
  }
  auto same = schedule(
      R"({"events": [{"rate": {"count": 5, "durationSeconds": 120, "startSeconds": 10, "seed": 4},
                                       "action": "kill", "target": "random"}]})");
  CHECK(*same.events()[2].at_seconds == *five.events()[2].at_seconds);
  auto poisson = schedule(R"({"events": [{"rate": {"everySeconds": 1, "durationSeconds": 1000},
                                          "action": "kill", "target": "random"}]})");
  // Poisson with mean 1000: seven standard deviations on either side.
  CHECK(poisson.events().size() > 780);
  CHECK(poisson.events().size() < 1220);
}

TEST_CASE("a resumed run does not repeat what its steps have passed") {
  auto chaos = schedule(R"({"events": [{"atStep": 10, "action": "kill", "target": "us-east-0"},
                                       {"atSeconds": 7, "action": "kill", "target": "us-east-0"},
                                       {"atStep": 90, "action": "kill", "target": "us-east-0"}]})");
  chaos.skip_until(50, 8.0);
  CHECK(chaos.due(at(60, 9.0)).empty());
  CHECK(chaos.due(at(90, 9.0)).size() == 1);
}

TEST_CASE("every problem is named at once") {
  auto parsed = ChaosSchedule::parse(json::parse(R"({"sed": 1, "events": [
    {"atStep": -1, "action": "kill", "target": "us-east-0"},
    {"action": "kill", "target": "us-east-0"},
    {"atStep": 1, "atSeconds": 2, "action": "kill", "target": "us-east-0"},
    {"atStep": 1, "action": "explode"},
    {"atStep": 1, "action": "kill", "target": "mars-0"},
    {"atStep": 1, "action": "slow", "target": "us-east-0"},
    {"atStep": 1, "action": "lose", "datacenter": "moon", "seconds": 5},
    {"atStep": 1, "action": "evict", "target": "outer-optimizer"},
    {"rate": {"everySeconds": 3}, "action": "kill", "target": "random"},
    7]})"),
                                     kNames);
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().kind == ErrorKind::kInvalid);
  const std::string& text = parsed.error().message;
  for (const char* expected :
       {"chaos.sed: unknown field", "chaos.events[0].atStep: given -1",
        "chaos.events[1]: give exactly one", "chaos.events[2]: give exactly one",
        "chaos.events[3].action: given \"explode\"", "chaos.events[4].target: given \"mars-0\"",
        "chaos.events[5].factor: missing", "chaos.events[5].seconds: missing",
        "chaos.events[6].datacenter: given \"moon\"", "chaos.events[7].action",
        "chaos.events[8].rate: give count", "chaos.events[9]: expected a mapping"}) {
    CAPTURE(text, expected);
    CHECK(text.find(expected) != std::string::npos);
  }
}
