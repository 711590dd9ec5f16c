#pragma once
// The two parties of a world: a syncer process with its disk, and learner processes. Private to the
// simulator.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/rng.h"
#include "common/diloco/learner_core.h"
#include "common/diloco/syncer_core.h"
#include "simulator/queue.h"
#include "simulator/world.h"

namespace archipelago::simulator {

using diloco::UnitKey;

struct World;

// What survives the syncer: exactly what its journal holds.
struct Disk {
  std::optional<diloco::SyncerState> state;
  std::int64_t epoch = 0;
  std::vector<double> master;  // by fragment
  std::map<std::pair<int, std::int64_t>, double>
      published;  // (fragment, version) -> value, for checks
  std::map<std::int64_t, std::vector<diloco::UploadKey>> commits;  // t -> members
  std::set<std::string> relays_ready;
  // t -> positions of its members: what was merged, unless the commit is undone
  std::map<std::int64_t, std::vector<std::pair<std::string, diloco::BlockPosition>>> consumed;
};

struct SyncerProcess {
  std::unique_ptr<diloco::SyncerCore> core;
  std::map<std::string, double> stored;  // complete uploads: key text -> value
  std::map<std::string, std::vector<diloco::BlockPosition>> consumed;  // their positions
  struct Held {
    UnitKey who;
    std::int64_t seen = 0;
    double until = 0;
    std::function<void(diloco::ProgressReply)> answer;
  };
  std::vector<Held> held;
  struct Donor {
    UnitKey who;
    LocalStep local_step;  // at the copy
  };
  std::map<std::string, Donor> relays;  // by id: state that arrived
  struct Claim {                        // of a hello that holds bases
    std::int64_t epoch = 0, lineage = 0;
    GlobalStep committed;
  };
  std::vector<Claim> claims;
  std::map<int, double> rebuilt;  // fragment -> bytes that a learner sent
};

struct LearnerProcess : std::enable_shared_from_this<LearnerProcess> {
  LearnerProcess(World& w, int unit_index, std::int64_t incarnation);
  void start();
  void say_hello();
  void beat();
  void pump();
  void stop() { alive = false; }

  World& world;
  int unit;
  UnitKey who;
  diloco::LearnerCore core;
  bool alive = true, exited = false;
  double link_down_until = 0;
  bool stepping = false;
  int idle_laps = 0;
  double uplink_free = 0;
  bool report_due = true;
  double last_report = -1e9;
  std::vector<double> theta, base, buffer;
  std::map<std::pair<int, std::int64_t>, double> arrived;
  std::map<std::int64_t, double> upload_value;  // by t
  std::int64_t trained_tokens = 0;
  bool fetching_state = false, seeding = false, sending_base = false;
  diloco::tape::Step step;  // that is under way, for the observer

 private:
  void on_reply(const diloco::ProgressReply& reply);
  void send_report();
  void start_upload();
  void upload(const diloco::UploadOrder& order, double value);
  void start_fetch();
  void start_recovery();
  void seed();
  void send_base();
  void keep_frame(int fragment, GlobalStep have, GlobalStep version, double value);
  void begin_step(const diloco::BoundaryPlan& plan);
  void end_step(std::int64_t tokens, double took);
  void carry_out(const diloco::BoundaryPlan& plan);
  void exit_if_fenced(const Error& error);
  void tell(diloco::tape::LearnerEvent event);
  [[nodiscard]] std::uint32_t step_sequences() const;
};

struct World {
  explicit World(const WorldConfig& c);
  void start_syncer();
  void kill_syncer();
  void replace_disk(const std::optional<Disk>& with);
  void start_learner(int unit);
  void inject(const Fault& fault);
  void carry_out_effects();
  void run_merge(const diloco::StartMerge& merge);
  void commit(const diloco::StartMerge& merge, std::int64_t start);
  void answer_held();
  void tick();
  void violate(const std::string& what);
  void check_data_once();
  void check_outcomes();
  void note_published(int fragment, std::int64_t version);
  void take_base(const UnitKey& who, int fragment, GlobalStep version, double value);
  void rebuilt();
  void undo_commits_after(std::int64_t t);
  [[nodiscard]] WorldResult run();
  [[nodiscard]] WorldResult result() const;
  [[nodiscard]] std::string standstill() const;

  // A request from a learner: executed at the syncer after the delay, answered after another; lost,
  // repeated or refused by a dead syncer as the world has it. `fail` comes a second after the send.
  void call(const std::shared_ptr<LearnerProcess>& from,
            std::function<std::function<void()>()> serve, std::function<void()> fail);

  WorldConfig config;
  EventQueue queue;
  Rng rng;
  Disk disk;
  std::unique_ptr<SyncerProcess> syncer;
  std::vector<std::shared_ptr<LearnerProcess>> current;  // by unit
  std::vector<std::shared_ptr<LearnerProcess>> all;
  std::vector<std::int64_t> incarnations;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::set<std::string>>
      trained;  // sequence -> who trained on it
  // (lineage, fragment, version) -> value: everything that was ever published
  std::map<std::tuple<std::int64_t, int, std::int64_t>, double> history;
  std::optional<Disk> backup;  // kept where a fault asks for one
  bool keeps_backup = false, disk_replaced = false;
  std::int64_t syncer_starts = 0, rebuilds = 0, noted_lineage = 0;
  std::string violation;
  std::int64_t events = 0;
  double first_commit = 0, last_commit = 0;
  double returned_at = -1, first_commit_after = 0;
  std::vector<double> after_return;
  bool die_at_commit = false;
  double die_away = 0;
};

[[nodiscard]] std::string key_text(const diloco::UploadKey& key);
[[nodiscard]] std::string who_text(const UnitKey& who);

}  // namespace archipelago::simulator
