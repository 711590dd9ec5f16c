#include "simulator/cores_world.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "simulator/cores_parties.h"

namespace archipelago::simulator {

using namespace diloco;

namespace {
constexpr std::size_t kKeptCommits = 100'000;

double shortest_step(const CoresConfig& config) {
  double shortest = config.units.front().step_seconds;
  for (const auto& unit : config.units) shortest = std::min(shortest, unit.step_seconds);
  return shortest;
}

Status bad(const std::string& what) { return fail(ErrorKind::kInvalid, what); }
}  // namespace

Status check(const CoresConfig& config) {
  if (config.units.empty() || config.units.size() > 512)
    return bad("units: given " + std::to_string(config.units.size()) + ", allowed 1 to 512");
  const int places = static_cast<int>(config.links.size());
  if (config.hub < 0 || config.hub >= places)
    return bad("hub: given datacenter " + std::to_string(config.hub) + " of " +
               std::to_string(places));
  for (const auto& unit : config.units) {
    if (!(unit.step_seconds > 0) || !std::isfinite(unit.step_seconds))
      return bad("step time: given " + std::to_string(unit.step_seconds) + ", allowed above 0");
    if (unit.datacenter < 0 || unit.datacenter >= places)
      return bad("datacenter: given " + std::to_string(unit.datacenter) + " of " +
                 std::to_string(places));
  }
  for (const auto& link : config.links)
    if (!(link.up > 0) || !(link.down > 0)) return bad("bandwidth: allowed above 0");
  if (!(config.jitter >= 0) || config.jitter >= 1)
    return bad("jitter: given " + std::to_string(config.jitter) + ", allowed 0 to below 1");
  if (config.slices < 1) return bad("slices: given " + std::to_string(config.slices));
  if (!(config.failures_per_second >= 0) || !std::isfinite(config.failures_per_second))
    return bad("failures a second: allowed 0 or more");
  if (!(config.seconds > 0) && !(config.tokens > 0) && config.global_steps <= 0)
    return bad("end: give seconds, tokens or global steps");
  const auto schedule = Schedule::create(config.sync.fragments, config.sync.interval);
  if (!schedule) return fail(schedule.error());
  return {};
}

CoresWorld::CoresWorld(const CoresConfig& config)
    : config_(config),
      schedule_(*Schedule::create(config.sync.fragments, config.sync.interval)),
      rng_(mix64(config.seed)),
      delay_(config.constants.return_seconds_per_slice * config.slices *
                 static_cast<double>(config.units.size()),
             config.return_shape, config.return_power) {
  config_.fragment_size.resize(static_cast<std::size_t>(config.sync.fragments), 1.0);
  up_free_.assign(config.links.size(), 0);
  down_free_ = up_free_;
  out_.up_bits = out_.down_bits = up_free_;
  for (std::size_t u = 0; u < config.units.size(); ++u)
    learners_.emplace_back(config.slices, Rng(mix64(config.seed * 0x100000001b3ULL + u + 1)));
}

void CoresWorld::after(double delay, CoresEvent kind, int unit, std::int64_t value) {
  const std::int64_t life = unit >= 0 ? at(unit).life : 0;
  queue_.push({now_ + delay, count_++, kind, unit, life, value});
}

double CoresWorld::size_of(std::int32_t fragment) const {
  return config_.fragment_size[static_cast<std::size_t>(fragment)];
}

// First in, first out on both links; the second starts as soon as the first does.
double CoresWorld::transfer(int from, int to, double bits) {
  if (from == to || bits <= 0) return from == to ? 0 : config_.latency;
  const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
  const double start = std::max(now_, up_free_[f]);
  up_free_[f] = start + bits / config_.links[f].up;
  down_free_[t] = std::max(start, down_free_[t]) + bits / config_.links[t].down;
  out_.up_bits[f] += bits;
  out_.down_bits[t] += bits;
  return std::max(up_free_[f], down_free_[t]) - now_ + config_.latency;
}

// Before the number of those who step changes.
void CoresWorld::note_time() {
  if (first_step_ >= 0) {
    const double passed = now_ - noted_;
    if (stepping_ > 0) up_time_ += passed;
    if (stepping_ < config_.sync.quorum) below_quorum_ += passed;
  }
  noted_ = now_;
}

bool CoresWorld::over() const {
  return (config_.seconds > 0 && now_ >= config_.seconds) ||
         (config_.tokens > 0 && tokens_ >= config_.tokens) ||
         (config_.global_steps > 0 && committed_.value >= config_.global_steps);
}

void CoresWorld::handle(const Event& event) {
  const int unit = event.unit;
  if (unit >= 0 && event.life != at(unit).life) return;
  switch (event.kind) {
    case CoresEvent::kJoin:
      return start(unit);
    case CoresEvent::kHello:
      return hello(unit);
    case CoresEvent::kReport:
      return progress(unit);
    case CoresEvent::kReply:
      return take_reply(unit);
    case CoresEvent::kStepEnd:
      return end_step(unit);
    case CoresEvent::kResume:
      at(unit).reconfiguring = false;
      return at(unit).paused ? carry_out(unit, at(unit).core->paused_boundary(time()))
                             : begin_step(unit);
    case CoresEvent::kBeat:
      // Who steps reports at each boundary; who doesn't has to show that it lives.
      if (!at(unit).stepping) send_report(unit);
      return after(2 + 0.5 * at(unit).step_took, CoresEvent::kBeat, unit);
    case CoresEvent::kTick:
      core_->tick(time());
      settle();
      return after(std::clamp(0.25 * shortest_step(config_), 0.02, 0.9), CoresEvent::kTick);
    case CoresEvent::kUploadHalf:
    case CoresEvent::kUploadEnd:
    case CoresEvent::kFetchEnd:
    case CoresEvent::kRelayReady:
    case CoresEvent::kStateArrived:
    case CoresEvent::kMerged:
      return handle_transfer(event);
  }
}

void CoresWorld::handle_transfer(const Event& event) {
  const int unit = event.unit;
  if (event.kind == CoresEvent::kUploadHalf) {
    const auto& info = at(unit).upload->info;
    core_->upload_bytes(info.key, info.bytes / 2, time());
  } else if (event.kind == CoresEvent::kUploadEnd) {
    end_upload(unit);
  } else if (event.kind == CoresEvent::kFetchEnd) {
    at(unit).core->fetched(at(unit).fetch.fragment, at(unit).fetch.have, at(unit).fetch_version);
    pump(unit);
  } else if (event.kind == CoresEvent::kRelayReady) {
    if (send_state(unit, event.value)) return;
    relays_ready_.insert(relay_names_[static_cast<std::size_t>(event.value)]);
    for (std::size_t u = 0; u < learners_.size(); ++u)
      if (learners_[u].core) start_recovery(static_cast<int>(u));
  } else if (event.kind == CoresEvent::kStateArrived) {
    at(unit).fetching_state = false;
    at(unit).core->inner_state_restored(false, time());
    pump(unit);
  } else if (event.kind == CoresEvent::kMerged) {
    const StartMerge merge = std::move(*merging_);
    merging_.reset();
    commit(merge);
    settle();
  }
}

// --- the outer optimizer

void CoresWorld::progress(int unit) {
  CoresLearner& learner = at(unit);
  const ProgressReport report = std::move(learner.reports.front());
  learner.reports.pop_front();
  auto reply = core_->progress(report, time());
  if (reply && reply->news > report.news) {
    learner.held = false;
    learner.replies.push_back(std::move(*reply));
    after(config_.latency, CoresEvent::kReply, unit);
  } else if (reply) {
    learner.held = true;
    learner.seen = report.news;
  }
  settle();
}

void CoresWorld::settle() {
  carry_out_effects();
  for (std::size_t u = 0; u < learners_.size(); ++u) {
    CoresLearner& learner = learners_[u];
    if (!learner.held || !core_->has_news(learner.who, learner.seen)) continue;
    auto reply = core_->reply(learner.who, time());
    if (!reply) continue;
    learner.held = false;
    learner.replies.push_back(std::move(*reply));
    after(config_.latency, CoresEvent::kReply, static_cast<int>(u));
  }
}

void CoresWorld::carry_out_effects() {
  for (auto effects = core_->take_effects(); !effects.empty(); effects = core_->take_effects())
    for (auto& effect : effects) {
      if (auto* merge = std::get_if<StartMerge>(&effect)) {
        if (config_.merge_seconds > 0) {
          merging_ = std::move(*merge);
          after(config_.merge_seconds, CoresEvent::kMerged);
        } else {
          commit(*merge);
        }
      } else if (std::holds_alternative<PublishFinal>(effect)) {
        core_->final_published(time());
      } else if (std::holds_alternative<WriteModel>(effect)) {
        core_->model_written(time());
      }
    }
}

void CoresWorld::commit(const StartMerge& merge) {
  std::uint64_t bytes = 0;
  if (merge.fragment != kNoFragment) {
    ++rounds_;
    participants_ += static_cast<std::int64_t>(merge.members.size());
    if (static_cast<int>(merge.members.size()) < stepping_) ++short_rounds_;
    for (const auto& member : merge.members) {
      const auto u = std::stoi(member.key.who.unit.substr(2));
      at(u).merged += static_cast<double>(member.counters.tokens);
    }
    bytes = static_cast<std::uint64_t>(config_.upload_bits / 8 * size_of(merge.fragment)) *
            merge.members.size();
  }
  if (committed_ == GlobalStep(0)) forget_the_start();
  committed_ = merge.t;
  if (out_.commit_times.size() < kKeptCommits) out_.commit_times.push_back(now_);
  core_->committed(merge.t, bytes, time());
}

// The first keyframes may take hours over a thin link: they are no part of what a step costs.
void CoresWorld::forget_the_start() {
  note_time();
  out_.start_seconds = now_;
  first_step_ = now_;
  up_time_ = below_quorum_ = 0;
  std::fill(out_.up_bits.begin(), out_.up_bits.end(), 0.0);
  std::fill(out_.down_bits.begin(), out_.down_bits.end(), 0.0);
  for (auto& learner : learners_) {
    learner.useful = 0;
    learner.steps = 0;
  }
}

// --- the run

CoresResult CoresWorld::run() {
  SyncerConfig sync = config_.sync;
  if (config_.global_steps <= 0) sync.budget = GlobalStep(1'000'000'000);
  core_ = std::make_unique<SyncerCore>(sync, 1, std::nullopt, time());
  core_->set_layout("layout", std::vector<double>(static_cast<std::size_t>(sync.fragments),
                                                  1.0 / sync.fragments));
  for (std::size_t u = 0; u < learners_.size(); ++u) {
    const auto& setup = config_.units[u];
    if (setup.join_at_tokens > 0) continue;
    // Nobody is in phase with anybody.
    after(setup.join_at + setup.step_seconds * rng_.uniform(0, 0.5), CoresEvent::kJoin,
          static_cast<int>(u));
  }
  after(0, CoresEvent::kTick);
  while (!queue_.empty() && !over()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    ++out_.events;
    handle(event);
  }
  note_time();
  return result();
}

CoresResult CoresWorld::result() {
  CoresResult& out = out_;
  double useful = 0, present = 0, merged = 0, local = 0;
  int joined = 0;
  for (const auto& learner : learners_) {
    out.steps_by_unit.push_back(learner.steps);
    out.merged_by_unit.push_back(
        learner.tokens > 0 ? learner.merged / learner.tokens / config_.sync.fragments : 0);
    out.recovery_seconds.push_back(learner.recovery_seconds);
    out.learner_steps += learner.steps;
    merged += learner.merged / config_.sync.fragments;
    if (!learner.joined) continue;
    ++joined;
    useful += learner.useful;
    present += now_ - std::max(learner.joined_at, first_step_);
    local += static_cast<double>(learner.steps);
  }
  constexpr double kTokens = 1000;
  out.seconds = now_ - std::max(0.0, first_step_);
  out.global_steps = committed_.value;
  out.tokens = tokens_;
  if (present > 0) out.goodput = std::min(1.0, useful / present);
  if (out.seconds > 0) {
    out.uptime = up_time_ / out.seconds;
    out.below_quorum = below_quorum_ / out.seconds;
  }
  if (tokens_ > 0) out.merged_fraction = merged / (kTokens * tokens_);
  if (local > 0) out.global_per_step = static_cast<double>(committed_.value) * joined / local;
  if (rounds_ > 0) {
    out.mean_participants = static_cast<double>(participants_) / static_cast<double>(rounds_);
    out.short_rounds = static_cast<double>(short_rounds_) / static_cast<double>(rounds_);
  }
  return out;
}

CoresResult run_cores(const CoresConfig& config) { return CoresWorld(config).run(); }

}  // namespace archipelago::simulator
