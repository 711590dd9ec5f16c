// The learners of cores_world: what learner/train_loop and learner/exchange do, without a tensor.
#include <algorithm>
#include <cmath>
#include <string>

#include "simulator/cores_parties.h"

namespace archipelago::simulator {

using namespace diloco;

namespace {
constexpr double kFullStepTokens = 1000;
constexpr int kStateParts = 64;

UnitKey next_key(const CoresLearner& learner, int unit, Rng& rng) {
  UnitKey key{"u-" + std::to_string(unit), Incarnation(learner.who.incarnation.value + 1), ""};
  for (int i = 0; i < 32; ++i) key.session += "0123456789abcdef"[rng.below(16)];
  return key;
}

LearnerConfig learner_config(const SyncerConfig& sync, const UnitKey& who) {
  LearnerConfig config;
  config.who = who;
  config.fragments = sync.fragments;
  config.interval = sync.interval;
  config.overlap = sync.overlap;
  config.max_lead = sync.max_lead;
  config.buffers = std::max(2, sync.overlap);
  return config;
}
}  // namespace

void CoresWorld::start(int unit) {
  CoresLearner& learner = at(unit);
  learner.who = next_key(learner, unit, rng_);
  learner.core = std::make_unique<LearnerCore>(learner_config(config_.sync, learner.who), time());
  if (!learner.joined) {
    learner.joined = true;
    learner.joined_at = now_;
  }
  learner.hello_at = now_;
  learner.step_took = config_.units[static_cast<std::size_t>(unit)].step_seconds;
  after(config_.latency, CoresEvent::kHello, unit);
  after(2, CoresEvent::kBeat, unit);
}

// The process is gone; a new incarnation comes after the restart.
void CoresWorld::kill(int unit) {
  CoresLearner& learner = at(unit);
  ++learner.life;
  learner.core.reset();
  learner.reports.clear();
  learner.replies.clear();
  learner.held = learner.fetching_state = false;
  learner.upload.reset();
  learner.waits_for = GlobalStep(0);
  learner.rounds.clear();
  after(config_.constants.restart_seconds, CoresEvent::kJoin, unit);
}

void CoresWorld::hello(int unit) {
  CoresLearner& learner = at(unit);
  const auto& setup = config_.units[static_cast<std::size_t>(unit)];
  HelloRequest request;
  request.who = learner.who;
  request.datacenter = "dc-" + std::to_string(setup.datacenter);
  request.scavenging = setup.scavenging;
  request.layout_digest = "layout";
  request.dataset_sequences = 1'000'000'000;
  request.dataset_digest = "data";
  request.sequences_per_step = 1;
  auto reply = core_->hello(request, time());
  if (reply) {
    learner.replies.push_back(std::move(reply->progress));
    after(config_.latency, CoresEvent::kReply, unit);
  }
  settle();
}

void CoresWorld::send_report(int unit) {
  CoresLearner& learner = at(unit);
  if (!learner.core) return;
  learner.reports.push_back(learner.core->report(time()));
  learner.report_due = false;
  after(config_.latency, CoresEvent::kReport, unit);
}

void CoresWorld::take_reply(int unit) {
  CoresLearner& learner = at(unit);
  const ProgressReply reply = std::move(learner.replies.front());
  learner.replies.pop_front();
  learner.core->on_reply(reply, time());
  learner.rounds = reply.rounds;
  // The next request is on its way at once and says what the last one did.
  learner.held = true;
  learner.seen = std::max(learner.seen, reply.news);
  if (learner.core->asked_to_seed() && core_->seeded(learner.who, time())) settle();
  if (learner.core->fresh_start_allowed()) learner.core->inner_state_restored(true, time());
  if (learner.waits_for > GlobalStep(0)) {
    if (!waits(learner)) begin_step(unit);
  } else if (!learner.stepping && !learner.reconfiguring) {
    carry_out(unit, learner.core->paused_boundary(time()));
  }
  pump(unit);
}

// What the exchange thread does when woken.
void CoresWorld::pump(int unit) {
  CoresLearner& learner = at(unit);
  if (!learner.core) return;
  start_upload(unit);
  start_fetch(unit);
  start_recovery(unit);
  // Who steps says the rest with its next boundary; a complete upload is a contribution by itself.
  const bool quiet = learner.stepping && !learner.report_due;
  if (!quiet && learner.core->needs_report()) send_report(unit);
}

void CoresWorld::start_upload(int unit) {
  CoresLearner& learner = at(unit);
  while (!learner.upload) {
    learner.upload = learner.core->next_upload();
    if (!learner.upload) return;
    const int from = config_.units[static_cast<std::size_t>(unit)].datacenter;
    const double bits = config_.upload_bits * size_of(learner.upload->snapshot.fragment);
    auto& info = learner.upload->info;
    info.bytes = static_cast<std::uint64_t>(std::max(8.0, bits) / 8);
    const auto verdict =
        core_->upload_started(info.key, info.fragment, info.base, info.bytes, time());
    if (!verdict || *verdict == UploadVerdict::kRepeat) {
      learner.core->upload_result(info.key.t, info.key.attempt,
                                  verdict ? UploadOutcome::kReceipt : UploadOutcome::kStale);
      learner.upload.reset();
      continue;
    }
    const double took = transfer(from, config_.hub, bits);
    if (took <= 0) {
      end_upload(unit);
      continue;
    }
    after(0.5 * took, CoresEvent::kUploadHalf, unit);
    after(took, CoresEvent::kUploadEnd, unit);
  }
}

void CoresWorld::end_upload(int unit) {
  CoresLearner& learner = at(unit);
  const UploadInfo info = learner.upload->info;
  const auto kept = core_->upload_complete(info, time());
  learner.core->upload_result(info.key.t, info.key.attempt,
                              kept ? UploadOutcome::kReceipt : UploadOutcome::kStale);
  learner.upload.reset();
  settle();
  start_upload(unit);
}

// The next delta where at most four are kept, else the newest keyframe (protocol.md §2.9).
void CoresWorld::start_fetch(int unit) {
  constexpr std::int64_t kDeltas = 4;
  CoresLearner& learner = at(unit);
  for (auto order = learner.core->next_fetch(); order; order = learner.core->next_fetch()) {
    const FragmentId p(order->fragment);
    const GlobalStep newest = schedule_.previous(p, committed_.next());
    GlobalStep next = order->have == kNoVersion ? newest : schedule_.next(p, order->have);
    const bool delta = order->have != kNoVersion && next <= newest &&
                       newest.value - next.value < kDeltas * config_.sync.interval;
    learner.fetch = {order->fragment, delta ? order->have : kNoVersion};
    learner.fetch_version = delta ? next : newest;
    const double bits =
        (delta ? config_.publish_bits : config_.keyframe_bits) * size_of(order->fragment);
    const int to = config_.units[static_cast<std::size_t>(unit)].datacenter;
    const double took = transfer(config_.hub, to, bits);
    if (took > 0) return after(took, CoresEvent::kFetchEnd, unit);
    learner.core->fetched(order->fragment, learner.fetch.have, learner.fetch_version);
  }
}

void CoresWorld::start_recovery(int unit) {
  CoresLearner& learner = at(unit);
  const auto task = learner.core->recover_task();
  if (!task || learner.fetching_state || !relays_ready_.contains(task->id)) return;
  const int to = config_.units[static_cast<std::size_t>(unit)].datacenter;
  const int donor = std::stoi(task->peer.substr(2));
  const bool near = config_.units[static_cast<std::size_t>(donor)].datacenter == to;
  learner.fetching_state = true;
  after(near ? 0 : transfer(config_.hub, to, config_.state_bits), CoresEvent::kStateArrived, unit);
}

// In parts, so that the donor's fragments are not held up by all of it: on a real link they share.
bool CoresWorld::send_state(int unit, std::int64_t relay) {
  CoresLearner& learner = at(unit);
  if (learner.state_parts <= 0) return false;
  --learner.state_parts;
  const int from = config_.units[static_cast<std::size_t>(unit)].datacenter;
  after(transfer(from, config_.hub, config_.state_bits / kStateParts), CoresEvent::kRelayReady,
        unit, relay);
  return true;
}

bool CoresWorld::waits(const CoresLearner& learner) const {
  return std::any_of(learner.rounds.begin(), learner.rounds.end(), [&](const RoundNews& round) {
    return round.t == learner.waits_for && round.open;
  });
}

void CoresWorld::begin_step(int unit) {
  CoresLearner& learner = at(unit);
  if (!learner.core->take_sequences(1)) return;
  learner.waits_for = GlobalStep(0);
  note_time();
  if (first_step_ < 0) first_step_ = now_;
  if (learner.hello_at >= 0) learner.recovery_seconds = now_ - learner.hello_at;
  learner.hello_at = -1;
  ++stepping_;
  learner.stepping = true;
  learner.step_took = config_.units[static_cast<std::size_t>(unit)].step_seconds *
                      (1 + config_.jitter * learner.rng.uniform(-1, 1));
  after(learner.step_took, CoresEvent::kStepEnd, unit);
}

void CoresWorld::end_step(int unit) {
  CoresLearner& learner = at(unit);
  note_time();
  --stepping_;
  learner.stepping = false;
  const double share = static_cast<double>(learner.pool.present()) / learner.pool.total();
  const double tokens = std::max(1.0, std::round(kFullStepTokens * share));
  ++learner.steps;
  learner.useful += learner.step_took * share;
  learner.tokens += tokens;
  tokens_ += tokens / kFullStepTokens;
  learner.report_due = true;
  const double mean = config_.failures_per_second * learner.step_took * share;
  int failed = 0;
  if (mean > 0 && learner.rng.uniform() < 1 - std::exp(-mean))
    failed = draw_some_failures(learner.rng, mean);
  out_.failures += failed;
  join_by_tokens();
  if (failed > 0 && !config_.elastic) return kill(unit);
  double pause = 0;
  if (config_.failures_per_second > 0 && config_.elastic)
    pause = learner.pool.step_end(failed, now_, delay_, config_.constants, learner.rng);
  if (pause > 0) {
    learner.reconfiguring = true;
    after(pause, CoresEvent::kResume, unit);
  }
  const auto plan = learner.core->step_done(
      {static_cast<std::int64_t>(tokens), learner.step_took, kNoValue}, time());
  if (config_.lockstep && plan.snapshot) learner.waits_for = plan.snapshot->t;
  carry_out(unit, plan);
  pump(unit);
}

void CoresWorld::join_by_tokens() {
  for (std::size_t u = 0; u < learners_.size(); ++u) {
    const double due = config_.units[u].join_at_tokens;
    if (due > 0 && !learners_[u].joined && tokens_ >= due) start(static_cast<int>(u));
  }
}

void CoresWorld::carry_out(int unit, const BoundaryPlan& plan) {
  CoresLearner& learner = at(unit);
  if (plan.snapshot) {
    learner.core->snapshot_taken(plan.snapshot->t);
    learner.report_due = true;
  }
  if (plan.validate) learner.core->validation_done({*plan.validate, 1.0, 1, false});
  if (plan.donate) {
    const int newcomer = std::stoi(plan.donate->peer.substr(2));
    const auto place = [&](int u) { return config_.units[static_cast<std::size_t>(u)].datacenter; };
    relay_names_.push_back(plan.donate->id);
    const auto relay = static_cast<std::int64_t>(relay_names_.size()) - 1;
    learner.state_parts = place(newcomer) == place(unit) ? 0 : kStateParts;
    if (!send_state(unit, relay)) after(0, CoresEvent::kRelayReady, unit, relay);
  }
  learner.paused = plan.paused || plan.finished;
  if (learner.paused || learner.stepping || learner.reconfiguring) return;
  if (learner.waits_for > GlobalStep(0) && waits(learner)) return;
  begin_step(unit);
}

}  // namespace archipelago::simulator
