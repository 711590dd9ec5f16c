#include "operator/local/prober.h"

#include <algorithm>

#include "common/http/client.h"

namespace archipelago::op {

namespace {
// Until it was ready once a pod is asked more often than its period: a start should not wait for
// the next full second.
constexpr double kStartPeriod = 0.1;
constexpr double kTick = 0.05;
}  // namespace

Prober::Prober(const PodLaunch& launch) : pod_grace_(launch.grace) {
  const TimePoint now = SystemClock().now();
  const auto start = [&](const std::optional<Probe>& probe) -> std::optional<Check> {
    if (!probe) return std::nullopt;
    return Check{*probe, now, now + probe->initial_delay, 0};
  };
  startup_ = start(launch.startup);
  liveness_ = start(launch.liveness);
  readiness_ = start(launch.readiness);
  verdict_.ready = !readiness_ && !startup_;
  if (startup_ || liveness_ || readiness_)
    thread_ = std::jthread([this](std::stop_token stop) { loop(stop); });
}

Prober::~Prober() {
  if (thread_.joinable()) thread_.request_stop();
}

ProbeVerdict Prober::verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_;
}

bool Prober::ask(const Probe& probe, std::string* why) {
  http::ClientOptions options;
  options.server = {probe.host, probe.port};
  options.connect_timeout = probe.timeout;
  options.io_timeout = probe.timeout;
  options.total_timeout = probe.timeout;
  http::Client client(options);
  auto reply = client.request("GET", probe.path);
  if (!reply) {
    *why = reply.error().message;
    return false;
  }
  if (reply->status >= 200 && reply->status < 400) return true;
  *why = "HTTP probe failed with statuscode: " + std::to_string(reply->status);
  return false;
}

void Prober::declare_dead(const Check& check, const char* kind, const std::string& why) {
  std::lock_guard lock(mutex_);
  verdict_.dead = true;
  verdict_.ready = false;
  verdict_.message =
      std::string(kind) + " probe failed " + std::to_string(check.failures) + " times: " + why;
  verdict_.grace = check.probe.termination_grace.value_or(pod_grace_);
}

void Prober::run_startup(TimePoint now) {
  if (!startup_ || now < startup_->next) return;
  startup_->next = now + std::min(startup_->probe.period, seconds(kStartPeriod));
  std::string why;
  if (!ask(startup_->probe, &why)) {
    // It is asked more often than its period, but has as much time.
    ++startup_->failures;
    if (now - startup_->since >= startup_->probe.period * startup_->probe.failure_threshold)
      declare_dead(*startup_, "Startup", why);
    return;
  }
  startup_.reset();
  if (liveness_) liveness_->next = std::max(liveness_->next, now + liveness_->probe.period);
  if (!readiness_) {
    std::lock_guard lock(mutex_);
    verdict_.ready = true;
  }
}

void Prober::run_liveness(TimePoint now) {
  if (startup_ || !liveness_ || now < liveness_->next) return;
  liveness_->next = now + liveness_->probe.period;
  std::string why;
  if (ask(liveness_->probe, &why)) {
    liveness_->failures = 0;
  } else if (++liveness_->failures >= liveness_->probe.failure_threshold) {
    declare_dead(*liveness_, "Liveness", why);
  }
}

void Prober::run_readiness(TimePoint now) {
  if (startup_ || !readiness_ || now < readiness_->next) return;
  std::string why;
  const bool ok = ask(readiness_->probe, &why);
  readiness_->failures = ok ? 0 : readiness_->failures + 1;
  std::lock_guard lock(mutex_);
  if (ok)
    verdict_.ready = true;
  else if (readiness_->failures >= readiness_->probe.failure_threshold)
    verdict_.ready = false;
  readiness_->next =
      now + (verdict_.ready ? readiness_->probe.period
                            : std::min(readiness_->probe.period, seconds(kStartPeriod)));
}

void Prober::loop(std::stop_token stop) {
  const SystemClock clock;
  while (!stop.stop_requested() && !verdict().dead) {
    run_startup(clock.now());
    run_liveness(clock.now());
    run_readiness(clock.now());
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, stop, seconds(kTick), [] { return false; });
  }
}

}  // namespace archipelago::op
