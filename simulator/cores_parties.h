#pragma once
// Inside of cores_world: the learners, the links and the queue. Private to the simulator.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "common/diloco/learner_core.h"
#include "common/diloco/schedule.h"
#include "simulator/cores_world.h"

namespace archipelago::simulator {

enum class CoresEvent {
  kJoin,
  kHello,
  kReport,
  kReply,
  kStepEnd,
  kResume,  // reconfiguration is over
  kUploadHalf,
  kUploadEnd,
  kFetchEnd,
  kRelayReady,
  kStateArrived,
  kMerged,
  kBeat,
  kTick,
};

struct CoresLearner {
  CoresLearner(int slices, Rng random) : pool(slices), rng(random) {}
  SlicePool pool;
  Rng rng;
  diloco::UnitKey who;
  std::int64_t life = 0;                      // events of an earlier process are dropped
  std::unique_ptr<diloco::LearnerCore> core;  // none: not joined, or away
  bool joined = false, stepping = false, reconfiguring = false, paused = false;
  bool report_due = false;
  std::deque<diloco::ProgressReport> reports;  // on the way
  std::deque<diloco::ProgressReply> replies;
  bool held = false;  // a request waits for news beyond `seen`
  std::int64_t seen = -1;
  std::optional<diloco::UploadOrder> upload;
  diloco::FetchOrder fetch;
  GlobalStep fetch_version;
  bool fetching_state = false;
  int state_parts = 0;   // of the inner state that it donates, still to send
  GlobalStep waits_for;  // lock-step: the round it contributed to; 0: none
  std::vector<diloco::RoundNews> rounds;
  double step_took = 0, joined_at = 0, hello_at = -1, recovery_seconds = 0;
  double useful = 0, tokens = 0, merged = 0;
  std::int64_t steps = 0;
};

class CoresWorld {
 public:
  explicit CoresWorld(const CoresConfig& config);
  [[nodiscard]] CoresResult run();

 private:
  struct Event {
    double at = 0;
    std::int64_t order = 0;
    CoresEvent kind = CoresEvent::kTick;
    std::int32_t unit = 0;
    std::int64_t life = 0, value = 0;
    bool operator<(const Event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  void after(double delay, CoresEvent kind, int unit = -1, std::int64_t value = 0);
  void handle(const Event& event);
  void handle_transfer(const Event& event);
  [[nodiscard]] bool over() const;
  [[nodiscard]] TimePoint time() const { return TimePoint(seconds(now_ + 1000)); }
  [[nodiscard]] CoresLearner& at(int unit) { return learners_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] double size_of(std::int32_t fragment) const;
  // Seconds until `bits` are across; counts them.
  double transfer(int from, int to, double bits);
  void note_time();
  [[nodiscard]] CoresResult result();

  // Learners.
  void start(int unit);
  void kill(int unit);
  void hello(int unit);
  void pump(int unit);
  void send_report(int unit);
  void take_reply(int unit);
  void start_upload(int unit);
  void end_upload(int unit);
  void start_fetch(int unit);
  void start_recovery(int unit);
  // The next part of a donor's state; false: all are sent.
  bool send_state(int unit, std::int64_t relay);
  void begin_step(int unit);
  void end_step(int unit);
  void carry_out(int unit, const diloco::BoundaryPlan& plan);
  [[nodiscard]] bool waits(const CoresLearner& learner) const;
  void join_by_tokens();

  // The outer optimizer.
  void progress(int unit);
  void settle();  // effects, then news to whoever waits for it
  void carry_out_effects();
  void commit(const diloco::StartMerge& merge);
  void forget_the_start();

  CoresConfig config_;
  diloco::Schedule schedule_;
  Rng rng_;
  ReturnDelay delay_;
  std::priority_queue<Event> queue_;
  std::int64_t count_ = 0;
  double now_ = 0;
  std::unique_ptr<diloco::SyncerCore> core_;
  std::vector<CoresLearner> learners_;
  std::optional<diloco::StartMerge> merging_;
  std::vector<double> up_free_, down_free_;
  std::vector<std::string> relay_names_;
  std::set<std::string> relays_ready_;
  double tokens_ = 0;
  int stepping_ = 0;
  double first_step_ = -1, noted_ = 0, up_time_ = 0, below_quorum_ = 0;
  std::int64_t rounds_ = 0, participants_ = 0, short_rounds_ = 0;
  GlobalStep committed_;
  CoresResult out_;
};

}  // namespace archipelago::simulator
