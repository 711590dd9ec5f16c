#include "tests/cluster/outer_stub.h"

#include <algorithm>

#include "operator/api/labels.h"

namespace archipelago::test {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRecords = 1000;  // of settings and probes of a run
constexpr std::int64_t kTokensPerStep = 1024;

json unit_json(const RunningPod& pod, double steps, double running) {
  const double stepping = std::max(0.1, running);
  return {{"name", pod.unit},
          {"datacenter", pod.datacenter},
          {"incarnation", pod.incarnation},
          {"phase", "Stepping"},
          {"localStep", static_cast<std::int64_t>(steps)},
          {"stepSeconds", 0.5},
          {"tokens", static_cast<std::int64_t>(steps) * kTokensPerStep},
          {"mergedRounds", static_cast<std::int64_t>(steps)},
          {"lastHeardSeconds", 0.1},
          {"steppingSeconds", stepping},
          {"stepSecondsTotal", stepping},
          {"tokensPerSecond", 2048.0},
          {"uplinkMbps", 1.5},
          {"recoverySeconds", json::array()}};
}

http::Reply no_answer() { return http::error_reply(503, "down", "the test says so"); }

}  // namespace

void OuterStub::add_routes(http::Server& server) {
  server.route("GET", "/statusz", [this](const http::Request& r) { return status(r); });
  server.route(
      "PUT", "/v1/settings", [this](const http::Request& r) { return put_settings(r); }, 65536);
  server.route(
      "PUT", "/control/runs/{}/{}", [this](const http::Request& r) { return put_script(r); },
      65536);
  server.route("GET", "/control/runs/{}/{}",
               [this](const http::Request& r) { return get_record(r); });
}

void OuterStub::advance(Run& run) {
  const TimePoint now = clock_.now();
  if (run.begun) run.steps += to_seconds(now - run.at) * run.script.value("stepsPerSecond", 2.0);
  run.begun = true;
  run.at = now;
}

http::Reply OuterStub::status(const http::Request& request) {
  const std::string uid(request.header("x-archipelago-run-uid"));
  const std::string pod(request.header("x-archipelago-pod"));
  const std::lock_guard lock(mutex_);
  Run& run = runs_[std::string(request.header("x-archipelago-run"))];
  for (const RunningPod& known : table_.of_run(uid)) {
    if (known.key.name != pod) continue;
    if (known.role == op::kRoleLearner) {
      if (run.probes.size() < kMaxRecords) run.probes.push_back(pod);
      const std::string phase = run.script.value("probe", "Stepping");
      return phase.empty() ? no_answer() : http::Reply::json(json{{"phase", phase}}.dump());
    }
    ++run.polls;
    if (run.script.value("down", false)) return no_answer();
    advance(run);
    return http::Reply::json(document(uid, run, known.incarnation).dump());
  }
  return no_answer();
}

json OuterStub::document(const std::string& run_uid, Run& run, std::int64_t incarnation) {
  const auto steps = static_cast<std::int64_t>(run.steps);
  json units = json::array();
  const json scripts = run.script.value("units", json::object());
  for (const RunningPod& pod : table_.of_run(run_uid)) {
    if (pod.role != op::kRoleLearner) continue;
    json unit = unit_json(pod, run.steps, to_seconds(clock_.now() - pod.since));
    if (scripts.contains(pod.unit)) unit.merge_patch(scripts[pod.unit]);
    if (!unit.value("absent", false)) units.push_back(std::move(unit));
  }
  json out{
      {"phase", "running"},
      {"runId", run_uid},
      {"epoch", incarnation},
      {"globalStep", steps},
      {"budget", 1'000'000},
      {"tokens", steps * kTokensPerStep},
      {"loss", 2.5},
      {"mergedFraction", 0.97},
      {"lastCheckpointStep", steps / 100 * 100},
      {"rounds", steps},
      {"meanParticipants", static_cast<double>(units.size())},
      {"settingsGeneration", run.settings.empty() ? 0 : run.settings.back().value("generation", 0)},
      {"conditions", json::array()},
      {"units", std::move(units)},
      {"fenced", json::array()}};
  out.merge_patch(run.script.value("document", json::object()));
  return out;
}

http::Reply OuterStub::put_settings(const http::Request& request) {
  json settings = json::parse(request.body, nullptr, false);
  if (!settings.is_object()) return http::error_reply(400, "invalid", "no JSON object");
  const std::lock_guard lock(mutex_);
  Run& run = runs_[std::string(request.header("x-archipelago-run"))];
  if (run.script.value("down", false)) return no_answer();
  if (run.settings.size() < kMaxRecords) run.settings.push_back(settings);
  return http::Reply::json("{}");
}

http::Reply OuterStub::put_script(const http::Request& request) {
  json script = json::parse(request.body, nullptr, false);
  if (!script.is_object()) return http::error_reply(400, "invalid", "no JSON object");
  const std::lock_guard lock(mutex_);
  Run& run = runs_[request.args[0] + "/" + request.args[1]];
  advance(run);
  run.script = std::move(script);
  return http::Reply::json("{}");
}

http::Reply OuterStub::get_record(const http::Request& request) {
  const std::lock_guard lock(mutex_);
  const Run& run = runs_[request.args[0] + "/" + request.args[1]];
  return http::Reply::json(json{
      {"polls", run.polls},
      {"steps", run.steps},
      {"settings", run.settings},
      {"probes", run.probes}}.dump());
}

}  // namespace archipelago::test
