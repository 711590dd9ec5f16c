#include "operator/runtime/status_poller.h"

#include <algorithm>

#include "operator/api/json.h"

namespace archipelago::op {
namespace {
constexpr Duration kHurry = seconds(1);
constexpr Duration kSettingsRepeat = seconds(30);  // while it says an older generation

// The same settings would get the same answer. A 404 is none: an outer optimizer that is just about
// to serve the route.
bool is_judgement(ErrorKind kind) {
  return kind == ErrorKind::kInvalid || kind == ErrorKind::kRefused ||
         kind == ErrorKind::kConflict || kind == ErrorKind::kUnsupported;
}
}  // namespace

StatusPoller::StatusPoller(OuterStatusSource& source, const Clock& clock, Logger log,
                           PollerOptions options, std::function<void(const ObjectKey&)> enqueue)
    : source_(source),
      clock_(clock),
      log_(std::move(log)),
      options_(options),
      enqueue_(std::move(enqueue)),
      rng_(options.seed) {}

StatusPoller::~StatusPoller() { stop(); }

void StatusPoller::start() {
  for (int i = 0; i < std::max(options_.threads, 1); ++i)
    threads_.emplace_back([this](std::stop_token stop) { work(stop); });
}

void StatusPoller::stop() {
  for (std::jthread& t : threads_) t.request_stop();
  threads_.clear();
}

void StatusPoller::follow(const ObjectKey& key, const std::string& run_uid,
                          const std::optional<PodEndpoint>& outer) {
  std::lock_guard lock(mutex_);
  Run& run = runs_[key];
  if (run.uid != run_uid) {
    run = Run{};
    run.uid = run_uid;
  }
  const bool fresh = outer && (!run.outer || run.outer->pod_uid != outer->pod_uid);
  run.outer = outer;
  if (!fresh) return;
  run.cache.refused_settings.reset();  // another process judges anew
  run.next_poll = clock_.now();
  ++changes_;
  changed_.notify_all();
}

void StatusPoller::hurry(const ObjectKey& key, const std::string& what) {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.hurried_for == what) return;
  Run& run = it->second;
  run.hurried_for = what;
  run.hurry = what.empty() ? Duration(0) : kHurry;
  if (what.empty() || kHurry >= options_.interval) return;
  run.next_poll = std::min(run.next_poll, clock_.now() + kHurry);
  ++changes_;
  changed_.notify_all();
}

void StatusPoller::probe(const ObjectKey& key, const std::string& unit,
                         const PodEndpoint& learner) {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(key);
  if (it == runs_.end()) return;
  it->second.wanted_probes.insert_or_assign(unit, learner);
  ++changes_;
  changed_.notify_all();
}

void StatusPoller::send_settings(const ObjectKey& key, const nlohmann::json& settings) {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(key);
  if (it == runs_.end() || !it->second.outer) return;
  const std::string attempt =
      it->second.outer->pod_uid + " " + std::to_string(int_at(settings, {"generation"}));
  if (attempt == it->second.last_settings && clock_.now() < it->second.settings_again) return;
  it->second.settings = settings;
  it->second.last_settings = attempt;
  it->second.settings_again = clock_.now() + kSettingsRepeat;
  ++changes_;
  changed_.notify_all();
}

void StatusPoller::forget(const ObjectKey& key) {
  std::lock_guard lock(mutex_);
  runs_.erase(key);
}

PolledInput StatusPoller::input(const ObjectKey& key, const std::string& run_uid) const {
  std::lock_guard lock(mutex_);
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.uid != run_uid) return {};
  return it->second.cache;
}

std::optional<StatusPoller::Task> StatusPoller::take_due(TimePoint now, TimePoint* next) {
  std::pair<const ObjectKey*, Run*> longest{};
  for (auto& [key, run] : runs_) {
    if (run.settings && run.outer) {
      Task task{Task::What::kSettings, key, *run.outer, "", std::move(*run.settings)};
      run.settings.reset();
      return task;
    }
    if (!run.wanted_probes.empty()) {
      const auto first = run.wanted_probes.begin();
      Task task{Task::What::kProbe, key, first->second, first->first, {}};
      run.wanted_probes.erase(first);
      return task;
    }
    if (!run.outer || run.polling || run.next_poll >= *next) continue;
    *next = run.next_poll;  // of all that are due, the one that waits longest: nobody starves
    longest = {&key, &run};
  }
  if (longest.second == nullptr || *next > now) return std::nullopt;
  Run& run = *longest.second;
  run.polling = true;
  run.hurry = 2 * run.hurry < options_.interval ? 2 * run.hurry : Duration(0);
  const Duration wait = run.hurry > Duration(0) ? run.hurry : options_.interval;
  run.next_poll = now + seconds(to_seconds(wait) * rng_.uniform(0.8, 1.2));
  return Task{Task::What::kPoll, *longest.first, *run.outer, "", {}};
}

void StatusPoller::work(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::optional<Task> task;
    {
      std::unique_lock lock(mutex_);
      TimePoint next = clock_.now() + seconds(60);
      task = take_due(clock_.now(), &next);
      if (!task) {
        const std::uint64_t seen = changes_;
        changed_.wait_until(lock, stop, next, [&] { return changes_ != seen; });
        continue;
      }
    }
    perform(*task);
  }
}

void StatusPoller::perform(const Task& task) {
  switch (task.what) {
    case Task::What::kPoll:
      poll(task);
      break;
    case Task::What::kProbe:
      probe_now(task);
      break;
    case Task::What::kSettings:
      put_settings(task);
      break;
  }
}

void StatusPoller::poll(const Task& task) {
  const auto answer = source_.poll(task.pod, options_.deadline);
  auto document = answer ? read_outer_status(*answer) : fail(answer.error());
  bool told = false;
  {
    std::lock_guard lock(mutex_);
    const auto it = runs_.find(task.run);
    if (it == runs_.end()) return;
    Run& run = it->second;
    run.polling = false;
    told = run.silent != !document;
    run.silent = !document;
    if (document)
      run.cache.status = PolledStatus{std::move(*document), task.pod.pod_uid, clock_.wall()};
    ++changes_;
    changed_.notify_all();
  }
  if (document)
    enqueue_(task.run);
  else if (told)
    log_.info("no status of the outer optimizer",
              {{"run", task.run.name}, {"error", document.error().describe()}});
}

void StatusPoller::probe_now(const Task& task) {
  const UnitProbe probe = source_.probe_unit(task.pod, options_.deadline);
  {
    std::lock_guard lock(mutex_);
    const auto it = runs_.find(task.run);
    if (it == runs_.end()) return;
    it->second.cache.probes.insert_or_assign(
        task.unit, ObservedProbe{task.pod.pod_uid, probe.answered, probe.phase, clock_.wall()});
  }
  enqueue_(task.run);
}

void StatusPoller::put_settings(const Task& task) {
  const Status sent = source_.put_settings(task.pod, task.settings, options_.deadline);
  const bool judged = !sent && is_judgement(sent.error().kind);
  const std::int64_t generation = int_at(task.settings, {"generation"});
  {
    std::lock_guard lock(mutex_);
    const auto it = runs_.find(task.run);
    if (it == runs_.end()) return;
    it->second.cache.refused_settings.reset();
    if (judged) it->second.cache.refused_settings = {generation, sent.error().message};
  }
  if (judged) enqueue_(task.run);
  if (sent) return;
  // Without a judgement the next attempt follows after kSettingsRepeat.
  log_.warn("settings not taken by the outer optimizer",
            {{"run", task.run.name}, {"error", sent.error().describe()}});
}

}  // namespace archipelago::op
