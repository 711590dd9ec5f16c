#include <algorithm>
#include <cmath>

#include "simulator/parties.h"

namespace archipelago::simulator {

using namespace diloco;

std::string who_text(const UnitKey& who) {
  return who.unit + "/" + std::to_string(who.incarnation.value) + "/" + who.session;
}
std::string key_text(const UploadKey& key) {
  return who_text(key.who) + "/" + std::to_string(key.t.value) + "/" + std::to_string(key.attempt);
}

namespace {
LearnerConfig learner_config(const World& world, const UnitKey& who) {
  LearnerConfig config;
  config.who = who;
  config.fragments = world.config.sync.fragments;
  config.interval = world.config.sync.interval;
  config.overlap = world.config.sync.overlap;
  config.max_lead = world.config.sync.max_lead;
  config.buffers = std::max(2, config.overlap);
  return config;
}

UnitKey make_key(World& world, int unit, std::int64_t incarnation) {
  std::string session;
  for (int i = 0; i < 32; ++i) session += "0123456789abcdef"[world.rng.below(16)];
  return {"u-" + std::to_string(unit), Incarnation(incarnation), session};
}
}  // namespace

LearnerProcess::LearnerProcess(World& w, int unit_index, std::int64_t incarnation)
    : world(w),
      unit(unit_index),
      who(make_key(w, unit_index, incarnation)),
      core(learner_config(w, who), w.queue.time()) {
  const auto p = static_cast<std::size_t>(w.config.sync.fragments);
  theta.assign(p, 0);
  base.assign(p, 0);
  buffer.assign(static_cast<std::size_t>(std::max(2, w.config.sync.overlap)), 0);
}

void LearnerProcess::tell(tape::LearnerEvent event) {
  if (world.config.observer != nullptr) world.config.observer->did(who, std::move(event));
}

std::uint32_t LearnerProcess::step_sequences() const {
  return world.config.sequences_per_step[static_cast<std::size_t>(unit)];
}

void LearnerProcess::start() {
  if (world.config.observer != nullptr)
    world.config.observer->started(who, world.config.datacenters[static_cast<std::size_t>(unit)]);
  say_hello();
  world.queue.after(world.config.heartbeat, [self = shared_from_this()] { self->beat(); });
}

// Repeats progress to show life and to fetch news.
void LearnerProcess::beat() {
  if (!alive) return;
  report_due = true;
  pump();
  world.queue.after(world.config.heartbeat, [self = shared_from_this()] { self->beat(); });
}

void LearnerProcess::exit_if_fenced(const Error& error) {
  if (error.kind == ErrorKind::kFenced) alive = false;
}

void LearnerProcess::say_hello() {
  auto self = shared_from_this();
  HelloRequest request;
  request.who = who;
  request.datacenter = world.config.datacenters[static_cast<std::size_t>(unit)];
  request.layout_digest = "layout";
  request.dataset_sequences = world.config.dataset_sequences;
  request.dataset_digest = "data";
  request.sequences_per_step = step_sequences();
  request.standing = core.standing();
  world.call(
      self,
      [self, request]() -> std::function<void()> {
        auto reply = self->world.syncer->core->hello(request, self->world.queue.time());
        if (!reply) return [self, error = reply.error()] { self->exit_if_fenced(error); };
        const auto& said = request.standing;
        if (!said.bases.empty())
          self->world.syncer->claims.push_back({said.epoch, said.lineage, said.committed});
        return [self, r = *reply] { self->on_reply(r.progress); };
      },
      [self] {
        if (self->alive)
          self->world.queue.after(0.3, [self] {
            if (self->alive) self->say_hello();
          });
      });
}

void LearnerProcess::seed() {
  auto self = shared_from_this();
  seeding = true;
  tell(tape::Seed{world.config.sync.data_seed});
  world.call(
      self,
      [self]() -> std::function<void()> {
        if (!self->world.syncer->core->seeded(self->who, self->world.queue.time()))
          return [self] { self->seeding = false; };
        self->world.undo_commits_after(0);
        for (int p = 0; p < self->world.config.sync.fragments; ++p) {
          self->world.disk.master[static_cast<std::size_t>(p)] = 1.0 + p;
          self->world.disk.published[{p, 0}] = 1.0 + p;
          self->world.note_published(p, 0);
        }
        return [self] {
          self->seeding = false;
          self->pump();
        };
      },
      [self] { self->seeding = false; });
}

void LearnerProcess::send_base() {
  const auto order = core.next_rebuild();
  if (!order || sending_base) return;
  sending_base = true;
  auto self = shared_from_this();
  const int p = order->fragment;
  const GlobalStep version = order->version;
  const double value = base[static_cast<std::size_t>(p)];
  world.call(
      self,
      [self, p, version, value]() -> std::function<void()> {
        self->world.take_base(self->who, p, version, value);
        return [self, p] {
          self->sending_base = false;
          self->core.rebuild_answered(p);
          self->pump();
        };
      },
      [self] { self->sending_base = false; });
}

void LearnerProcess::on_reply(const ProgressReply& reply) {
  core.on_reply(reply, world.queue.time());
  pump();
}

void LearnerProcess::send_report() {
  report_due = false;
  last_report = world.queue.now();
  auto self = shared_from_this();
  const ProgressReport report = core.report(world.queue.time());
  world.call(
      self,
      [self, report]() -> std::function<void()> {
        auto& syncer = *self->world.syncer;
        auto reply = syncer.core->progress(report, self->world.queue.time());
        if (!reply && reply.error().kind == ErrorKind::kNotFound)
          return [self] { self->say_hello(); };
        if (!reply) return [self, error = reply.error()] { self->exit_if_fenced(error); };
        if (reply->news > report.news) return [self, r = *reply] { self->on_reply(r); };
        // Held: a newer report of the same process answers an older one.
        for (auto& h : syncer.held)
          if (h.who == report.who) h.until = 0;
        const double delay = self->world.config.delay;
        syncer.held.push_back({report.who, report.news, self->world.queue.now() + 1.0,
                               [self, delay](ProgressReply r) {
                                 self->world.queue.after(delay, [self, r] {
                                   if (self->alive) self->on_reply(r);
                                 });
                               }});
        return [] {};
      },
      [] {});
}

void LearnerProcess::start_upload() {
  if (uplink_free > world.queue.now()) return;
  auto order = core.next_upload();
  if (!order) return;
  const auto p = static_cast<std::size_t>(order->snapshot.fragment);
  const double took =
      world.config.up[static_cast<std::size_t>(unit)] * world.config.fragment_size[p];
  uplink_free = world.queue.now() + took;
  order->info.bytes = static_cast<std::uint64_t>(1000 * world.config.fragment_size[p]);
  upload(*order, buffer[static_cast<std::size_t>(order->snapshot.buffer)]);
}

// Begin, arrive, be received: each may be lost on its own.
void LearnerProcess::upload(const UploadOrder& order, double value) {
  auto self = shared_from_this();
  const UploadInfo info = order.info;
  const GlobalStep t = info.key.t;
  const std::int32_t attempt = info.key.attempt;
  const auto finish = [self, t, attempt](UploadOutcome outcome) {
    self->core.upload_result(t, attempt, outcome);
    self->pump();
  };
  const auto retry = [self, finish] {
    if (self->alive)
      self->world.queue.after(0.2, [self, finish] {
        if (self->alive) finish(UploadOutcome::kRetry);
      });
  };
  const double done = std::max(uplink_free - world.queue.now(), 0.0);
  const auto judge = [self, finish](const Error& error) -> std::function<void()> {
    if (error.kind == ErrorKind::kFenced) return [self, error] { self->exit_if_fenced(error); };
    return [finish] { finish(UploadOutcome::kStale); };
  };
  const std::int64_t lineage = core.lineage();
  const auto arrive = [self, info, value, finish, judge]() -> std::function<void()> {
    auto attempt_kept = self->world.syncer->core->upload_complete(info, self->world.queue.time());
    if (!attempt_kept) return judge(attempt_kept.error());
    self->world.syncer->stored.emplace(key_text(info.key), value);
    self->world.syncer->consumed.emplace(key_text(info.key), info.consumed);
    return [finish] { finish(UploadOutcome::kReceipt); };
  };
  world.call(
      self,
      [self, info, lineage, done, arrive, finish, retry, judge]() -> std::function<void()> {
        if (auto ours = self->world.syncer->core->check_lineage(lineage); !ours)
          return judge(ours.error());
        auto verdict = self->world.syncer->core->upload_started(
            info.key, info.fragment, info.base, info.bytes, self->world.queue.time());
        if (!verdict) return judge(verdict.error());
        if (*verdict == UploadVerdict::kRepeat)
          return [finish] { finish(UploadOutcome::kReceipt); };
        self->world.queue.after(0.5 * done, [self, info] {
          if (self->alive && self->world.syncer)
            self->world.syncer->core->upload_bytes(info.key, info.bytes / 2,
                                                   self->world.queue.time());
        });
        self->world.queue.after(done, [self, arrive, retry] {
          if (self->alive) self->world.call(self, arrive, retry);
        });
        return [] {};
      },
      retry);
  world.queue.after(done, [self] {
    if (self->alive) self->pump();
  });
}

void LearnerProcess::start_fetch() {
  auto order = core.next_fetch();
  if (!order) return;
  auto self = shared_from_this();
  const int p = order->fragment;
  const GlobalStep have = order->have;
  const bool forget = order->forget;
  const std::int64_t lineage = core.lineage();
  const auto failed = [self, p] {
    if (!self->alive) return;
    self->core.fetch_failed(p, false);
    self->world.queue.after(0.2, [self] {
      if (self->alive) self->pump();
    });
  };
  world.call(
      self,
      [self, p, have, forget, lineage, failed]() -> std::function<void()> {
        const auto& published = self->world.disk.published;
        if (published.empty() || !self->world.syncer->core->check_lineage(lineage)) return failed;
        // The next delta where at most 4 are kept, else the newest keyframe, 8 x as long.
        auto newest = std::prev(published.upper_bound({p, INT64_MAX}));
        auto next = published.upper_bound({p, have.value});
        const bool delta = have != kNoVersion && next != published.end() &&
                           next->first.first == p && std::distance(next, newest) < 4 &&
                           next->first.second <= self->world.config.sync.budget.value;
        const auto chosen = delta ? next : newest;
        const double took = self->world.config.down[static_cast<std::size_t>(self->unit)] *
                            self->world.config.fragment_size[static_cast<std::size_t>(p)] *
                            (delta ? 1 : 8);
        const GlobalStep version(chosen->first.second);
        const double value = chosen->second;
        const GlobalStep basis = delta ? have : kNoVersion;
        return [self, p, basis, version, value, took, forget, lineage] {
          self->world.queue.after(took, [self, p, basis, version, value, forget, lineage] {
            if (!self->alive) return;
            if (forget && self->core.lineage() == lineage)
              std::erase_if(self->arrived, [p](const auto& a) { return a.first.first == p; });
            self->keep_frame(p, basis, version, value);
          });
        };
      },
      failed);
}

void LearnerProcess::keep_frame(int fragment, GlobalStep have, GlobalStep version, double value) {
  arrived[{fragment, version.value}] = value;
  core.fetched(fragment, have, version);
  pump();
}

void LearnerProcess::start_recovery() {
  if (core.fresh_start_allowed()) {
    tell(tape::Fresh{});
    core.inner_state_restored(true, world.queue.time());
    return;
  }
  const auto task = core.recover_task();
  if (!task || fetching_state) return;
  fetching_state = true;
  auto self = shared_from_this();
  const std::string id = task->id;
  world.call(
      self,
      [self, id]() -> std::function<void()> {
        const auto relay = self->world.syncer->relays.find(id);
        if (relay == self->world.syncer->relays.end())
          return [self] { self->fetching_state = false; };
        return [self, id, donor = relay->second] {
          self->fetching_state = false;
          self->tell(tape::Restore{id, donor.who.unit, donor.who.incarnation, donor.local_step});
          self->core.inner_state_restored(false, self->world.queue.time());
          self->pump();
        };
      },
      [self] { self->fetching_state = false; });
}

void LearnerProcess::pump() {
  if (!alive || exited) return;
  if (!stepping) carry_out(core.paused_boundary(world.queue.time()));
  if (!alive || exited) return;
  if (core.asked_to_seed() && !seeding) seed();
  send_base();
  start_upload();
  start_fetch();
  start_recovery();
  if (report_due || core.needs_report()) send_report();
}

void LearnerProcess::begin_step(const BoundaryPlan& plan) {
  const auto sequences = core.take_sequences(step_sequences());
  if (!sequences) return;
  step = {{}, plan.schedule_step, world.config.sync.budget, plan.rate_scale, 0, false};
  if (plan.budget > GlobalStep(0)) step.budget = plan.budget;
  for (const auto& s : *sequences) tape::append_sequence(step.runs, s.block, s.index);
  for (const auto& s : *sequences) world.trained[{s.block, s.index}].insert(who_text(who));
  stepping = true;
  const double took = world.config.step_seconds[static_cast<std::size_t>(unit)] *
                      (1 + world.config.jitter * (2 * world.rng.uniform() - 1));
  auto self = shared_from_this();
  world.queue.after(took, [self, took] {
    if (!self->alive) return;
    self->end_step(self->step_sequences() * self->world.config.tokens_per_sequence, took);
  });
}

void LearnerProcess::end_step(std::int64_t tokens, double took) {
  stepping = false;
  trained_tokens += tokens;
  tell(step);
  for (auto& value : theta) value += -0.02 * value + 0.01 * (world.rng.uniform() - 0.5);
  carry_out(core.step_done({tokens, took, std::abs(theta[0])}, world.queue.time()));
  pump();
}

void LearnerProcess::carry_out(const BoundaryPlan& plan) {
  if (plan.finished) {
    exited = true;
    alive = false;
    return;
  }
  if (plan.snapshot) {
    const auto p = static_cast<std::size_t>(plan.snapshot->fragment);
    buffer[static_cast<std::size_t>(plan.snapshot->buffer)] = base[p] - theta[p];
    tell(tape::Snapshot{plan.snapshot->t, plan.snapshot->fragment, plan.snapshot->attempt,
                        plan.snapshot->base});
    core.snapshot_taken(plan.snapshot->t);
  }
  for (const auto& order : plan.applies) {
    const auto p = static_cast<std::size_t>(order.fragment);
    const auto value = arrived.find({order.fragment, order.version.value});
    if (value == arrived.end()) return world.violate("apply of a version that was never fetched");
    const auto truth = world.history.find({core.lineage(), order.fragment, order.version.value});
    if (truth == world.history.end() || truth->second != value->second)
      world.violate("a learner holds bytes that were not published");
    tell(tape::Apply{order.fragment, order.version});
    theta[p] = base[p] = value->second;
    arrived.erase(arrived.lower_bound({order.fragment, 0}), std::next(value));
  }
  if (plan.validate) core.validation_done({*plan.validate, 1.0, 100, false});
  if (plan.donate) {
    auto self = shared_from_this();
    const std::string id = plan.donate->id;
    tell(tape::Donate{id});
    world.queue.after(0.5, [self, id, at = core.local_step()] {
      if (self->alive && self->world.syncer) self->world.syncer->relays[id] = {self->who, at};
    });
  }
  if (!plan.paused && !stepping) begin_step(plan);
}

}  // namespace archipelago::simulator
