#include "outer-optimizer/daemon.h"

#include "common/wire/messages_json.h"
#include "outer-optimizer/model_server.h"

namespace archipelago::outer {

Daemon::Daemon(const DaemonOptions& options, Logger log)
    : options_(options), log_(std::move(log)) {}

Daemon::~Daemon() { stop(); }

namespace {

// The run whose checkpoints the folder holds.
std::optional<std::string> held_run(const std::filesystem::path& data_dir) {
  const auto folder = data_dir / "checkpoints";
  const auto steps = list_checkpoints(folder);
  if (steps.empty()) return std::nullopt;
  const auto info = read_checkpoint_info(folder, steps.back());
  if (!info) return std::nullopt;  // damage is the store's to judge
  return info->run_id;
}

// A claim of another run is a mistake to be told about, not one to be retried.
Status check_owner(const StoreOptions& options) {
  const auto held = held_run(options.folder);
  if (!held || *held == options.run_id) return {};
  return fail(ErrorKind::kRefused,
              options.folder.string() + " holds run " + *held + ", this is run " + options.run_id +
                  ": give the run a folder of its own. HINT: "
                  "spec.outerOptimizer.storage.adopt: true continues the run that it holds");
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::start(const DaemonOptions& options, Logger log) {
  DaemonOptions own = options;
  if (const auto held = options.adopt ? held_run(options.store.folder) : std::nullopt) {
    if (*held != options.flags.run_id)
      log.info("adopting the run of the data folder", {{"run_id", *held}});
    own.flags.run_id = own.core.run_id = own.store.run_id = *held;
  }
  std::unique_ptr<Daemon> daemon(new Daemon(own, std::move(log)));
  ARCH_TRY_VOID(daemon->open());
  ARCH_TRY_VOID(daemon->serve());
  return daemon;
}

Result<std::optional<diloco::SyncerState>> Daemon::open_store() {
  ARCH_TRY_VOID(check_owner(options_.store));
  std::optional<diloco::SyncerState> state;
  std::optional<Error> bad;
  auto store = Store::open(options_.store, [&](std::string_view text) {
    auto parsed = wire::parse_state(text);
    if (!parsed) {
      bad = parsed.error();
    } else if (state) {
      state->merge_newer(*parsed);
    } else {
      state = std::move(*parsed);
    }
  });
  if (!store) {
    const Error& error = store.error();
    // Another run's folder, or one that nothing can be made of: trying again cannot help.
    if (error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kInvalid) {
      return fail(ErrorKind::kRefused, error.message);
    }
    return fail(error);
  }
  if (bad) return fail(ErrorKind::kRefused, "state in the journal or checkpoint: " + bad->message);
  // A seed whose checkpoint was never completed: learners are asked again.
  if (state && !(*store)->seeded()) state->seeded = false;
  if (state && !(*store)->has_layout()) state->layout_digest.clear();  // asked for again
  const RecoveryReport& report = (*store)->recovery();
  if (state && report.without_gradients) {
    // Before anything is committed behind it: the journal starts anew there.
    state->back_to(report.exact);
    ARCH_TRY_VOID((*store)->checkpoint_now(report.exact, wire::encode(*state)));
  }
  note_recovery(report);
  store_ = std::make_unique<StoreThread>(std::move(*store), log_.named("store"));
  return state;
}

void Daemon::note_recovery(const RecoveryReport& report) {
  for (const auto& problem : report.problems) log_.warn("recovery", {{"problem", problem}});
  if (!report.found) return;
  log_.info("recovered", {{"checkpoint_step", report.checkpoint_step.value},
                          {"committed", report.committed.value},
                          {"records", report.records},
                          {"rolled_back", report.rolled_back}});
}

Status Daemon::open() {
  std::error_code error;
  std::filesystem::create_directories(options_.flags.data_dir, error);
  if (error)
    return fail(ErrorKind::kIo,
                "--data-dir " + options_.flags.data_dir.string() + ": " + error.message());
  ARCH_TRY(auto state, open_store());
  ARCH_TRY(relays_, RelaySpool::open(options_.flags.data_dir / "recovery"));
  ARCH_TRY_VOID(metrics_.open_tape(options_.flags.data_dir / "metrics.jsonl"));
  const RecoveryReport report = store_->store().recovery();
  tape_ = std::make_unique<TapeLog>(options_.flags.data_dir / "tape", options_.flags.run_id,
                                    log_.named("tape"));
  tape_->opened({store_->store().epoch(), options_.resolved});
  // A process that dies between commit and digest leaves the digest to the next one.
  record_published(store_->store(), GlobalStep(0), *tape_);
  engine_ = std::make_unique<CoreEngine>(options_, std::move(state), *store_, uploads_, metrics_,
                                         *tape_, log_.named("core"));
  engine_->note_recovery(report);
  engine_->inner_state_kept(relays_->left_behind());
  return {};
}

Status Daemon::serve() {
  ARCH_TRY(const auto run_id, wire::run_id_bytes(options_.flags.run_id));
  models_ =
      std::make_unique<ModelFiles>(options_.flags.data_dir, [this] { return engine_->finished(); });
  services_ = std::unique_ptr<Services>(
      new Services{options_, *engine_, *store_, uploads_, *relays_, metrics_, *tape_, *models_,
                   trailers_, run_id, log_.named("routes"), ready_});
  http::ServerOptions learners;
  learners.listen = options_.flags.listen;
  learners.threads = options_.limits.threads;
  learners.max_bulk = options_.limits.uploads_at_once;
  learners.max_connections =
      8 * options_.limits.units + 64;  // a learner keeps one for each of its purposes
  learners_ = std::make_unique<http::Server>(learners, log_.named("http"));
  add_learner_routes(*learners_, *services_);
  add_upload_route(*learners_, *services_);
  add_fragment_route(*learners_, *services_);
  admin_ = std::make_unique<http::Server>(admin_options(options_.flags.admin), log_.named("admin"));
  add_admin_routes(*admin_, *services_, *learners_);

  store_->start(
      [this](CheckpointResult result) { engine_->checkpoint_ended_later(std::move(result)); });
  engine_->start([this](const Error& error) {
    std::lock_guard lock(mutex_);
    failure_ = error;
    changed_.notify_all();
  });
  ARCH_TRY_VOID(admin_->start());
  ARCH_TRY_VOID(learners_->start());
  ready_ = true;
  log_.info("serving", {{"listen", options_.flags.listen.text()},
                        {"port", learners_->port()},
                        {"admin_port", admin_->port()},
                        {"epoch", store_->store().epoch()},
                        {"run_id", options_.flags.run_id}});
  return {};
}

Daemon::End Daemon::wait() {
  std::optional<TimePoint> finished_at;
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) return End::kFailed;
    if (stop_requested_) return engine_->finished() ? End::kFinished : End::kStopped;
    const TimePoint now = SystemClock().now();
    if (engine_->finished() && !finished_at) {
      finished_at = now;
      log_.info("finished", {{"linger_seconds", to_seconds(options_.linger)}});
    }
    if (finished_at && now - *finished_at >= options_.linger) return End::kFinished;
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

void Daemon::request_stop() {
  std::lock_guard lock(mutex_);
  stop_requested_ = true;
  changed_.notify_all();
}

std::string Daemon::why() const {
  std::lock_guard lock(mutex_);
  return failure_ ? failure_->describe() : "";
}

void Daemon::stop() {
  if (stopped_) return;
  stopped_ = true;
  ready_ = false;
  if (relays_) relays_->stop();
  if (engine_) engine_->release_held();
  if (learners_) learners_->stop();
  // The core may wait for the store, never the other way round; what the store reports late goes
  // nowhere.
  if (engine_) engine_->stop();
  if (store_) store_->stop();
  if (tape_) tape_->flush();
  if (admin_) admin_->stop();
}

}  // namespace archipelago::outer
