#pragma once
// Asks outer optimizers for their status and silent learners for their phase, on its own threads,
// into a cache; a new answer enqueues the run. Also carries changed settings. Reconcile never waits
// for a daemon.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "operator/reconcile/reconciler.h"
#include "operator/runtime/outer_status_source.h"

namespace archipelago::op {

struct PollerOptions {
  Duration interval = seconds(10);  // jittered by a fifth
  Duration deadline = seconds(2);
  int threads = 2;
  std::uint64_t seed = 1;
};

class StatusPoller {
 public:
  StatusPoller(OuterStatusSource& source, const Clock& clock, Logger log, PollerOptions options,
               std::function<void(const ObjectKey&)> enqueue);
  ~StatusPoller();
  StatusPoller(const StatusPoller&) = delete;
  StatusPoller& operator=(const StatusPoller&) = delete;

  void start();
  void stop();  // idempotent
  // The ready outer optimizer of a run; a new pod is asked at once. nullopt: none is ready, the
  // cache stays.
  void follow(const ObjectKey& run, const std::string& run_uid,
              const std::optional<PodEndpoint>& outer);
  // Something comes up, and `what` names it: asked after a second, then after two, four, ... up to
  // the interval; once for each `what`.
  void hurry(const ObjectKey& run, const std::string& what);
  void probe(const ObjectKey& run, const std::string& unit, const PodEndpoint& learner);
  void send_settings(const ObjectKey& run, const nlohmann::json& settings);
  void forget(const ObjectKey& run);
  [[nodiscard]] PolledInput input(const ObjectKey& run, const std::string& run_uid) const;

 private:
  struct Run {
    std::string uid;
    std::optional<PodEndpoint> outer;
    TimePoint next_poll{};
    bool polling = false;
    std::string hurried_for;
    Duration hurry{};  // until the next poll; zero: the interval
    PolledInput cache;
    std::map<std::string, PodEndpoint> wanted_probes;  // by unit
    std::optional<nlohmann::json> settings;
    std::string last_settings;  // pod uid and generation of the last attempt
    TimePoint settings_again{};
    bool silent = false;  // for the log: said once per change
  };
  struct Task {
    enum class What { kPoll, kProbe, kSettings } what = What::kPoll;
    ObjectKey run;
    PodEndpoint pod;
    std::string unit;
    nlohmann::json settings;
  };

  void work(std::stop_token stop);
  [[nodiscard]] std::optional<Task> take_due(TimePoint now, TimePoint* next);  // with the lock
  void perform(const Task& task);
  void poll(const Task& task);
  void probe_now(const Task& task);
  void put_settings(const Task& task);

  OuterStatusSource& source_;
  const Clock& clock_;
  Logger log_;
  const PollerOptions options_;
  std::function<void(const ObjectKey&)> enqueue_;
  mutable std::mutex mutex_;  // guards everything below but the threads
  std::condition_variable_any changed_;
  std::uint64_t changes_ = 0;
  Rng rng_;
  std::map<ObjectKey, Run> runs_;
  std::vector<std::jthread> threads_;
};

}  // namespace archipelago::op
