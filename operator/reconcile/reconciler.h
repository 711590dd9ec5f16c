#pragma once
// One pass over one run, in this order: read -> plan -> status -> execute -> events. A charge, a
// new incarnation or an end stands in status before anything that would destroy its evidence is
// done; on conflict nothing is executed.
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "operator/api/status_change.h"
#include "operator/cluster/cluster.h"
#include "operator/plan/decision.h"
#include "operator/plan/observed.h"
#include "operator/plan/options.h"
#include "operator/reconcile/expectations.h"
#include "operator/reconcile/transitions.h"

namespace archipelago::op {

// Where a pass reads objects that are watched: a store, or in tests the cluster itself.
// Thread-safe.
class StateReader {
 public:
  virtual ~StateReader() = default;
  [[nodiscard]] virtual std::optional<Object> training(const ObjectKey& key) const = 0;
  // Controlled by that uid, in that namespace.
  [[nodiscard]] virtual std::vector<Object> pods(const std::string& name_space,
                                                 const std::string& owner_uid) const = 0;
  [[nodiscard]] virtual std::optional<Object> node(const std::string& name) const = 0;
  // A Service, ConfigMap or claim with our labels: what carries none of them is not ours, and is
  // found by the create that it refuses.
  [[nodiscard]] virtual std::optional<Object> child(Kind kind, const ObjectKey& key) const = 0;
  // Our own status write, made from version `over`: seen at once where the cache still has that
  // version. No version lies between the two, since the write would have conflicted.
  virtual void wrote(const Object& training, const std::string& over) = 0;
  // False where nodes can't be read at all (no permission): a missing one then proves nothing.
  [[nodiscard]] virtual bool nodes_known() const = 0;
};

// The outer optimizer judged changed settings and does not take them: sent again they would be
// refused again.
struct RefusedSettings {
  std::int64_t generation = 0;
  std::string message;
};

// What the poller has cached of one run.
struct PolledInput {
  std::optional<RefusedSettings> refused_settings;
  std::optional<PolledStatus> status;
  std::map<std::string, ObservedProbe> probes;  // by unit
  bool new_runs_wait = false;                   // calls are better spent on them than on progress
};

struct ReconcileOptions {
  PlanOptions plan;
  Duration progress_write_interval = seconds(10);
  Duration busy_progress_write_interval = seconds(60);  // while new runs wait for their children
  Duration settle_write_interval = seconds(2);          // pods that come up, one after the other
  std::uint64_t seed = 1;
};

enum class ReconcileResult {
  kDone,
  kGone,      // no such run (any more)
  kConflict,  // the status was stale: read again soon
  kRetry,     // something was refused or unreachable: again after a backoff
};

struct ReconcileOutcome {
  ReconcileResult result = ReconcileResult::kDone;
  std::optional<Duration> requeue;
  std::string run_uid;
  std::optional<ObservedPod> outer;        // the ready outer optimizer, to be polled
  std::vector<ObservedPod> probe_pods;     // learners whose admin port is to be asked
  std::optional<nlohmann::json> settings;  // for the outer optimizer
  TrainingStatus status;                   // as it stands now
  std::vector<Transition> transitions;     // that this pass wrote down
};

class Reconciler {
 public:
  Reconciler(Cluster& cluster, StateReader& reader, const Clock& clock, Logger log,
             ReconcileOptions options);

  // Calls for one key never overlap (work queue); for different keys they may.
  [[nodiscard]] ReconcileOutcome reconcile(const ObjectKey& key, const PolledInput& polled);

  // An event of a child came: what was created is no longer only expected. Any thread.
  void child_seen(const ObjectKey& run, Kind kind, const std::string& name);
  // A kind that can't be listed or watched: nothing is planned, but the run says why.
  [[nodiscard]] ReconcileOutcome report_blind(const ObjectKey& key, const std::string& message);

 private:
  struct Refusal {
    int count = 0;
    TimePoint again{};
    ExecutionProblem problem;
  };
  struct Memory {  // lost without harm at a restart
    std::string uid;
    std::map<std::string, Refusal>
        refused;  // creates by object name: each with a backoff of its own
    std::vector<ExecutionProblem> problems;           // of everything else
    std::vector<ExecutionProblem> template_problems;  // of the last change of a template
    std::optional<TimePoint> last_write;              // of the status
    std::optional<TimePoint> progress_turn;           // booked
    std::int64_t unwritable_generation = 0;           // whose status the server refuses
    std::int64_t refused_settings = 0;                // the generation whose refusal was told
  };
  struct Pass;

  Memory memory_of(const ObjectKey& key, const std::string& uid);
  void remember(const ObjectKey& key, Memory memory);
  [[nodiscard]] Observed observe(const Object& training, config::DecoupledTraining run,
                                 const PolledInput& polled, const Memory& memory) const;
  static void settle_settings(Pass& pass, const std::optional<RefusedSettings>& refused,
                              WallTime now);
  void act(Pass& pass);
  // How long a change of the status has to wait; zero: it is written now.
  [[nodiscard]] Duration write_delay(const Pass& pass, StatusChange change, Memory& memory) const;
  // True when the pass may go on to execute.
  [[nodiscard]] bool write_status(Pass& pass);
  void execute(Pass& pass);
  void check_templates(Pass& pass);
  void create_all(Pass& pass);
  [[nodiscard]] std::optional<ExecutionProblem> create(Pass& pass, const nlohmann::json& object);
  // nullopt: unreachable rather than refused; the pass is retried either way.
  [[nodiscard]] std::optional<ExecutionProblem> refusal(Pass& pass, const std::string& name,
                                                        const Error& error);

  Cluster& cluster_;
  StateReader& reader_;
  const Clock& clock_;
  Logger log_;
  const ReconcileOptions options_;
  Expectations expectations_;
  std::mutex mutex_;  // guards memory_
  std::map<ObjectKey, Memory> memory_;
};

}  // namespace archipelago::op
