#include "common/diloco/learner_core.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/diloco/schedule.h"

namespace archipelago::diloco {

namespace {
constexpr std::size_t kRecent = 8;  // xi_step: mean of the last 8 inner steps (protocol.md §1)
constexpr std::int32_t kMaxAttempts = 8;

double mean(const std::deque<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}
void keep_recent(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > kRecent) values.pop_front();
}
}  // namespace

LearnerCore::LearnerCore(LearnerConfig config, TimePoint now)
    : config_(std::move(config)), started_(now) {
  const auto p = static_cast<std::size_t>(config_.fragments);
  fetched_.assign(p, kNoVersion);
  base_.assign(p, kNoVersion);
  arrived_.resize(p);
  counters_.resize(p);
  want_keyframe_.assign(p, true);
  forget_.assign(p, false);
  buffer_busy_.assign(static_cast<std::size_t>(config_.buffers), false);
}

std::int32_t LearnerCore::fragment_of(GlobalStep t) const {
  const auto schedule = Schedule::create(config_.fragments, config_.interval);
  ARCH_CHECK(schedule.has_value(),
             << config_.fragments << " fragments, interval " << config_.interval);
  const auto due = schedule->due(t);
  return due.empty() ? kNoFragment : due.front().value;
}

GlobalStep LearnerCore::next_version(std::int32_t fragment, GlobalStep after) const {
  const auto schedule = Schedule::create(config_.fragments, config_.interval);
  ARCH_CHECK(schedule.has_value(),
             << config_.fragments << " fragments, interval " << config_.interval);
  return schedule->next(FragmentId(fragment), std::max(after, GlobalStep(0)));
}

bool LearnerCore::holds_all() const {
  return std::all_of(base_.begin(), base_.end(), [](GlobalStep v) { return v != kNoVersion; });
}

double LearnerCore::step_seconds() const { return mean(recent_seconds_); }

// --- data
// ---------------------------------------------------------------------------------------------------------

std::optional<std::vector<SequenceRef>> LearnerCore::take_sequences(std::uint32_t count) {
  std::uint64_t open = 0;
  for (const auto& [block, held] : held_) open += held.lease.upto - held.taken;
  if (open < count) return std::nullopt;
  std::vector<SequenceRef> out;
  out.reserve(count);
  for (auto& [block, held] : held_)
    while (held.taken < held.lease.upto && out.size() < count) out.push_back({block, held.taken++});
  return out;
}

std::vector<BlockPosition> LearnerCore::consumed() const {
  std::vector<BlockPosition> out;
  for (const auto& [block, held] : held_) out.push_back({block, held.trained});
  return out;
}

void LearnerCore::adopt_leases(const ProgressReply& reply) {
  std::set<std::uint64_t> named;
  for (const auto& lease : reply.leases) {
    named.insert(lease.block);
    held_.try_emplace(lease.block, Held{lease, lease.from, lease.from});
  }
  std::erase_if(held_, [&](const auto& entry) {
    return entry.second.trained >= entry.second.lease.upto && !named.contains(entry.first);
  });
  lease_mark_ = std::max(lease_mark_, reply.lease_mark);
}

// --- boundary
// -----------------------------------------------------------------------------------------------------

BoundaryPlan LearnerCore::step_done(const StepDone& step, TimePoint now) {
  ++local_step_;
  ++lead_;
  tokens_ += step.tokens;
  seconds_in_steps_ += step.seconds;
  keep_recent(recent_seconds_, step.seconds);
  keep_recent(recent_losses_, step.loss);
  for (auto& counters : counters_) {
    ++counters.steps;
    counters.tokens += step.tokens;
  }
  for (auto& [block, held] : held_) held.trained = held.taken;
  if (local_step_ == LocalStep(1)) {
    dirty_ = true;
    if (config_.who.incarnation > Incarnation(1))
      recovery_seconds_ = std::max(1e-3, to_seconds(now - started_));
  }
  if (ramp_left_ > 0) --ramp_left_;
  return boundary(now);
}

BoundaryPlan LearnerCore::paused_boundary(TimePoint now) { return boundary(now); }

BoundaryPlan LearnerCore::boundary(TimePoint) {
  BoundaryPlan plan;
  plan_snapshot(plan);
  plan_applies(plan);
  plan_validation(plan);
  if (donate_ && donate_->id != donated_ && recovered_) {
    plan.donate = donate_;
    donated_ = donate_->id;
  }
  plan_state(plan);
  return plan;
}

bool LearnerCore::contributable(const RoundNews& round) const {
  if (round.fragment == kNoFragment) return true;
  const auto p = static_cast<std::size_t>(round.fragment);
  return base_[p] == round.base && counters_[p].steps > 0;
}

std::int32_t LearnerCore::idle_buffer() const {
  for (std::size_t i = 0; i < buffer_busy_.size(); ++i)
    if (!buffer_busy_[i]) return static_cast<std::int32_t>(i);
  return -1;
}

// (b): the lowest open round not contributed to, one per boundary, so that global steps can't
// outrun local ones.
void LearnerCore::plan_snapshot(BoundaryPlan& plan) {
  if (!recovered_ || !holds_all()) return;
  for (const auto& round : rounds_) {
    if (!round.open || snapshots_.contains(round.t) || !contributable(round)) continue;
    const auto tried = attempts_.find(round.t);
    if (tried != attempts_.end() && tried->second >= kMaxAttempts) continue;
    if (round.fragment != kNoFragment && idle_buffer() < 0) return;
    order_snapshot(plan, round);
    return;
  }
}

void LearnerCore::order_snapshot(BoundaryPlan& plan, const RoundNews& round) {
  Snapshot snapshot;
  snapshot.order.t = round.t;
  snapshot.order.fragment = round.fragment;
  snapshot.order.attempt = ++attempts_[round.t];
  snapshot.order.base = round.base;
  if (round.fragment == kNoFragment) {
    snapshot.state = State::kReceipted;  // nothing to merge: saying so is the whole contribution
    dirty_ = true;
  } else {
    snapshot.order.buffer = idle_buffer();
    buffer_busy_[static_cast<std::size_t>(snapshot.order.buffer)] = true;
    snapshot.holds_buffer = true;
    plan.snapshot = snapshot.order;
    auto& info = snapshot.info;
    info.key = {config_.who, round.t, snapshot.order.attempt};
    info.fragment = round.fragment;
    info.base = round.base;
    info.counters = counters_[static_cast<std::size_t>(round.fragment)];
    info.local_step = local_step_;
    info.consumed = consumed();
  }
  snapshots_.emplace(round.t, std::move(snapshot));
}

void LearnerCore::apply(BoundaryPlan& plan, std::int32_t fragment, GlobalStep version) {
  const auto p = static_cast<std::size_t>(fragment);
  plan.applies.push_back({fragment, version});
  base_[p] = version;
  counters_[p] = {};
  lead_ = 0;
  dirty_ = true;
}

// applied_ moved: the bases may now be those that a validation asked for.
void LearnerCore::reached(BoundaryPlan& plan) {
  if (validate_ && *validate_ == applied_ && validated_ < applied_) {
    plan.validate = applied_;
    plan.validate_after = plan.applies.size();
  }
}

// A set of keyframes is one event: at the start, and at the end where every fragment has the final
// version.
bool LearnerCore::apply_whole_set(BoundaryPlan& plan) {
  const bool all_arrived = std::all_of(arrived_.begin(), arrived_.end(),
                                       [](const auto& queue) { return !queue.empty(); });
  if (!all_arrived) return false;
  const bool starting = !holds_all();
  const GlobalStep first = arrived_.front().back();
  const bool final_set = run_phase_ >= RunPhase::kFinishing && first > committed_ &&
                         std::all_of(arrived_.begin(), arrived_.end(),
                                     [&](const auto& queue) { return queue.back() == first; });
  if (!starting && !final_set) return false;
  GlobalStep through = first;
  for (std::int32_t p = 0; p < config_.fragments; ++p) {
    auto& queue = arrived_[static_cast<std::size_t>(p)];
    const GlobalStep version = queue.back();
    queue.clear();
    apply(plan, p, version);
    const GlobalStep next = next_version(p, version);
    if (!final_set && (p == 0 || next.value - 1 < through.value))
      through = GlobalStep(next.value - 1);
  }
  // Every version up to `through` is contained in what was applied.
  applied_ = final_set ? first : std::min(through, committed_);
  reached(plan);
  return true;
}

// (c): in order of t and without gaps; a keyframe further ahead stands for the versions before it.
void LearnerCore::plan_applies(BoundaryPlan& plan) {
  reached(plan);
  if (!apply_whole_set(plan) && !holds_all()) return;
  while (applied_ < committed_) {
    const GlobalStep t = applied_.next();
    const std::int32_t fragment = fragment_of(t);
    if (fragment != kNoFragment) {
      const auto p = static_cast<std::size_t>(fragment);
      auto& queue = arrived_[p];
      if (base_[p] < t) {
        if (queue.empty() || queue.front() > committed_.next()) return;
        if (queue.front() == t) {
          queue.pop_front();
          apply(plan, fragment, t);
        } else if (queue.front() < t) {
          queue.pop_front();
          continue;
        }
      }
    }
    applied_ = t;
    reached(plan);
  }
}

void LearnerCore::plan_validation(BoundaryPlan& plan) {
  if (!validate_ || validated_ >= *validate_) return;
  if (plan.validate) {
    validated_ = *plan.validate;
  } else if (applied_ > *validate_) {
    validated_ = *validate_;
    validation_ = ValidationReport{*validate_, kNoValue, 0, true};
    dirty_ = true;
  }
}

void LearnerCore::plan_state(BoundaryPlan& plan) {
  plan.schedule_step = committed_;
  plan.budget = budget_;
  plan.rate_scale =
      ramp_left_ > 0 ? 1.0 - static_cast<double>(ramp_left_) / (config_.ramp_steps + 1) : 1.0;
  plan.finished = run_phase_ == RunPhase::kFinished;
  const LearnerPhase before = phase_;
  if (!recovered_ || !holds_all()) {
    phase_ = LearnerPhase::kRecovering;
    plan.paused = true;
    plan.pause_reason = holds_all() ? "waiting for inner state" : "waiting for fragments";
  } else if (run_phase_ >= RunPhase::kFinishing) {
    phase_ = LearnerPhase::kWaiting;
    plan.paused = true;
    plan.pause_reason = "the run's budget is done";
  } else if (lead_ >= config_.max_lead) {
    phase_ = LearnerPhase::kWaiting;
    plan.paused = true;
    plan.pause_reason = "maxLead steps ahead of the last publication";
  } else {
    phase_ = LearnerPhase::kStepping;
  }
  if (phase_ != before) dirty_ = true;
}

void LearnerCore::snapshot_taken(GlobalStep t) {
  const auto it = snapshots_.find(t);
  if (it == snapshots_.end() || it->second.state != State::kOrdered) return;
  if (it->second.ended) return snapshot_lost(t);
  it->second.state = State::kTaken;
  dirty_ = true;
}

void LearnerCore::snapshot_lost(GlobalStep t) {
  const auto it = snapshots_.find(t);
  if (it == snapshots_.end() || it->second.state != State::kOrdered) return;
  release_buffer(it->second);
  snapshots_.erase(it);
}

void LearnerCore::exchange_cost(double seconds) { exchange_seconds_ += seconds; }

void LearnerCore::validation_started() {
  phase_ = LearnerPhase::kValidating;
  dirty_ = true;
}

void LearnerCore::validation_done(const ValidationReport& report) {
  validation_ = report;
  dirty_ = true;
}

void LearnerCore::inner_state_restored(bool fresh, TimePoint) {
  recovered_ = true;
  recover_.reset();
  if (fresh && committed_ > GlobalStep(0)) ramp_left_ = config_.ramp_steps;
  dirty_ = true;
}

// --- exchange
// -----------------------------------------------------------------------------------------------------

ProgressReport LearnerCore::report(TimePoint) const {
  ProgressReport report;
  report.who = config_.who;
  report.news = news_;
  report.phase = phase_;
  report.local_step = local_step_;
  report.step_seconds = step_seconds();
  report.tokens = tokens_;
  report.seconds_in_steps = seconds_in_steps_;
  report.exchange_seconds = exchange_seconds_;
  report.loss = recent_losses_.empty() ? kNoValue : mean(recent_losses_);
  for (const auto& [t, snapshot] : snapshots_)
    if (snapshot.state != State::kOrdered && !snapshot.ended)
      report.contributes.push_back({t, snapshot.order.attempt});
  // Base missing: not yet. Who merely has not stepped since the base will contribute at the next
  // boundary.
  for (const auto& round : rounds_)
    if (round.open && !snapshots_.contains(round.t) && round.fragment != kNoFragment &&
        base_[static_cast<std::size_t>(round.fragment)] != round.base)
      report.declines.push_back(round.t);
  report.consumed = consumed();
  report.holds_all = holds_all();
  report.wants_inner_state = !recovered_;
  report.recovery_failed = recovery_failed_;
  report.recovery_seconds = recovery_seconds_;
  report.applied = applied_;
  report.standing = standing();
  report.standing.bases.clear();
  report.validation = validation_;
  dirty_ = false;
  return report;
}

void LearnerCore::release_buffer(Snapshot& snapshot) {
  if (snapshot.holds_buffer) buffer_busy_[static_cast<std::size_t>(snapshot.order.buffer)] = false;
  snapshot.holds_buffer = false;
}

void LearnerCore::adopt_outcomes(const ProgressReply& reply) {
  for (const auto& outcome : reply.outcomes) {
    const auto it = snapshots_.find(outcome.t);
    // One in flight is answered 409 or with a receipt in a moment; until then its buffer is being
    // read.
    if (it == snapshots_.end() || it->second.state == State::kUploading ||
        it->second.state == State::kOrdered)
      continue;
    if (it->second.order.fragment != kNoFragment) ++(outcome.merged ? merged_ : excluded_);
    release_buffer(it->second);
    snapshots_.erase(it);
  }
  for (auto& [t, snapshot] : snapshots_)
    if (t <= committed_ && (snapshot.state == State::kTaken || snapshot.state == State::kReceipted))
      release_buffer(snapshot);
  attempts_.erase(attempts_.begin(), attempts_.upper_bound(committed_));
}

Standing LearnerCore::standing() const {
  Standing out{epoch_, lineage_, committed_, lease_mark_, {}};
  if (!held_.empty()) out.lease_mark = std::max(out.lease_mark, held_.rbegin()->first + 1);
  if (holds_all()) out.bases = base_;
  return out;
}

// What is published now does not continue what we hold: bases, contributions and leases of the old
// lineage count for nothing. The inner state is kept; training goes on once every fragment is here.
void LearnerCore::begin_lineage(const ProgressReply& reply) {
  lineage_ = reply.lineage;
  committed_ = reply.committed;
  applied_ = GlobalStep(0);
  validated_ = GlobalStep(-1);
  for (std::size_t p = 0; p < base_.size(); ++p) {
    fetched_[p] = base_[p] = kNoVersion;
    arrived_[p].clear();
    counters_[p] = {};
    want_keyframe_[p] = forget_[p] = true;
  }
  fetch_ended_ = fetching_.has_value();
  for (auto it = snapshots_.begin(); it != snapshots_.end();) {
    // Its buffer is in use: released when the thread that has it is done.
    it->second.ended = true;
    if (it->second.state == State::kOrdered || it->second.state == State::kUploading) {
      ++it;
      continue;
    }
    release_buffer(it->second);
    it = snapshots_.erase(it);
  }
  std::set<std::uint64_t> named;
  for (const auto& lease : reply.leases) named.insert(lease.block);
  std::erase_if(held_, [&](const auto& entry) { return !named.contains(entry.first); });
  dirty_ = true;
}

void LearnerCore::on_reply(const ProgressReply& reply, TimePoint) {
  if (reply.epoch < epoch_) return;  // an outer optimizer that was replaced: refuse it (§4)
  if (reply.epoch == epoch_ && reply.news < news_) return;  // overtaken by a newer reply
  if (reply.epoch > epoch_) {
    for (auto& [t, snapshot] : snapshots_)
      if (snapshot.state == State::kReceipted && snapshot.order.fragment != kNoFragment &&
          t > reply.committed && snapshot.holds_buffer)
        snapshot.state = State::kTaken;  // receipts are not durable: send it again
    attempts_.clear();
    for (const auto& [t, snapshot] : snapshots_) attempts_[t] = snapshot.order.attempt;
    validation_.reset();
    recovery_failed_.clear();
  }
  if (reply.lineage != 0 && reply.lineage != lineage_) {
    if (lineage_ != 0) begin_lineage(reply);
    lineage_ = reply.lineage;
  }
  rebuild_ = reply.rebuild;
  epoch_ = reply.epoch;
  news_ = reply.news;
  run_phase_ = reply.phase;
  committed_ = std::max(committed_, reply.committed);
  if (reply.budget > GlobalStep(0)) budget_ = reply.budget;
  rounds_ = reply.rounds;
  latest_ = reply.versions;
  validate_ = reply.validate;
  if (validation_ && (!validate_ || *validate_ != validation_->version)) validation_.reset();
  donate_ = reply.donate;
  recover_ = recovered_ ? std::nullopt : reply.recover;
  fresh_start_ = reply.fresh_start;
  seed_ = reply.seed;
  adopt_outcomes(reply);
  adopt_leases(reply);
}

std::optional<UploadOrder> LearnerCore::next_upload() {
  for (auto& [t, snapshot] : snapshots_) {
    if (snapshot.state != State::kTaken || !snapshot.holds_buffer || t <= committed_) continue;
    snapshot.state = State::kUploading;
    return UploadOrder{snapshot.order, snapshot.info};
  }
  return std::nullopt;
}

void LearnerCore::upload_result(GlobalStep t, std::int32_t attempt, UploadOutcome outcome) {
  const auto it = snapshots_.find(t);
  if (it == snapshots_.end() || it->second.order.attempt != attempt ||
      it->second.state != State::kUploading)
    return;
  dirty_ = true;
  if (it->second.ended) outcome = UploadOutcome::kStale;
  switch (outcome) {
    case UploadOutcome::kReceipt:
      it->second.state = State::kReceipted;
      return;
    case UploadOutcome::kRetry:
      it->second.state = State::kTaken;
      return;
    case UploadOutcome::kStale:
    case UploadOutcome::kRefused:
      // Off the list; where the round is open it contributes again with the next attempt.
      release_buffer(it->second);
      snapshots_.erase(it);
      ++excluded_;
      return;
  }
}

std::optional<FetchOrder> LearnerCore::next_fetch() {
  if (fetching_ || latest_.empty()) return std::nullopt;
  std::int32_t best = -1;
  GlobalStep best_version;
  for (std::int32_t p = 0; p < config_.fragments; ++p) {
    const auto i = static_cast<std::size_t>(p);
    if (fetched_[i] >= latest_[i]) continue;
    const GlobalStep version =
        fetched_[i] == kNoVersion ? latest_[i] : next_version(p, fetched_[i]);
    if (best < 0 || version < best_version) {
      best = p;
      best_version = version;
    }
  }
  if (best < 0) return std::nullopt;
  fetching_ = best;
  const auto i = static_cast<std::size_t>(best);
  return FetchOrder{best, want_keyframe_[i] ? kNoVersion : fetched_[i], forget_[i]};
}

void LearnerCore::fetched(std::int32_t fragment, GlobalStep base, GlobalStep version) {
  if (fetching_ == fragment) fetching_.reset();
  if (std::exchange(fetch_ended_, false)) return;
  const auto p = static_cast<std::size_t>(fragment);
  if (version <= fetched_[p]) return;
  if (base == kNoVersion) {
    arrived_[p].clear();  // only a keyframe supersedes what is queued
  } else if (base != fetched_[p]) {
    want_keyframe_[p] = true;
    return;
  }
  want_keyframe_[p] = forget_[p] = false;
  fetched_[p] = version;
  arrived_[p].push_back(version);
}

void LearnerCore::fetch_failed(std::int32_t fragment, bool lost_base) {
  if (fetching_ == fragment) fetching_.reset();
  fetch_ended_ = false;
  if (lost_base) want_keyframe_[static_cast<std::size_t>(fragment)] = true;
}

std::optional<RebuildOrder> LearnerCore::next_rebuild() const {
  if (rebuild_.empty() || !holds_all()) return std::nullopt;
  const std::int32_t p = rebuild_.front();
  if (p < 0 || p >= config_.fragments) return std::nullopt;
  return RebuildOrder{p, base_[static_cast<std::size_t>(p)]};
}

void LearnerCore::rebuild_answered(std::int32_t fragment) { std::erase(rebuild_, fragment); }

std::optional<RecoveryTask> LearnerCore::recover_task() const {
  if (recovered_ || !recover_ || recover_->id == recovery_failed_) return std::nullopt;
  return recover_;
}

bool LearnerCore::fresh_start_allowed() const { return !recovered_ && fresh_start_ && holds_all(); }

void LearnerCore::recovery_failed(const std::string& id) {
  recovery_failed_ = id;
  dirty_ = true;
}

bool LearnerCore::needs_report() const { return dirty_; }

}  // namespace archipelago::diloco
