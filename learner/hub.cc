#include "learner/hub.h"

#include "common/base/check.h"

namespace archipelago::learner {

Hub::Hub(diloco::LearnerConfig config, const FragmentMap& fragments, const Clock& clock)
    : clock_(clock),
      core_(config, clock.now()),
      bases_(fragments.count()),
      buffers_(static_cast<std::size_t>(config.buffers),
               std::vector<float>(static_cast<std::size_t>(fragments.largest()))),
      unit_(config.who.unit),
      incarnation_(config.who.incarnation) {}

void Hub::wake() {
  ++generation_;
  changed_.notify_all();
}

bool Hub::wait(const std::stop_token& stop, Duration at_most,
               const std::function<bool(diloco::LearnerCore&)>& ready) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, stop, clock_.now() + at_most, [&] { return ready(core_); });
}

std::int64_t Hub::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void Hub::wait_change(const std::stop_token& stop, std::int64_t seen, Duration at_most) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, stop, clock_.now() + at_most, [&] { return generation_ != seen; });
}

std::span<float> Hub::buffer(std::int32_t index, std::int64_t elements) {
  auto& values = buffers_.at(static_cast<std::size_t>(index));
  ARCH_CHECK(static_cast<std::size_t>(elements) <= values.size(), << elements);
  return std::span(values).first(static_cast<std::size_t>(elements));
}

void Hub::end(ExitCode code, std::string why) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  end_ = code;
  why_ = std::move(why);
  wake();
}

std::optional<ExitCode> Hub::ended() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::string Hub::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

void Hub::request_seed() {
  const std::lock_guard lock(mutex_);
  seed_requested_ = true;
  wake();
}

bool Hub::seed_requested() const {
  const std::lock_guard lock(mutex_);
  return seed_requested_;
}

void Hub::deliver_seed(std::vector<float> flat) {
  const std::lock_guard lock(mutex_);
  seed_requested_ = false;
  seed_ = std::move(flat);
  wake();
}

const std::vector<float>* Hub::seed_values() const {
  const std::lock_guard lock(mutex_);
  return seed_ ? &*seed_ : nullptr;
}

void Hub::drop_seed() {
  const std::lock_guard lock(mutex_);
  seed_.reset();
}

void Hub::offer_donation(Donation donation) {
  const std::lock_guard lock(mutex_);
  donation_ = std::move(donation);
  wake();
}

std::optional<Donation> Hub::take_donation() {
  const std::lock_guard lock(mutex_);
  auto out = std::move(donation_);
  donation_.reset();
  return out;
}

bool Hub::has_donation() const {
  const std::lock_guard lock(mutex_);
  return donation_.has_value();
}

void Hub::deliver_inner_state(Donation received) {
  const std::lock_guard lock(mutex_);
  received_ = std::move(received);
  wake();
}

std::optional<Donation> Hub::take_inner_state() {
  const std::lock_guard lock(mutex_);
  auto out = std::move(received_);
  received_.reset();
  return out;
}

bool Hub::has_inner_state() const {
  const std::lock_guard lock(mutex_);
  return received_.has_value();
}

void Hub::record(diloco::tape::LearnerEvent event) {
  const std::lock_guard lock(mutex_);
  tape_.add(std::move(event));
}

diloco::tape::Batch Hub::unwritten_events(std::size_t at_most) const {
  const std::lock_guard lock(mutex_);
  auto batch = tape_.pending(at_most);
  batch.unit = unit_;
  batch.incarnation = incarnation_;
  return batch;
}

void Hub::events_written(std::int64_t upto) {
  const std::lock_guard lock(mutex_);
  tape_.acknowledged(upto);
}

void Hub::set_connected(bool connected) {
  const std::lock_guard lock(mutex_);
  connected_ = connected;
}

void Hub::set_stats(const LoopStats& stats) {
  const std::lock_guard lock(mutex_);
  stats_ = stats;
}

HubStatus Hub::status() const {
  const std::lock_guard lock(mutex_);
  HubStatus status;
  status.phase = core_.phase();
  status.run_phase = core_.run_phase();
  status.epoch = core_.epoch();
  status.committed = core_.committed();
  status.merged = core_.snapshots_merged();
  status.excluded = core_.snapshots_excluded();
  status.connected = connected_;
  status.loop = stats_;
  status.step_seconds = core_.step_seconds();
  return status;
}

}  // namespace archipelago::learner
