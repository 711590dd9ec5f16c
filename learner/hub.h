#pragma once
// Where the training thread and the exchange threads meet: LearnerCore under one mutex, the bases,
// the two host buffers, and small mailboxes. No call waits for the network; the longest holds the
// mutex for microseconds.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/diloco/event_tape.h"
#include "common/diloco/learner_core.h"
#include "learner/exit_code.h"
#include "learner/fragments.h"

namespace archipelago::learner {

// What the training thread did so far, told after each step.
struct LoopStats {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::int64_t skipped = 0;
  double seconds_in_steps = 0;
  double exchange_seconds = 0;
  double step_seconds = 0;  // of the last step
  double loss = diloco::kNoValue;
  double gradient_norm = diloco::kNoValue;
  double learning_rate = 0;
  std::string pause_reason;  // empty while stepping
};

struct HubStatus {  // what the admin port shows
  diloco::LearnerPhase phase = diloco::LearnerPhase::kRecovering;
  diloco::RunPhase run_phase = diloco::RunPhase::kWaiting;
  std::int64_t epoch = 0;
  GlobalStep committed;
  LoopStats loop;
  double step_seconds = 0;  // mean of the last 8
  std::int64_t merged = 0, excluded = 0;
  bool connected = false;
};

struct Donation {
  std::string id;
  std::vector<std::byte> state;
  std::string donor;  // received ones: whose state, and as of which of its steps
  Incarnation incarnation;
  LocalStep local_step;
};

class Hub {
 public:
  Hub(diloco::LearnerConfig config, const FragmentMap& fragments, const Clock& clock);

  // One call into the core under the mutex; wakes everybody who waits.
  template <class Body>
  auto with_core(Body body) {
    const std::lock_guard lock(mutex_);
    struct Wake {
      Hub* hub;
      ~Wake() { hub->wake(); }
    } wake{this};
    return body(core_);
  }
  // The same without waking anybody.
  template <class Body>
  auto look_mutable(Body body) {
    const std::lock_guard lock(mutex_);
    return body(core_);
  }
  template <class Body>
  auto look(Body body) const {
    const std::lock_guard lock(mutex_);
    return body(core_);
  }

  // Blocks until `ready(core)` or the time is up or stop; ready is evaluated under the mutex.
  // False: not ready.
  bool wait(const std::stop_token& stop, Duration at_most,
            const std::function<bool(diloco::LearnerCore&)>& ready);
  // Changes whenever anything happened; with wait_change a thread sleeps until then.
  [[nodiscard]] std::int64_t generation() const;
  void wait_change(const std::stop_token& stop, std::int64_t seen, Duration at_most);

  [[nodiscard]] BaseBank& bases() { return bases_; }
  [[nodiscard]] std::span<float> buffer(std::int32_t index, std::int64_t elements);

  // The process must end (fenced, refused, ...); the first verdict stays.
  void end(ExitCode code, std::string why);
  [[nodiscard]] std::optional<ExitCode> ended() const;
  [[nodiscard]] std::string why() const;

  // The first learner initialises: the exchange asks, the training thread delivers the whole flat
  // buffer once.
  void request_seed();
  [[nodiscard]] bool seed_requested() const;
  void deliver_seed(std::vector<float> flat);
  [[nodiscard]] const std::vector<float>* seed_values()
      const;  // null until delivered; then constant until drop_seed
  void drop_seed();

  void offer_donation(Donation donation);  // training thread; replaces one not yet sent
  [[nodiscard]] std::optional<Donation> take_donation();  // exchange
  [[nodiscard]] bool has_donation() const;
  void deliver_inner_state(Donation received);               // exchange
  [[nodiscard]] std::optional<Donation> take_inner_state();  // training thread
  [[nodiscard]] bool has_inner_state() const;

  // The event tape (docs/tape.md): the training thread records in the order in which it acts, the
  // exchange sends.
  void record(diloco::tape::LearnerEvent event);
  [[nodiscard]] diloco::tape::Batch unwritten_events(std::size_t at_most) const;
  void events_written(std::int64_t upto);

  void set_connected(bool connected);
  void set_stats(const LoopStats& stats);
  [[nodiscard]] HubStatus status() const;

 private:
  void wake();  // mutex held

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::int64_t generation_ = 0;
  diloco::LearnerCore core_;
  BaseBank bases_;
  std::vector<std::vector<float>> buffers_;  // each belongs to whom the core gave it
  std::optional<ExitCode> end_;
  std::string why_;
  bool seed_requested_ = false;
  std::optional<std::vector<float>> seed_;
  std::optional<Donation> donation_, received_;
  std::string unit_;
  Incarnation incarnation_;
  diloco::tape::Log tape_;
  bool connected_ = false;
  LoopStats stats_;
};

}  // namespace archipelago::learner
