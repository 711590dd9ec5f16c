#include "operator/local/run_record.h"

#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/local/dashboard.h"
#include "operator/local/report.h"

using namespace archipelago::op;
using nlohmann::json;

namespace {

// Two units that step for `seconds` from t0 on; `down` is one that doesn't.
struct Feeder {
  RunRecord record{2};
  double t = 0;
  double merged = 0;
  std::int64_t step = 0;
  std::map<std::string, double> busy{{"a-0", 0}, {"a-1", 0}};

  void run(double seconds, const std::string& down = "", bool outer = true) {
    for (double end = t + seconds; t < end - 1e-9;) {
      t += 0.25;
      RunSample sample;
      sample.t = t;
      sample.desired_units = 2;
      sample.outer_incarnation = 1;
      json units = json::array();
      for (auto& [name, spent] : busy) {
        UnitSample unit{
            .name = name, .datacenter = "a", .incarnation = 1, .state = IslandState::kDown};
        if (name != down) {
          spent += 0.25;
          unit.state = IslandState::kStepping;
          unit.seconds_in_steps = spent;
          unit.steps = static_cast<std::int64_t>(spent * 4);
        }
        units.push_back({{"name", name},
                         {"stepSecondsTotal", spent},
                         {"steps", static_cast<int>(spent * 4)},
                         {"exchangeSecondsTotal", spent * 0.01},
                         {"mergedRounds", 3},
                         {"recoverySeconds", {0.5}}});
        sample.units.push_back(unit);
      }
      ++step;
      merged += down.empty() ? 200 : 100;
      const json document = {
          {"globalStep", step},      {"budget", 10'000}, {"mergedTokens", merged},
          {"units", units},          {"loss", 2.5},      {"tokens", 7},
          {"meanParticipants", 1.9}, {"rounds", step},   {"runId", "r"}};
      sample.outer = outer ? &document : nullptr;
      record.observe(sample);
    }
  }
};

}  // namespace

TEST_CASE("goodput is time in steps over desired time, a dead island costs its share") {
  Feeder f;
  f.run(20);
  CHECK(*f.record.goodput() == Approx(1.0).margin(0.03));
  f.run(20, "a-1");
  CHECK(*f.record.goodput() == Approx(0.75).margin(0.03));
  CHECK(*f.record.uptime() == Approx(0.75).margin(0.03));
  CHECK(*f.record.exchange_overhead() == Approx(0.01).margin(0.001));
  // Half of the tokens merge while one of two is away.
  CHECK(*f.record.useful_goodput() == Approx(0.75).margin(0.03));
}

TEST_CASE("useful goodput has no figure without an undisturbed stretch") {
  Feeder f;
  f.run(20, "a-1");
  CHECK_FALSE(f.record.useful_goodput());
  CHECK(f.record.summary(json::object())["usefulGoodput"].is_null());
}

TEST_CASE("a learner's own word counts while the outer optimizer is away") {
  Feeder f;
  f.run(5);
  f.run(5, "", false);
  CHECK(f.record.totals("a-0").seconds_in_steps == Approx(10));
  CHECK(*f.record.goodput() == Approx(1.0).margin(0.06));
}

TEST_CASE("the timeline joins equal states and splits at changes") {
  Feeder f;
  f.run(2);
  f.run(2, "a-1");
  f.run(2);
  const auto& segments = f.record.timeline().at("a-1");
  REQUIRE(segments.size() == 3);
  CHECK(segments[1].state == IslandState::kDown);
  CHECK(segments[1].to - segments[1].from == Approx(2));
  CHECK(f.record.timeline().at("a-0").size() == 1);
}

TEST_CASE("the summary has what the documentation lists, and survives a restart") {
  Feeder f;
  f.run(6);
  const json status = json::parse(R"({"phase": "Running", "outerOptimizer": {"incarnation": 2},
    "units": [{"name": "a-0", "incarnation": 3, "restarts": 1, "disruptions": 2}]})");
  auto loaded = RunRecord::load(json::parse(f.record.save().dump()));
  REQUIRE(loaded);
  for (const json& s : {f.record.summary(status), loaded->summary(status)}) {
    for (const char* key :
         {"phase", "globalStep", "tokens", "mergedFraction", "trainLoss", "validationLoss",
          "goodput", "usefulGoodput", "uptime", "elapsedSeconds", "bytesUp", "bytesDown",
          "exchangeOverhead", "learners", "outerOptimizer"}) {
      CAPTURE(key);
      CHECK(s.contains(key));
    }
    CHECK(s["learners"][0]["incarnations"] == 3);
    CHECK(s["learners"][0]["restarts"] == 1);
    CHECK(s["learners"][0]["disruptions"] == 2);
    CHECK(s["learners"][0]["mergedRounds"] == 3);
    CHECK(s["outerOptimizer"]["incarnations"] == 2);
    CHECK(s["globalStep"] == 24);
  }
  CHECK_FALSE(RunRecord::load(
      json::parse(R"({"version": 1, "units": {"a": {"own": [[1, "x", 2, 3, 4]]}}})")));
  CHECK_FALSE(RunRecord::load(json::parse("7")));
}

TEST_CASE("metrics tolerate a torn line, a repeated step and many lines") {
  std::string text;
  for (int i = 1; i <= 10'000; ++i)
    text +=
        json({{"t", i}, {"loss", 3.0}, {"participants", 4}, {"bytesUp", 100 * i}}).dump() + "\n";
  text +=
      R"({"t": 9999, "loss": 1.5, "validationLoss": 1.25, "validationStep": 9990, "bytesUp": 999950})"
      "\n"
      R"({"t": 10000, "loss": 1.5, "validationLoss": 1.25, "validationStep": 9990, "bytesUp": 1000100})"
      "\n"
      R"({"t": 1)";
  const auto points = read_metrics(text, 100);
  CHECK(points.size() <= 103);
  CHECK(points[1].bytes_up == 100.0);
  CHECK(points.back().step == 10'000);
  CHECK(points.back().bytes_up == 150.0);
  CHECK_FALSE(points.back().validation_loss);
  const auto& validated = points[points.size() - 2];
  CHECK(validated.step == 9999);
  CHECK(*validated.validation_loss == 1.25);
  CHECK(validated.validation_step == 9990);
}

TEST_CASE("the report holds its data and can't be broken by it") {
  Feeder f;
  f.run(3);
  f.run(1, "a-1");
  std::vector<MetricPoint> metrics;
  for (int i = 1; i <= 200; ++i)
    metrics.push_back({i, 5.0 - 0.012 * i,
                       i % 20 == 0 ? std::optional(4.9 - 0.012 * i) : std::nullopt, i,
                       i % 7 ? 2.0 : 1.0, 4000.0 + i, 8000.0});
  const std::string page =
      render_report("demo", f.record.summary(json::object()), f.record, metrics,
                    {{1.0, "a-1", "</script><b>kill</b>", true}, {2.0, "", "done", false}});
  CHECK(page.find("\"@DATA@\"") == std::string::npos);
  CHECK(page.find("</script><b>") == std::string::npos);
  CHECK(page.find("http-equiv") == std::string::npos);
  CHECK(page.find("src=") == std::string::npos);  // nothing is loaded from anywhere
  if (const char* file = std::getenv("ARCHIPELAGO_REPORT_OUT")) std::ofstream(file) << page;
}

TEST_CASE("the dashboard fits its terminal and says what is going on") {
  DashboardState s;
  s.run = "quickstart";
  s.phase = "Running";
  s.elapsed_seconds = 3725;
  s.global_step = 512;
  s.budget = 1024;
  s.steps_per_second = 4.0;
  s.loss = 2.25;
  s.outer_phase = "running";
  s.datacenters = {
      {"us-east",
       true,
       {{"us-east-0", "Stepping", 1, 512, 1800, ""}, {"us-east-1", "Backoff", 3, 7, 0, "in 3 s"}}},
      {"eu-west", false, {{"eu-west-0", "Unreachable", 1, 100, 0, "NodeNotReady \x1b[2J evil"}}}};
  for (int i = 0; i < 40; ++i) s.events.push_back("event " + std::to_string(i));
  for (const int width : {20, 40, 80, 200}) {
    for (const bool color : {false, true}) {
      const auto lines = render_dashboard(s, width, 24, color);
      CHECK(lines.size() <= 24);
      for (const auto& line : lines) {
        CAPTURE(width, line);
        CHECK(columns_of(line) <= width);
      }
    }
  }
  std::string text;
  for (const auto& line : render_dashboard(s, 120, 24, false)) text += line + "\n";
  for (const char* expected : {"step 512/1024", "50%", "2:08 left", "1:02:05", "us-east-1",
                               "Backoff", "#3", "node lost", "loss 2.2500", "event 39"}) {
    CAPTURE(text, expected);
    CHECK(text.find(expected) != std::string::npos);
  }
  CHECK(text.find("event 1\n") == std::string::npos);
}
