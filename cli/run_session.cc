#include "cli/run_session.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/spec_file.h"
#include "common/base/files.h"
#include "common/config/parse.h"
#include "operator/api/json.h"
#include "operator/api/names.h"
#include "operator/local/addresses.h"
#include "operator/local/report.h"
#include "operator/plan/children.h"

namespace archipelago::cli {

namespace {

using nlohmann::json;

constexpr double kTick = 0.1;
constexpr double kSaveEvery = 2;
constexpr double kPaceWindow = 15;

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

json training_object(const config::DecoupledTraining& training) {
  json object = config::to_json(training);
  object["apiVersion"] = config::kApiVersion;
  object["kind"] = config::kKind;
  object["metadata"]["name"] = training.name;
  object["metadata"]["namespace"] = training.name_space;
  return object;
}

}  // namespace

RunSession::RunSession(config::DecoupledTraining training, RunFolder folder,
                       op::ChaosSchedule chaos, SessionOptions options)
    : training_(std::move(training)),
      folder_(std::move(folder)),
      chaos_(std::move(chaos)),
      options_(std::move(options)),
      log_(Logger::to_file("operator", folder_.file("logs/operator.log").string(),
                           options_.log_level)),
      record_(training_.spec.sync.interval),
      summary_(std::make_unique<json>()) {}

RunSession::~RunSession() {
  if (controller_) controller_->stop();
  if (kubelet_) kubelet_->stop(Duration{});
}

Status RunSession::create_training(const std::optional<json>& stored) {
  json object = training_object(training_);
  if (stored) object["metadata"]["uid"] = op::string_at(*stored, {"metadata", "uid"});
  ARCH_TRY(op::Object made, cluster_->create(object));
  if (stored && stored->contains("status")) {
    json next = made.json();
    next["status"] = stored->at("status");
    ARCH_TRY(made, cluster_->update_status(next));
  }
  training_.uid = made.uid();
  return {};
}

Status RunSession::start(const std::optional<json>& stored) {
  if (stored) {
    if (auto saved = folder_.load_record()) {
      auto loaded = op::RunRecord::load(*saved);
      if (loaded)
        record_ = std::move(*loaded);
      else
        log_.warn("earlier figures of this run are lost", {{"why", loaded.error().message}});
    }
    chaos_.skip_until(record_.global_step(),
                      record_.elapsed() - record_.first_step_at().value_or(1e18));
  }
  events_ = std::make_unique<EventLog>(folder_.file("events.jsonl").string(), clock_,
                                       record_.elapsed(), options_.terminal ? nullptr : stdout);
  op::MemoryClusterOptions memory;
  memory.on_event = [this](const op::EventRecord& event) { events_->add(event); };
  cluster_ = std::make_unique<op::MemoryCluster>(clock_, memory);
  ARCH_TRY_VOID(create_training(stored));
  folder_.link_claim(claim());

  ARCH_TRY(op::AddressPool addresses, op::AddressPool::find_free(training_.uid, op::kExchangePort));
  op::KubeletOptions kubelet;
  kubelet.run_dir = folder_.path();
  kubelet.bin_dir = options_.bin_dir;
  kubelet.launcher = options_.bin_dir / "archipelago-launch";
  kubelet.base_env = op::inherited_environment();
  kubelet.default_threads = std::max(1, cores() / std::max(1, config::total_units(training_.spec)));
  const double cpus = options_.node_cpus > 0 ? options_.node_cpus : cores();
  for (const auto& dc : training_.spec.datacenters)
    kubelet.nodes.push_back({dc.name, dc.name, cpus});
  if (!cgroups_.complaint().empty())
    events_->note("limits are not enforced on this machine: " + cgroups_.complaint());
  kubelet_ = std::make_unique<op::Kubelet>(*cluster_, clock_, cgroups_, std::move(addresses),
                                           log_.named("kubelet"), kubelet);
  ARCH_TRY_VOID(kubelet_->start());

  op::ControllerOptions controller;
  controller.poll_interval = seconds(0.5);
  controller.poll_deadline = seconds(1);
  controller.progress_write_interval = seconds(1);
  controller.settle_write_interval = seconds(0);
  controller.seed = static_cast<std::uint64_t>(clock_.wall().time_since_epoch().count());
  controller_ = std::make_unique<op::Controller>(*cluster_, source_, clock_,
                                                 log_.named("controller"), nullptr, controller);
  controller_->start();
  sampler_ = std::make_unique<op::StatusSampler>(seconds(kTick));
  if (options_.trace_steps)
    trace_ = std::make_unique<StepTrace>(folder_.file("steps.jsonl").string());
  events_->note((stored ? "resumed " : "started ") + training_.name + " in " +
                folder_.path().string());
  return {};
}

std::string RunSession::claim() const { return op::claim_in_use(training_); }

void RunSession::read_status() {
  auto object = cluster_->get(op::Kind::kTraining, {training_.name_space, training_.name});
  if (!object) return;
  stored_training_ = std::make_unique<json>(object->json());
  status_ = op::parse_status(object->status());
}

std::shared_ptr<const json> RunSession::outer_answer(
    const std::vector<op::RunningPod>& pods) const {
  for (const auto& pod : pods) {
    if (pod.unit.empty()) return sampler_->latest(pod.uid).document;
  }
  return nullptr;
}

op::UnitSample RunSession::sample_unit(const op::UnitStatus& unit,
                                       const std::vector<op::RunningPod>& pods) const {
  op::UnitSample out;
  out.name = unit.name;
  out.datacenter = unit.name.substr(0, unit.name.rfind('-'));
  out.incarnation = unit.incarnation;
  if (unit.phase == op::UnitPhase::kFinished) out.state = op::IslandState::kWaiting;
  for (const auto& pod : pods) {
    if (pod.unit != unit.name || pod.incarnation < out.incarnation) continue;
    out.incarnation = pod.incarnation;
    const auto answer = sampler_->latest(pod.uid).document;
    if (!answer) continue;
    out.state = op::island_state(op::string_at(*answer, {"phase"}));
    out.steps = op::int_at(*answer, {"steps"}, op::int_at(*answer, {"localStep"}));
    out.tokens = op::int_at(*answer, {"tokens"});
    out.seconds_in_steps = op::number_at(*answer, {"stepSecondsTotal"});
    out.exchange_seconds = op::number_at(*answer, {"exchangeSecondsTotal"});
    out.tokens_per_second = op::number_at(*answer, {"tokensPerSecond"});
  }
  return out;
}

void RunSession::sample() {
  const auto pods = kubelet_->running();
  sampler_->follow(pods);
  outer_ = outer_answer(pods);
  op::RunSample sample;
  sample.t = events_->now();
  sample.outer = outer_.get();
  sample.outer_incarnation = static_cast<int>(status_.outer.incarnation);
  const bool suspended = status_.phase == op::RunPhase::kSuspended;
  sample.desired_units = suspended ? 0 : config::total_units(training_.spec);
  for (const auto& unit : status_.units) sample.units.push_back(sample_unit(unit, pods));
  record_.observe(sample);
  if (trace_) trace_->add(sample.t, sample.units);
  pace_.emplace_back(sample.t, record_.global_step());
  while (pace_.size() > 2 && pace_.front().first < sample.t - kPaceWindow) pace_.pop_front();
}

void RunSession::apply(const op::ChaosAction& action) {
  Status done;
  std::string text = op::to_string(action.kind);
  const Duration how_long = seconds(action.seconds);
  switch (action.kind) {
    case op::ChaosKind::kKill:
      done = kubelet_->kill(action.target);
      break;
    case op::ChaosKind::kHang:
      done = kubelet_->hang(action.target);
      break;
    case op::ChaosKind::kEvict:
      done = kubelet_->evict(action.target);
      break;
    case op::ChaosKind::kSlow:
      done = kubelet_->slow(action.target, action.factor, how_long);
      text += " by " + json(action.factor).dump() + " for " + json(action.seconds).dump() + " s";
      break;
    case op::ChaosKind::kLose:
      done = kubelet_->lose_node(action.datacenter, how_long);
      text += " node of " + action.datacenter + " for " + json(action.seconds).dump() + " s";
      break;
  }
  const std::string target = action.target == op::kChaosOuterOptimizer ? "outer" : action.target;
  events_->chaos(target, text + (target.empty() ? "" : " " + target) +
                             (done ? "" : ": " + done.error().message));
}

void RunSession::act_chaos() {
  if (chaos_.remaining() == 0) return;
  op::ChaosView view;
  view.global_step = record_.global_step();
  if (const auto first = record_.first_step_at()) view.seconds = events_->now() - *first;
  for (const auto& pod : kubelet_->running()) {
    if (!pod.unit.empty() && !pod.stopped) view.live_units.push_back(pod.unit);
  }
  std::sort(view.live_units.begin(), view.live_units.end());
  for (const auto& action : chaos_.due(view)) apply(action);
}

void RunSession::save() {
  if (!stored_training_) return;
  if (auto saved = folder_.save(*stored_training_, record_.save()); !saved)
    log_.warn("the run's state is not saved", {{"error", saved.error().message}});
}

void RunSession::tick() {
  read_status();
  sample();
  act_chaos();
  const double now = events_->now();
  if (now >= next_save_) {
    next_save_ = now + kSaveEvery;
    save();
  }
  if (now >= next_show_) show();
}

op::RunPhase RunSession::run() {
  while (!stop_) {
    tick();
    if (op::is_terminal(status_.phase)) break;
    std::this_thread::sleep_for(std::chrono::duration<double>(kTick));
  }
  finish();
  return status_.phase;
}

void RunSession::finish() {
  const bool succeeded = status_.phase == op::RunPhase::kSucceeded;
  // The document of the end has the last counters: it is served for finishedLingerSeconds.
  for (int i = 0;
       succeeded && i < 20 && op::string_at(outer_ ? *outer_ : json(), {"phase"}) != "finished";
       ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kTick));
    sample();
  }
  if (options_.terminal) draw();
  controller_->stop();
  if (stop_) events_->note("stopping: learners first, then the outer optimizer");
  kubelet_->stop(options_.stop_grace);
  read_status();
  has_model_ = folder_.copy_model(claim());
  *summary_ = record_.summary(stored_training_ ? op::at(*stored_training_, {"status"}) : json());
  const auto tape =
      op::read_metrics(read_file(folder_.file("metrics.jsonl")).value_or(std::string()));
  // The tape knows what was committed between the last look and the end.
  if (!tape.empty()) (*summary_)["globalStep"] = std::max(record_.global_step(), tape.back().step);
  save();
  const std::string text = summary_->dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const std::string page =
      op::render_report(training_.name, *summary_, record_, tape, events_->all());
  for (const auto& [name, content] :
       {std::pair("summary.json", &text), std::pair("report.html", &page)}) {
    if (auto written = write_file_durably(folder_.file(name), *content); !written)
      events_->note("not written: " + written.error().message);
  }
}

std::string RunSession::failure() const {
  const op::Condition* failed = op::find_condition(status_.conditions, op::condition::kFailed);
  if (failed != nullptr && failed->status) return failed->reason + ": " + failed->message;
  for (const auto& unit : status_.units) {
    if (unit.last_failure)
      return unit.name + ": " + std::string(op::to_string(unit.last_failure->reason)) + ": " +
             unit.last_failure->message;
  }
  return "no reason is known";
}

}  // namespace archipelago::cli
