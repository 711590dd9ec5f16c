#include "operator/kube/leader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/rng.h"
#include "operator/kube/kube_metrics.h"
#include "operator/kube/lease.h"

namespace archipelago::op {
namespace {
using kube::LeaseStep;
using nlohmann::json;

constexpr double kRetryJitter = 1.2;  // at most

std::string show_seconds(Duration d) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%g", to_seconds(d));
  return text.data();
}

std::string new_identity() {
  std::array<char, 200> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::random_device device;
  std::array<char, 40> digits{};
  std::snprintf(digits.data(), digits.size(), "_%08x%08x", device(), device());
  return std::string(host.data()) + digits.data();
}

// A request that is under way when the deadline comes must be over before others may take the
// lease.
Duration call_timeout(const LeaderOptions& o) {
  return std::min<Duration>(seconds(to_seconds(o.lease - o.renew_deadline) * 0.8),
                            o.renew_deadline / 2);
}
}  // namespace

Status check_lease_times(const LeaderOptions& o) {
  const auto complain = [](const char* flag, Duration given, const std::string& allowed) {
    return fail(ErrorKind::kInvalid,
                std::string(flag) + ": " + show_seconds(given) + " given, allowed: " + allowed);
  };
  if (o.lease % std::chrono::seconds(1) != Duration(0) || o.lease < seconds(1))
    return complain("--lease-duration", o.lease, "whole seconds, at least 1");
  if (o.renew_deadline >= o.lease)
    return complain("--renew-deadline", o.renew_deadline,
                    "less than --lease-duration (" + show_seconds(o.lease) + ")");
  const Duration most = seconds(to_seconds(o.renew_deadline) / kRetryJitter);
  if (o.retry <= Duration(0) || o.retry >= most)
    return complain("--retry-period", o.retry,
                    "more than 0, less than --renew-deadline / 1.2 (" + show_seconds(most) + ")");
  return {};
}

Status check_leader_options(const LeaderOptions& o) {
  ARCH_TRY_VOID(check_lease_times(o));
  if (o.name.empty() || o.name_space.empty())
    return fail(ErrorKind::kInvalid, "the lease needs a name and a namespace");
  return {};
}

struct LeaderElector::Impl {
  Impl(KubeClient& c, const Clock& b, WriteGate& g, Logger l, LeaderOptions o,
       std::function<void(const std::string&)> when_lost, Metrics* m)
      : client(c),
        boot(b),
        gate(g),
        log(std::move(l)),
        options(std::move(o)),
        on_lost(std::move(when_lost)),
        metrics(m),
        rng(std::random_device{}()) {
    if (options.identity.empty()) options.identity = new_identity();
    gate.require_lease(call_timeout(options));
    metrics.lease_held(false);
  }

  [[nodiscard]] ObjectKey key() const { return {options.name_space, options.name}; }

  void run(const std::stop_token& stop);
  Status read();
  Status write(LeaseStep step);
  void turn();
  void set_leading(bool value);
  void release();

  KubeClient& client;
  const Clock& boot;
  WriteGate& gate;
  const Logger log;
  LeaderOptions options;
  const std::function<void(const std::string&)> on_lost;
  const kube::KubeMetrics metrics;
  Rng rng;
  // Of the elector's thread alone.
  kube::LeaseView view;
  TimePoint renewed{};
  bool held = false;
  bool lost = false;

  mutable std::mutex mutex;
  std::condition_variable_any changed;
  bool leading = false;  // guarded by mutex
  std::string holder;    // guarded by mutex
  std::jthread thread;
};

Status LeaderElector::Impl::read() {
  const auto answer = client.call_once(kube::get_lease(key()), call_timeout(options));
  if (!answer && answer.error().kind != ErrorKind::kNotFound) return fail(answer.error());
  view = kube::see(view, answer ? *answer : json(), options.lease, boot.now());
  std::lock_guard lock(mutex);
  holder = view.holder;
  return {};
}

Status LeaderElector::Impl::write(LeaseStep step) {
  const json body = kube::lease_body(view, step, options, client.clock().wall());
  const kube::Request request = step == LeaseStep::kCreate
                                    ? kube::create_lease(options.name_space, body)
                                    : kube::update_lease(key(), body);
  const TimePoint began = boot.now();
  ARCH_TRY(const json answer, client.call_once(request, call_timeout(options)));
  view = kube::see(view, answer, options.lease, boot.now());
  renewed = began;
  held = true;
  gate.open_until(began + options.renew_deadline);
  set_leading(true);
  return {};
}

void LeaderElector::Impl::set_leading(bool value) {
  {
    std::lock_guard lock(mutex);
    if (leading == value) return;
    leading = value;
    holder = value ? options.identity : holder;
  }
  metrics.lease_held(value);
  log.info(value ? "leading" : "no longer leading", {{"identity", options.identity}});
  changed.notify_all();
}

// One look. A holder renews over what it last saw; only a conflict makes it read again.
void LeaderElector::Impl::turn() {
  Status done;
  if (!held) done = read();
  if (done) {
    const LeaseStep step = kube::next_step(view, options.identity, boot.now());
    if (step != LeaseStep::kWait) done = write(step);
    if (!done && held && done.error().kind != ErrorKind::kTimeout) {
      log.warn("lease not renewed", {{"error", done.error().describe()}});
      done = read();
    }
  }
  if (!done) log.warn("lease", {{"error", done.error().describe()}});
}

void LeaderElector::Impl::run(const std::stop_token& stop) {
  while (!stop.stop_requested() && !lost) {
    // Before anything is sent: after a long stop of the process a renewal that succeeds would hide
    // that others were free to act meanwhile.
    if (held && kube::is_lost(view, options.identity, renewed, options, boot.now())) {
      lost = true;
    } else {
      turn();
      lost = held && kube::is_lost(view, options.identity, renewed, options, boot.now());
    }
    if (lost) break;
    Duration wait = seconds(to_seconds(options.retry) * rng.uniform(1.0, kRetryJitter));
    if (held)
      wait = std::clamp<Duration>(renewed + options.renew_deadline - boot.now(), Duration(0), wait);
    std::unique_lock lock(mutex);
    changed.wait_for(lock, stop, wait, [] { return false; });
  }
  if (!lost) return release();
  gate.close();
  set_leading(false);
  const std::string why = view.holder == options.identity
                              ? "the lease was not renewed within the renew deadline"
                              : "the lease is held by '" + view.holder + "'";
  log.error("leadership lost", {{"why", why}});
  if (on_lost) on_lost(why);
}

void LeaderElector::Impl::release() {
  gate.close();
  if (!held) return;
  const json body = kube::released_body(view, client.clock().wall());
  const auto answer = client.call_once(kube::update_lease(key(), body), call_timeout(options));
  if (!answer) log.warn("lease not given back", {{"error", answer.error().describe()}});
  held = false;
  set_leading(false);
}

LeaderElector::LeaderElector(KubeClient& client, const Clock& boot_clock, WriteGate& gate,
                             Logger log, LeaderOptions options,
                             std::function<void(const std::string&)> on_lost, Metrics* metrics)
    : impl_(std::make_unique<Impl>(client, boot_clock, gate, std::move(log), std::move(options),
                                   std::move(on_lost), metrics)) {}

LeaderElector::~LeaderElector() { stop(); }

void LeaderElector::start() {
  impl_->thread = std::jthread([impl = impl_.get()](std::stop_token stop) { impl->run(stop); });
}

bool LeaderElector::wait_until_leading(std::stop_token stop) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait(lock, stop, [&] { return impl_->leading; });
}

bool LeaderElector::leading() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->leading;
}

std::string LeaderElector::holder() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->holder;
}

void LeaderElector::stop() {
  impl_->thread.request_stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace archipelago::op
