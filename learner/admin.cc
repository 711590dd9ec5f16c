#include "learner/admin.h"

#include <cmath>

#include <nlohmann/json.hpp>
#include <prometheus/gauge.h>

namespace archipelago::learner {
namespace {

nlohmann::json number(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

http::ServerOptions admin_options(http::Endpoint listen) {
  http::ServerOptions options;
  options.listen = std::move(listen);
  options.threads = 2;
  options.max_connections = 64;
  options.stop_timeout = seconds(0.5);
  return options;
}

}  // namespace

std::string phase_name(const HubStatus& status) {
  if (status.run_phase == diloco::RunPhase::kFinished) return "Finished";
  switch (status.phase) {
    case diloco::LearnerPhase::kRecovering:
      return "Recovering";
    case diloco::LearnerPhase::kStepping:
      return "Stepping";
    case diloco::LearnerPhase::kWaiting:
      return "Waiting";
    case diloco::LearnerPhase::kValidating:
      return "Validating";
  }
  return "Recovering";
}

std::string status_json(const Identity& identity, const HubStatus& status,
                        const ExchangeCounters& counters) {
  const LoopStats& loop = status.loop;
  const double per_step =
      loop.steps > 0 ? static_cast<double>(loop.tokens) / static_cast<double>(loop.steps) : 0;
  const nlohmann::ordered_json document = {
      {"unit", identity.unit},
      {"datacenter", identity.datacenter},
      {"incarnation", identity.incarnation.value},
      {"runId", identity.run_id},
      {"phase", phase_name(status)},
      {"reason", loop.pause_reason},
      {"connected", status.connected},
      {"epoch", status.epoch},
      {"globalStep", status.committed.value},
      {"localStep", loop.steps},
      {"steps", loop.steps},
      {"tokens", loop.tokens},
      {"loss", number(loop.loss)},
      {"gradientNorm", number(loop.gradient_norm)},
      {"learningRate", loop.learning_rate},
      {"stepSeconds", status.step_seconds},
      {"tokensPerSecond", status.step_seconds > 0 ? per_step / status.step_seconds : 0.0},
      {"stepSecondsTotal", loop.seconds_in_steps},
      {"exchangeSecondsTotal", loop.exchange_seconds},
      {"exchangeOverhead",
       loop.seconds_in_steps > 0 ? loop.exchange_seconds / loop.seconds_in_steps : 0.0},
      {"skippedSteps", loop.skipped},
      {"merged", status.merged},
      {"excluded", status.excluded},
      {"bytesUp", counters.bytes_up.load()},
      {"bytesDown", counters.bytes_down.load()},
  };
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Admin::Admin(http::Endpoint listen, Identity identity, const Hub& hub,
             const ExchangeCounters& counters, Logger log)
    : identity_(std::move(identity)),
      hub_(hub),
      counters_(counters),
      server_(admin_options(std::move(listen)), std::move(log)) {
  server_.route("GET", "/healthz", [](const http::Request&) { return http::Reply::text("ok\n"); });
  server_.route("GET", "/readyz", [this](const http::Request&) {
    const HubStatus status = hub_.status();
    const bool ready = status.phase != diloco::LearnerPhase::kRecovering;
    return http::Reply::text(ready ? "ok\n" : "recovering\n", ready ? 200 : 503);
  });
  server_.route("GET", "/statusz", [this](const http::Request&) {
    return http::Reply::json(status_json(identity_, hub_.status(), counters_));
  });
  server_.route("GET", "/metrics", [this](const http::Request&) {
    refresh_metrics();
    return http::Reply::text(metrics_.render());
  });
  refresh_metrics();  // every series exists from the start
}

Status Admin::start() { return server_.start(); }

void Admin::refresh_metrics() {
  const HubStatus status = hub_.status();
  const auto set = [&](const char* name, const char* help, double value,
                       const Metrics::Labels& labels = {}) {
    metrics_.gauge(std::string("archipelago_learner_") + name, help, labels)
        .Set(std::isfinite(value) ? value : 0);
  };
  const auto count = [](std::uint64_t value) { return static_cast<double>(value); };
  set("steps_total", "inner steps of this incarnation", static_cast<double>(status.loop.steps));
  set("tokens_total", "tokens trained by this incarnation",
      static_cast<double>(status.loop.tokens));
  set("skipped_steps_total", "steps whose gradient was not finite",
      static_cast<double>(status.loop.skipped));
  set("step_seconds", "mean of the last 8 inner steps", status.step_seconds);
  set("step_seconds_total", "seconds in completed inner steps", status.loop.seconds_in_steps);
  set("exchange_seconds_total", "seconds of the training thread spent on the exchange",
      status.loop.exchange_seconds);
  set("loss", "of the last step, nats per token", status.loop.loss);
  set("global_step", "highest committed global step heard of",
      static_cast<double>(status.committed.value));
  set("connected", "1 while the outer optimizer answers", status.connected ? 1 : 0);
  set("fragment_bytes_total", "bytes of fragments", count(counters_.bytes_up),
      {{"direction", "up"}});
  set("fragment_bytes_total", "bytes of fragments", count(counters_.bytes_down),
      {{"direction", "down"}});
  set("snapshots_total", "contributions by outcome", static_cast<double>(status.merged),
      {{"result", "merged"}});
  set("snapshots_total", "contributions by outcome", static_cast<double>(status.excluded),
      {{"result", "excluded"}});
  set("transfers_total", "transfers by result", count(counters_.uploads),
      {{"direction", "up"}, {"result", "ok"}});
  set("transfers_total", "transfers by result", count(counters_.uploads_failed),
      {{"direction", "up"}, {"result", "failed"}});
  set("transfers_total", "transfers by result", count(counters_.fetches),
      {{"direction", "down"}, {"result", "ok"}});
  set("transfers_total", "transfers by result", count(counters_.fetches_failed),
      {{"direction", "down"}, {"result", "failed"}});
}

}  // namespace archipelago::learner
