#include "operator/runtime/reflector.h"

#include <condition_variable>
#include <mutex>

#include "common/base/backoff.h"
#include "operator/api/names.h"

namespace archipelago::op {
namespace {
constexpr BackoffPolicy kBackoff{seconds(0.8), seconds(30), 2.0, 0.2};

void wait_for(Duration delay, const Clock& clock, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_until(lock, stop, clock.now() + delay, [] { return false; });
}
}  // namespace

Reflector::Reflector(Cluster& cluster, Kind kind, std::string name_space, ObjectStore& store,
                     const Clock& clock, Logger log, std::function<void(const Object&)> on_change)
    : cluster_(cluster),
      kind_(kind),
      name_space_(std::move(name_space)),
      store_(store),
      clock_(clock),
      log_(std::move(log)),
      on_change_(std::move(on_change)) {}

void Reflector::start() {
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

void Reflector::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Reflector::run(std::stop_token stop) {
  Rng rng(mix64(static_cast<std::uint64_t>(kind_) + 1));
  int failures = 0;
  while (!stop.stop_requested()) {
    const TimePoint began = clock_.now();
    const Status ended = list_and_watch(stop);
    if (stop.stop_requested()) return;
    if (clock_.now() - began > seconds(120)) failures = 0;
    if (!ended) note_failure(ended.error());
    wait_for(backoff_delay(kBackoff, failures++, rng), clock_, stop);
  }
}

void Reflector::note_failure(const Error& error) {
  const bool refused = error.kind == ErrorKind::kRefused;
  const bool unknown = error.kind == ErrorKind::kNotFound;  // the resource itself was removed
  log_.warn(
      refused ? "watch forbidden: the role lacks list and watch of this kind" : "watch failed",
      {{"kind", to_string(kind_)}, {"error", error.describe()}});
  std::lock_guard lock(mutex_);
  unreadable_ = unknown ? "the resource " + std::string(plural(kind_)) +
                              " is not served; install it: " + kInstallResource
                : refused ? error.message
                          : "";
}

std::string Reflector::unreadable() const {
  std::lock_guard lock(mutex_);
  return unreadable_;
}

Status Reflector::list_and_watch(std::stop_token stop) {
  ARCH_TRY(const ObjectList list, cluster_.list(kind_, {name_space_, {}}));
  for (const Object& changed : store_.replace(list.items)) on_change_(changed);
  synced_ = true;
  {
    std::lock_guard lock(mutex_);
    unreadable_.clear();
  }
  return follow(list.resource_version, stop);
}

Status Reflector::follow(std::string version, std::stop_token stop) {
  while (!stop.stop_requested()) {
    ARCH_TRY(const auto watch, cluster_.watch(kind_, name_space_, version));
    const std::string began_at = version;
    const TimePoint began = clock_.now();
    for (bool open = true; open && !stop.stop_requested();) {
      const auto event = watch->next(clock_.now() + seconds(60), stop);
      if (!event) continue;
      if (event->type == WatchType::kGone) return {};  // list again
      if (event->type == WatchType::kEnded) {
        open = false;
        continue;
      }
      if (!event->resource_version.empty()) version = event->resource_version;
      if (!event->object) continue;
      if (store_.apply(*event)) on_change_(*event->object);
    }
    // A stream that ends at once, again and again, is an error however it is spelled.
    if (version == began_at && clock_.now() - began < seconds(1))
      return fail(ErrorKind::kUnavailable, "the watch ended at once");
  }
  return {};
}

}  // namespace archipelago::op
