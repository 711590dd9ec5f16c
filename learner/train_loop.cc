#include "learner/train_loop.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/diloco/data_ledger.h"
#include "learner/lr_schedule.h"
#include "learner/model_folder.h"

namespace archipelago::learner {
namespace {

constexpr Duration kPauseNap = std::chrono::milliseconds(200);  // news wakes it earlier
constexpr std::int64_t kValidationSlice = 16;  // sequences between two looks at the stop token

// out = base - out: what is uploaded (protocol.md §2.7).
void subtract_from(std::span<const float> base, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = base[i] - out[i];
}

}  // namespace

TrainLoop::TrainLoop(TrainLoopOptions options, const FragmentMap& fragments, Trainer& trainer,
                     const TokenFile& train, const TokenFile* validation, Hub& hub,
                     const Clock& clock, Logger log,
                     std::function<void(std::optional<Duration>)> alive)
    : options_(std::move(options)),
      fragments_(fragments),
      trainer_(trainer),
      train_(train),
      validation_(validation),
      hub_(hub),
      clock_(clock),
      log_(std::move(log)),
      alive_(std::move(alive)),
      started_(clock.now()),
      scratch_(static_cast<std::size_t>(fragments.largest())) {}

void TrainLoop::record_start() {
  diloco::tape::Start start = options_.tape_start;
  const Numerics numerics = trainer_.numerics();
  start.kernels = numerics.kernels;
  start.threads = numerics.threads;
  hub_.record(std::move(start));
}

void TrainLoop::record_step(const std::vector<diloco::SequenceRef>& refs,
                            const diloco::BoundaryPlan& plan, GlobalStep budget,
                            const StepResult& result) {
  diloco::tape::Step step;
  for (const auto& ref : refs) diloco::tape::append_sequence(step.runs, ref.block, ref.index);
  step.schedule_step = plan.schedule_step;
  step.budget = budget;
  step.rate_scale = plan.rate_scale;
  step.loss = result.loss;
  step.skipped = result.skipped;
  hub_.record(std::move(step));
}

ExitCode TrainLoop::run(const std::stop_token& stop) {
  record_start();
  diloco::BoundaryPlan plan =
      hub_.with_core([&](auto& core) { return core.paused_boundary(clock_.now()); });
  bool stepping = false;
  while (true) {
    if (const auto ended = hub_.ended()) return *ended;
    if (failed_) return *failed_;
    if (stop.stop_requested()) return ExitCode::kLeft;
    const std::int64_t seen = hub_.generation();
    carry_out(plan, stepping, stop);
    if (plan.finished) return ExitCode::kFinished;
    std::string reason = plan.pause_reason;
    if (!plan.paused) {
      if (auto next = step(plan)) {
        plan = std::move(*next);
        stepping = true;
        continue;
      }
      if (failed_) continue;
      reason = "waiting for data to be leased";
    }
    stepping = false;
    alive_(std::nullopt);
    publish_stats(reason);
    seed_if_asked();
    tend_recovery();
    hub_.wait_change(stop, seen, kPauseNap);
    plan = hub_.with_core([&](auto& core) { return core.paused_boundary(clock_.now()); });
  }
}

bool TrainLoop::read_batch(const std::vector<diloco::SequenceRef>& refs) {
  const auto row = static_cast<std::size_t>(trainer_.context_length() + 1);
  tokens_.resize(refs.size() * row);
  for (std::size_t i = 0; i < refs.size(); ++i) {
    const std::uint64_t sequence = diloco::sequence_index(options_.data_seed, train_.sequences(),
                                                          refs[i].block, refs[i].index);
    if (const Status read = train_.read(sequence, std::span(tokens_).subspan(i * row, row));
        !read) {
      hub_.end(ExitCode::kDataUnreadable, read.error().message);
      failed_ = ExitCode::kDataUnreadable;
      return false;
    }
  }
  return true;
}

std::optional<diloco::BoundaryPlan> TrainLoop::step(const diloco::BoundaryPlan& plan) {
  const auto sequences =
      static_cast<std::uint32_t>(options_.inner.batch_size * options_.inner.gradient_accumulation);
  const auto refs = hub_.look_mutable([&](auto& core) { return core.take_sequences(sequences); });
  if (!refs) return std::nullopt;
  const TimePoint begin = clock_.now();
  alive_(
      seconds(stats_.steps > 0 ? stats_.seconds_in_steps / static_cast<double>(stats_.steps) : 0));
  if (!read_batch(*refs)) return std::nullopt;
  // The budget may have risen since we started.
  const GlobalStep budget = plan.budget > GlobalStep(0) ? plan.budget : options_.budget;
  const double rate = learning_rate(options_.inner, plan.schedule_step, budget) * plan.rate_scale;
  const auto result = trainer_.step(tokens_, rate);
  if (!result) {
    hub_.end(ExitCode::kInternal, "training step: " + result.error().message);
    failed_ = ExitCode::kInternal;
    return std::nullopt;
  }
  const TimePoint end = clock_.now();
  stats_.step_seconds = to_seconds(end - begin);
  ++stats_.steps;
  stats_.tokens += result->tokens;
  stats_.skipped += result->skipped ? 1 : 0;
  stats_.seconds_in_steps += stats_.step_seconds;
  stats_.loss = result->loss;
  stats_.gradient_norm = result->gradient_norm;
  stats_.learning_rate = rate;
  log_step(*result);
  record_step(*refs, plan, budget, *result);
  diloco::LearnerCore::StepDone done;
  done.tokens = result->tokens;
  done.seconds = stats_.step_seconds;
  done.loss = result->skipped ? diloco::kNoValue : result->loss;
  auto next = hub_.with_core([&](auto& core) { return core.step_done(done, end); });
  publish_stats("");
  add_cost(end);  // what the locks cost
  return next;
}

void TrainLoop::carry_out(const diloco::BoundaryPlan& plan, bool stepping,
                          const std::stop_token& stop) {
  const TimePoint begin = clock_.now();
  if (plan.snapshot) take_snapshot(*plan.snapshot);
  std::vector<Base> bases;  // as they are at the version to validate: shared, not copied
  for (std::size_t i = 0; i <= plan.applies.size(); ++i) {
    if (plan.validate && i == plan.validate_after)
      for (std::int32_t p = 0; p < fragments_.count(); ++p)
        bases.push_back(hub_.bases().applied(p));
    if (i < plan.applies.size()) overwrite(plan.applies[i]);
  }
  if (plan.donate) {
    hub_.record(diloco::tape::Donate{plan.donate->id});
    Donation donation{
        plan.donate->id, trainer_.inner_state(options_.recovery_precision), {}, {}, {}};
    donation.local_step = hub_.look([](const auto& core) { return core.local_step(); });
    hub_.offer_donation(std::move(donation));
  }
  if (stepping) add_cost(begin);
  if (plan.validate) validate(*plan.validate, bases, stop);
}

void TrainLoop::add_cost(TimePoint begin) {
  const double cost = to_seconds(clock_.now() - begin);
  stats_.exchange_seconds += cost;
  hub_.look_mutable([&](auto& core) { core.exchange_cost(cost); });
}

void TrainLoop::take_snapshot(const diloco::SnapshotOrder& order) {
  const FragmentView& view = fragments_[order.fragment];
  const std::span<float> out = hub_.buffer(order.buffer, view.total);
  const Base base = hub_.bases().get(order.fragment, order.base);
  // Its lineage ended since the boundary: what was held of it is gone (protocol.md §6).
  if (base == nullptr) return hub_.with_core([&](auto& core) { core.snapshot_lost(order.t); });
  trainer_.read(view.tensors, out);
  subtract_from(*base, out);
  // Recorded before the exchange may send it: a merged upload's events are on the tape.
  hub_.record(diloco::tape::Snapshot{order.t, order.fragment, order.attempt, order.base});
  hub_.with_core([&](auto& core) { core.snapshot_taken(order.t); });
}

void TrainLoop::overwrite(const diloco::ApplyOrder& order) {
  const Base base = hub_.bases().apply(order.fragment, order.version);
  if (base == nullptr) return;  // its lineage ended: keyframes of the next one are on their way
  hub_.record(diloco::tape::Apply{order.fragment, order.version});
  const FragmentView& view = fragments_[order.fragment];
  if (options_.blend <= 0) return trainer_.write(view.tensors, *base);
  const std::span<float> mixed(scratch_.data(), base->size());
  trainer_.read(view.tensors, mixed);
  const auto own = static_cast<float>(options_.blend);
  for (std::size_t i = 0; i < mixed.size(); ++i)
    mixed[i] = own * mixed[i] + (1.0F - own) * (*base)[i];
  trainer_.write(view.tensors, mixed);
}

void TrainLoop::validate(GlobalStep version, const std::vector<Base>& bases,
                         const std::stop_token& stop) {
  const auto report = [&](double loss, std::int64_t tokens, bool declined) {
    hub_.with_core([&](auto& core) { core.validation_done({version, loss, tokens, declined}); });
  };
  const bool whole =
      std::all_of(bases.begin(), bases.end(), [](const Base& base) { return base != nullptr; });
  if (validation_ == nullptr || !whole) return report(diloco::kNoValue, 0, true);
  hub_.with_core([](auto& core) { core.validation_started(); });
  alive_(std::nullopt);
  publish_stats("validating");
  std::vector<float> weights(static_cast<std::size_t>(fragments_.elements()));
  for (std::int32_t p = 0; p < fragments_.count(); ++p) {
    const FragmentView& view = fragments_[p];
    const float* from = bases[static_cast<std::size_t>(p)]->data();
    for (std::size_t i = 0; i < view.elements.size(); ++i) {
      std::copy_n(from, view.elements[i], weights.data() + view.flat_offsets[i]);
      from += view.elements[i];
    }
  }
  const auto row = static_cast<std::size_t>(trainer_.context_length() + 1);
  const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(
      validation_->sequences(), static_cast<std::uint64_t>(options_.validation_sequences)));
  double sum = 0;
  std::int64_t tokens = 0;
  for (std::int64_t at = 0; at < count; at += kValidationSlice) {
    if (stop.stop_requested()) return;
    const auto slice = static_cast<std::size_t>(std::min(kValidationSlice, count - at));
    std::vector<std::int32_t> batch(slice * row);
    for (std::size_t i = 0; i < slice; ++i) {
      const Status read = validation_->read(static_cast<std::uint64_t>(at) + i,
                                            std::span(batch).subspan(i * row, row));
      if (read) continue;
      log_.error("validation data unreadable", {{"error", read.error().message}});
      return report(diloco::kNoValue, 0, true);
    }
    const auto result = trainer_.evaluate(weights, batch);
    if (!result) {
      log_.error("validation failed", {{"error", result.error().message}});
      return report(diloco::kNoValue, 0, true);
    }
    sum += result->loss * static_cast<double>(result->tokens);
    tokens += result->tokens;
  }
  const double loss = sum / static_cast<double>(std::max<std::int64_t>(tokens, 1));
  log_.info("validated",
            {{"global_step", version.value}, {"validation_loss", loss}, {"tokens", tokens}});
  report(loss, tokens, false);
}

void TrainLoop::seed_if_asked() {
  // Never over fragments that were applied: a late request would part the parameters from their
  // bases.
  if (!hub_.seed_requested() || hub_.look([](const auto& core) { return core.holds_all(); }))
    return;
  if (const Status made = first_weights(options_.init_path, options_.init_seed, trainer_); !made)
    return hub_.end(ExitCode::kConfigRefused, "spec.model.initFrom.path: " + made.error().message);
  hub_.record(diloco::tape::Seed{options_.init_seed});
  std::vector<std::int32_t> all(trainer_.tensors().size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  std::vector<float> flat(static_cast<std::size_t>(fragments_.elements()));
  trainer_.read(all, flat);
  hub_.deliver_seed(std::move(flat));
}

void TrainLoop::tend_recovery() {
  if (recovered_) return;
  const auto restored = [&](bool fresh) {
    recovered_ = true;
    hub_.with_core([&](auto& core) { core.inner_state_restored(fresh, clock_.now()); });
  };
  if (auto received = hub_.take_inner_state()) {
    const Status done = trainer_.restore_inner_state(received->state);
    if (done) {
      hub_.record(diloco::tape::Restore{received->id, received->donor, received->incarnation,
                                        received->local_step});
      return restored(false);
    }
    log_.warn("inner state refused", {{"relay", received->id}, {"error", done.error().message}});
    hub_.with_core([&](auto& core) { core.recovery_failed(received->id); });
    return;
  }
  const bool allowed = hub_.look([](const auto& core) { return core.fresh_start_allowed(); });
  const Duration limit =
      options_.recovery_timeout > Duration{} ? options_.recovery_timeout : seconds(60);
  const bool late = clock_.now() - started_ > limit &&
                    hub_.look([](const auto& core) { return core.holds_all(); });
  if (!allowed && !late) return;
  log_.info("starting with fresh moments",
            {{"reason", allowed ? "nobody has inner state" : "no donor in time"}});
  hub_.record(diloco::tape::Fresh{});
  restored(true);
}

void TrainLoop::publish_stats(const std::string& pause_reason) {
  stats_.pause_reason = pause_reason;
  hub_.set_stats(stats_);
}

void TrainLoop::log_step(const StepResult& result) {
  if (result.skipped)
    log_.warn("step skipped: loss or gradient is not finite",
              {{"local_step", stats_.steps}, {"loss", result.loss}});
  if (stats_.steps % options_.log_every != 1 && options_.log_every != 1) return;
  log_.info("step", {{"local_step", stats_.steps},
                     {"loss", result.loss},
                     {"gradient_norm", result.gradient_norm},
                     {"learning_rate", stats_.learning_rate},
                     {"step_seconds", stats_.step_seconds}});
}

}  // namespace archipelago::learner
