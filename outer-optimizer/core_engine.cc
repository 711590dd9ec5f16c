#include "outer-optimizer/core_engine.h"

#include <algorithm>

#include "common/wire/messages_json.h"

namespace archipelago::outer {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(20);
constexpr Duration kStatusEvery = std::chrono::milliseconds(200);
constexpr Duration kAnswerLimit = std::chrono::seconds(60);
constexpr Duration kRetry = std::chrono::seconds(1);
constexpr std::size_t kHandlerEvents =
    8192;  // the other half of the mailbox is for the store's reports

Error stopping() { return {ErrorKind::kUnavailable, "the outer optimizer is stopping"}; }

}  // namespace

CoreEngine::CoreEngine(const DaemonOptions& options, std::optional<diloco::SyncerState> recovered,
                       StoreThread& store, UploadTable& uploads, DaemonMetrics& metrics,
                       TapeLog& tape, Logger log)
    : options_(options),
      store_(store),
      uploads_(uploads),
      metrics_(metrics),
      tape_(tape),
      log_(std::move(log)),
      core_(options.core, store.store().epoch(), std::move(recovered), clock_.now()) {
  const Store& s = store.store();
  if (s.has_layout()) layout_known(s.layout(), s.fragmentation());
  frames_ready_ = s.has_layout() && s.seeded();
  finished_ = core_.finished();
  committed_ = core_.state().committed.value;
  last_turn_ = clock_.now().time_since_epoch().count();
  publish_status(clock_.now());
}

CoreEngine::~CoreEngine() { stop(); }

void CoreEngine::start(std::function<void(const Error&)> on_fatal) {
  on_fatal_ = std::move(on_fatal);
  // The epoch and what recovery made of the state are journaled before anybody is answered.
  ++requested_;
  persist_failed_ = true;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void CoreEngine::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  events_.close();
  thread_.join();
}

void CoreEngine::release_held() {
  post_internal([this](TimePoint now) {
    hold_replies_ = false;
    answer_held(now, true);
  });
}

bool CoreEngine::post(Event event) {
  return events_.size() < kHandlerEvents && events_.push(std::move(event));
}

void CoreEngine::post_internal(Event event) {
  // After close() the loop is gone, and so is everybody who waits for what the event would do.
  if (!events_.push(std::move(event))) log_.debug("event after the end");
}

template <class T>
Result<T> CoreEngine::ask(std::function<Result<T>(TimePoint)> work) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto answer = promise->get_future();
  const bool posted =
      post([this, work = std::move(work), promise = std::move(promise)](TimePoint now) {
        Result<T> result = work(now);
        drain(now);
        release([promise, result = std::move(result)](const Status& durable) {
          promise->set_value(durable ? result : Result<T>(fail(durable.error())));
        });
      });
  if (!posted) return fail(ErrorKind::kUnavailable, "the outer optimizer is busy");
  if (answer.wait_for(kAnswerLimit) != std::future_status::ready) {
    return fail(ErrorKind::kUnavailable, "the outer optimizer is busy");
  }
  try {
    return answer.get();
  } catch (const std::future_error&) {
    return fail(stopping());
  }
}

// --- the loop
// -----------------------------------------------------------------------------------------------------

void CoreEngine::run(const std::stop_token& stop) {
  TimePoint next_tick = clock_.now();
  while (true) {
    auto event = events_.pop_until(next_tick, stop);
    const TimePoint now = clock_.now();
    if (event) {
      (*event)(now);
      drain(now);
      answer_held(now, false);
    } else if (stop.stop_requested()) {
      break;
    }
    if (now < next_tick) continue;
    turn_over(now);
    next_tick = now + kTick;
  }
  hold_replies_ = false;
  for (auto& held : held_) held.promise->set_value(fail(stopping()));
  held_.clear();
  for (auto& [sequence, what] : outbox_) what(fail(stopping()));
  outbox_.clear();
}

void CoreEngine::turn_over(TimePoint now) {
  core_.tick(now);
  drain(now);
  for (std::size_t i = 0; i < retries_.size();) {
    if (retries_[i].at > now) {
      ++i;
      continue;
    }
    Event run = std::move(retries_[i].run);
    retries_.erase(retries_.begin() + static_cast<std::ptrdiff_t>(i));
    run(now);
    drain(now);
  }
  if (persist_failed_) persist();
  answer_held(now, false);
  if (now >= next_status_) publish_status(now);
  last_turn_ = now.time_since_epoch().count();
}

Duration CoreEngine::since_last_turn() const {
  return clock_.now().time_since_epoch() - Duration(last_turn_.load());
}

void CoreEngine::retry_in(Duration delay, Event event) {
  retries_.push_back({clock_.now() + delay, std::move(event)});
}

void CoreEngine::fatal(const Error& error) {
  if (failed_) return;
  failed_ = true;
  log_.error("cannot go on", {{"why", error.message}});
  if (on_fatal_) on_fatal_(error);
}

// --- replies and durability
// ---------------------------------------------------------------------------------------

void CoreEngine::release(Release what) {
  if (requested_ == durable_) {
    what(Status());
  } else {
    outbox_.emplace_back(requested_, std::move(what));  // bounded by the handlers that wait
  }
}

void CoreEngine::persist() {
  persist_failed_ = false;
  const std::int64_t sequence = ++requested_;
  const bool posted =
      store_.post([this, sequence, state = wire::encode(core_.state())](Store& store) {
        Status status = store.persist(state);
        post_internal([this, sequence, status = std::move(status)](TimePoint now) {
          persisted(sequence, status, now);
        });
      });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

void CoreEngine::persisted(std::int64_t sequence, const Status& status, TimePoint) {
  if (!status && status.error().kind != ErrorKind::kNoSpace) {
    fatal(status.error().with_context("journal"));
    return;
  }
  if (status) {
    durable_ = std::max(durable_, sequence);
    if (no_space_) set_no_space(false, "");
  } else {
    set_no_space(true, status.error().message);
    retry_in(kRetry, [this](TimePoint) { persist(); });
  }
  std::vector<std::pair<std::int64_t, Release>> waiting;
  waiting.swap(outbox_);
  for (auto& [needed, what] : waiting) {
    if (needed <= sequence) {
      what(status);
    } else {
      outbox_.emplace_back(needed, std::move(what));
    }
  }
}

void CoreEngine::set_no_space(bool on, const std::string& message) {
  if (no_space_ != on) {
    if (on) {
      log_.warn("journal has no room, commits stop", {{"why", message}});
    } else {
      log_.info("journal has room again");
    }
  }
  no_space_ = on;
  core_.set_condition({"JournalFull", on ? "True" : "False", on ? "NoSpace" : "HasRoom", message});
}

void CoreEngine::drain(TimePoint) {
  bool persist_now = false;
  for (auto& effect : core_.take_effects()) {
    if (std::holds_alternative<diloco::PersistState>(effect)) {
      // One record with the newest state serves all of this batch; it must be posted before a merge
      // of it.
      if (!persist_now) persist();
      persist_now = true;
    } else if (const auto* raise = std::get_if<diloco::RaiseEpoch>(&effect)) {
      raise_epoch(raise->epoch);
    } else if (auto* merge = std::get_if<diloco::StartMerge>(&effect)) {
      start_merge(std::move(*merge));
    } else if (const auto* drop = std::get_if<diloco::DropUpload>(&effect)) {
      uploads_.drop(drop->key);
    } else if (const auto* final_one = std::get_if<diloco::PublishFinal>(&effect)) {
      publish_final(final_one->version);
    } else if (std::holds_alternative<diloco::WriteModel>(effect)) {
      write_model();
    }
  }
}

// --- learners
// -----------------------------------------------------------------------------------------------------

Result<diloco::HelloReply> CoreEngine::hello(const diloco::HelloRequest& request) {
  return ask<diloco::HelloReply>([this, request](TimePoint now) {
    auto reply = core_.hello(request, now);
    if (reply) note_seeder(request.who, reply->progress);
    return reply;
  });
}

void CoreEngine::note_seeder(const diloco::UnitKey& who, const diloco::ProgressReply& reply) {
  if (!reply.seed || (seeder_ && *seeder_ == who)) return;
  seeder_ = who;
  staged_.clear();  // another's bytes
}

Result<diloco::ProgressReply> CoreEngine::progress(const diloco::ProgressReport& report) {
  auto promise = std::make_shared<std::promise<Result<diloco::ProgressReply>>>();
  auto answer = promise->get_future();
  if (!post([this, report, promise](TimePoint now) { handle_progress(report, now, promise); })) {
    return fail(ErrorKind::kUnavailable, "the outer optimizer is busy");
  }
  promise.reset();
  if (answer.wait_for(kAnswerLimit) != std::future_status::ready) {
    return fail(ErrorKind::kUnavailable, "the outer optimizer is busy");
  }
  try {
    return answer.get();
  } catch (const std::future_error&) {
    return fail(stopping());
  }
}

void CoreEngine::handle_progress(
    const diloco::ProgressReport& report, TimePoint now,
    std::shared_ptr<std::promise<Result<diloco::ProgressReply>>> promise) {
  auto reply = core_.progress(report, now);
  if (reply) note_seeder(report.who, *reply);
  drain(now);
  // A new report doesn't wait behind an older held one of the same unit; that one is answered now.
  for (auto& held : held_) {
    if (held.who == report.who) held.deadline = now;
  }
  const bool news = !reply || reply->news > report.news || report.news < 0;
  if (!news && hold_replies_ && held_.size() < options_.limits.held_replies) {
    held_.push_back(
        {report.who, report.news, now + seconds(reply->heartbeat_seconds), std::move(promise)});
    return;
  }
  release([promise, reply = std::move(reply)](const Status& durable) {
    promise->set_value(durable ? reply : Result<diloco::ProgressReply>(fail(durable.error())));
  });
}

void CoreEngine::answer_held(TimePoint now, bool all) {
  for (std::size_t i = 0; i < held_.size();) {
    Held& held = held_[i];
    if (!all && now < held.deadline && !core_.has_news(held.who, held.seen)) {
      ++i;
      continue;
    }
    release([promise = std::move(held.promise),
             reply = core_.reply(held.who, now)](const Status& durable) {
      promise->set_value(durable ? reply : Result<diloco::ProgressReply>(fail(durable.error())));
    });
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Result<std::string> CoreEngine::leave(const diloco::UnitKey& who) {
  return ask<std::string>([this, who](TimePoint now) -> Result<std::string> {
    if (auto known = core_.reply(who, now); !known) return fail(known.error());
    return core_.leave(who, now);
  });
}

void CoreEngine::inner_state_kept(const std::string& name) {
  post_internal([this, name](TimePoint) { core_.inner_state_kept(name); });
}

Status CoreEngine::known(const diloco::UnitKey& who) {
  return ask<void>([this, who](TimePoint now) -> Status {
    if (auto known = core_.reply(who, now); !known) return fail(known.error());
    return {};
  });
}

Result<diloco::UploadVerdict> CoreEngine::upload_started(const diloco::UploadKey& key,
                                                         std::int32_t fragment, GlobalStep base,
                                                         std::uint64_t bytes) {
  if (no_space_)
    return fail(ErrorKind::kNoSpace,
                "the journal has no room: uploads are taken when there is some");
  return ask<diloco::UploadVerdict>([this, key, fragment, base, bytes](TimePoint now) {
    return core_.upload_started(key, fragment, base, bytes, now);
  });
}

void CoreEngine::upload_bytes(const diloco::UploadKey& key, std::uint64_t received) {
  // Only news about speed: may be lost.
  (void)post([this, key, received](TimePoint now) { core_.upload_bytes(key, received, now); });
}

Result<std::int32_t> CoreEngine::upload_complete(const diloco::UploadInfo& info) {
  return ask<std::int32_t>(
      [this, info](TimePoint now) { return core_.upload_complete(info, now); });
}

void CoreEngine::upload_aborted(const diloco::UploadKey& key) {
  post_internal([this, key](TimePoint now) { core_.upload_aborted(key, now); });
}

void CoreEngine::downlink_bytes(std::uint64_t bytes) {
  metrics_.fragment_bytes(bytes);
  post_internal([this, bytes](TimePoint) { core_.downlink_bytes(bytes); });
}

Status CoreEngine::put_settings(const diloco::LiveSettings& settings) {
  return ask<void>([this, settings](TimePoint now) -> Status {
    ARCH_TRY_VOID(core_.apply_settings(settings, now));
    log_.info("settings", {{"generation", settings.generation},
                           {"quorum", settings.quorum},
                           {"grace", std::string(diloco::to_string(settings.grace))},
                           {"budget", settings.budget.value}});
    publish_status(now);
    return {};
  });
}

// --- views
// --------------------------------------------------------------------------------------------------------

std::shared_ptr<const LayoutView> CoreEngine::layout() const {
  std::lock_guard lock(mutex_);
  return layout_;
}

std::shared_ptr<const std::string> CoreEngine::status_text() const {
  std::lock_guard lock(mutex_);
  return status_text_;
}

void CoreEngine::publish_status(TimePoint now) {
  const diloco::StatusDocument status = core_.status(now);
  metrics_.status(status, held_.size(), uploads_.budget().used());
  committed_ = status.global_step.value;
  finished_ = core_.finished();
  auto text = std::make_shared<const std::string>(wire::encode(status));
  next_status_ = now + kStatusEvery;
  std::lock_guard lock(mutex_);
  status_text_ = std::move(text);
}

void CoreEngine::layout_known(const diloco::Layout& layout,
                              const diloco::Fragmentation& fragmentation) {
  auto view = std::make_shared<LayoutView>();
  view->digest = layout.digest().hex();
  view->digest_bytes = layout.digest().bytes;
  view->fragmentation = fragmentation;
  view->elements = layout.elements();
  std::vector<double> shares;
  for (const auto& fragment : fragmentation.fragments()) {
    shares.push_back(static_cast<double>(fragment.elements) /
                     static_cast<double>(layout.elements()));
    view->max_upload_payload =
        std::max(view->max_upload_payload, payload_bytes(fragment, options_.uplink));
    view->max_seed_payload =
        std::max(view->max_seed_payload, payload_bytes(fragment, codec::Codec::kFp32));
  }
  // The largest fragment is up to ten times the others, but every round may have it only once in P.
  const std::uint64_t one = std::max(view->max_upload_payload, view->max_seed_payload);
  uploads_.budget().set_limit(std::max(
      options_.limits.units * options_.limits.upload_rounds * view->max_upload_payload, 2 * one));
  core_.set_layout(view->digest, std::move(shares));
  std::lock_guard lock(mutex_);
  layout_ = std::move(view);
}

}  // namespace archipelago::outer
