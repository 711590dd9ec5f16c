#include "operator/reconcile/reconciler.h"

#include <set>

#include <nlohmann/json.hpp>

#include "common/base/backoff.h"
#include "common/config/parse.h"
#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/api/status_change.h"
#include "operator/plan/observe.h"
#include "operator/plan/plan.h"

namespace archipelago::op {

using nlohmann::json;

struct Reconciler::Pass {
  ObjectKey key;
  Object training;
  Decision decision;
  Memory memory;
  ReconcileOutcome outcome;
  // What was expected before the caches were read. An event that ends an expectation between this
  // look and the act tells of an object that the look has not seen.
  std::set<std::string> awaited = {};
  bool new_runs_wait = false;
  std::int64_t telling = 0;  // the generation whose refused settings are among the events
};

namespace {

std::string join(const std::vector<config::FieldError>& errors) {
  std::string out;
  for (const config::FieldError& e : errors) {
    if (out.size() > 4 * kMaxConditionMessage) break;
    if (!out.empty()) out += "; ";
    out += config::format_error(e);
  }
  return out;
}

std::optional<ObservedChild> read_child(const StateReader& reader, Kind kind, const ObjectKey& key,
                                        const std::string& owner_uid) {
  const auto object = reader.child(kind, key);
  if (!object) return std::nullopt;
  return observe_child(object->json(), owner_uid);
}

std::string child_name(std::string_view kind, const std::string& name) {
  return std::string(kind) + "/" + name;
}

// 403 of RBAC, told from quota and admission by the API server's wording.
bool is_forbidden(const Error& error) {
  return error.kind == ErrorKind::kRefused && error.message.find(" cannot ") != std::string::npos;
}
}  // namespace

Reconciler::Reconciler(Cluster& cluster, StateReader& reader, const Clock& clock, Logger log,
                       ReconcileOptions options)
    : cluster_(cluster),
      reader_(reader),
      clock_(clock),
      log_(std::move(log)),
      options_(std::move(options)) {}

ReconcileOutcome Reconciler::reconcile(const ObjectKey& key, const PolledInput& polled) {
  const auto training = reader_.training(key);
  if (!training) {
    expectations_.forget(key);
    std::lock_guard lock(mutex_);
    memory_.erase(key);
    ReconcileOutcome gone;
    gone.result = ReconcileResult::kGone;
    return gone;
  }
  Pass pass{key, *training, {}, memory_of(key, training->uid()), {}};
  pass.awaited = expectations_.all(key, clock_.now());
  pass.new_runs_wait = polled.new_runs_wait;
  pass.outcome.run_uid = training->uid();
  if (training->deleting()) return pass.outcome;  // its children go by owner reference
  auto run = config::parse_training(training->json());
  if (!run) {
    pass.decision =
        plan_invalid(parse_status(training->status()), key.name_space, key.name, training->uid(),
                     training->generation(), join(run.error()), clock_.wall());
    act(pass);
    remember(key, std::move(pass.memory));
    return pass.outcome;
  }
  const Observed observed = observe(*training, std::move(*run), polled, pass.memory);
  pass.decision = plan(observed, options_.plan);
  pass.outcome.requeue = pass.decision.requeue;
  settle_settings(pass, polled.refused_settings, observed.now);
  for (const ObservedPod& p : observed.pods) {
    if (p.role == kRoleOuter && p.ready && !p.finished() &&
        p.uid == pass.decision.status.outer.pod_uid)
      pass.outcome.outer = p;
    for (const std::string& unit : pass.decision.probe_units)
      if (p.unit == unit && p.phase == PodPhase::kRunning) pass.outcome.probe_pods.push_back(p);
  }
  act(pass);
  remember(key, std::move(pass.memory));
  return pass.outcome;
}

// What was refused is told once and not sent again for that generation.
void Reconciler::settle_settings(Pass& pass, const std::optional<RefusedSettings>& refused,
                                 WallTime now) {
  const std::int64_t generation = pass.training.generation();
  if (!refused || refused->generation != generation || !pass.decision.settings) {
    pass.outcome.settings = pass.decision.settings;
    return;
  }
  if (pass.memory.refused_settings == generation) return;
  pass.telling = generation;
  pass.decision.events.push_back(
      {Kind::kTraining, pass.key.name_space, pass.key.name, pass.training.uid(), true,
       "SettingsRefused",
       "the outer optimizer goes on with its earlier settings: " + cut_utf8(refused->message, 600),
       now, ""});
}

ReconcileOutcome Reconciler::report_blind(const ObjectKey& key, const std::string& message) {
  const auto training = reader_.training(key);
  ReconcileOutcome out;
  if (!training) {
    out.result = ReconcileResult::kGone;
    return out;
  }
  Pass pass{key, *training, {}, memory_of(key, training->uid()), {}};
  pass.outcome.run_uid = training->uid();
  pass.decision.status = parse_status(training->status());
  set_trouble(pass.decision.status.conditions,
              {condition::kForbidden,
               true,
               "NotAllowed",
               cut_utf8(message, kMaxConditionMessage),
               {},
               training->generation()},
              clock_.wall());
  (void)write_status(pass);
  remember(key, std::move(pass.memory));
  pass.outcome.requeue = seconds(10);
  return pass.outcome;
}

void Reconciler::child_seen(const ObjectKey& run, Kind kind, const std::string& name) {
  expectations_.seen(run, child_name(to_string(kind), name));
}

Reconciler::Memory Reconciler::memory_of(const ObjectKey& key, const std::string& uid) {
  std::lock_guard lock(mutex_);
  const auto it = memory_.find(key);
  if (it != memory_.end() && it->second.uid == uid) return it->second;
  Memory fresh;
  fresh.uid = uid;
  return fresh;
}

void Reconciler::remember(const ObjectKey& key, Memory memory) {
  std::lock_guard lock(mutex_);
  memory_.insert_or_assign(key, std::move(memory));
}

Observed Reconciler::observe(const Object& training, config::DecoupledTraining run,
                             const PolledInput& polled, const Memory& memory) const {
  Observed out;
  const std::string uid = training.uid();
  const std::string ns = training.name_space();
  run.name = training.name();
  run.name_space = ns;
  run.uid = uid;
  run.generation = training.generation();
  out.status = parse_status(training.status());
  for (const Object& pod : reader_.pods(ns, uid)) out.pods.push_back(observe_pod(pod.json()));
  out.nodes_known = reader_.nodes_known();
  for (const ObservedPod& p : out.pods)
    if (const auto node = p.node.empty() ? std::nullopt : reader_.node(p.node))
      out.nodes.insert_or_assign(p.node, observe_node(node->json()));
  out.service = read_child(reader_, Kind::kService, {ns, outer_service_name(run.name)}, uid);
  out.config_map = read_child(reader_, Kind::kConfigMap, {ns, spec_config_map_name(run.name)}, uid);
  out.claim = read_child(reader_, Kind::kClaim, {ns, outer_claim_name(run.name, uid)}, uid);
  out.polled = polled.status;
  out.probes = polled.probes;
  out.problems = memory.problems;
  out.problems.insert(out.problems.end(), memory.template_problems.begin(),
                      memory.template_problems.end());
  for (const auto& [name, refused] : memory.refused) out.problems.push_back(refused.problem);
  out.now = clock_.wall();
  out.seed = options_.seed;
  out.run = std::move(run);
  return out;
}

void Reconciler::act(Pass& pass) {
  if (!write_status(pass)) return;
  execute(pass);
  for (const EventRecord& e : pass.decision.events) cluster_.record(e);
  if (pass.telling != 0) pass.memory.refused_settings = pass.telling;
}

Duration Reconciler::write_delay(const Pass& pass, StatusChange change, Memory& memory) const {
  if (change == StatusChange::kDecision) return Duration(0);
  const bool progress = change == StatusChange::kProgress;
  const TimePoint now = clock_.now();
  Duration interval = options_.settle_write_interval;
  if (progress)
    interval = pass.new_runs_wait ? std::max(options_.progress_write_interval,
                                             options_.busy_progress_write_interval)
                                  : options_.progress_write_interval;
  if (memory.last_write && now < *memory.last_write + interval)
    return *memory.last_write + interval - now;
  if (!progress) return Duration(0);
  if (memory.progress_turn && now < *memory.progress_turn) return *memory.progress_turn - now;
  const Duration wait = cluster_.progress_turn(memory.progress_turn.has_value());
  if (wait > Duration(0)) memory.progress_turn = now + wait;
  return wait;
}

bool Reconciler::write_status(Pass& pass) {
  const TrainingStatus stored = parse_status(pass.training.status());
  const TrainingStatus& next = pass.decision.status;
  pass.outcome.status = next;
  const StatusChange change = status_change(next, stored);
  if (change == StatusChange::kNone) return true;
  if (const Duration wait = write_delay(pass, change, pass.memory); wait > Duration(0)) {
    pass.outcome.requeue = std::min(pass.outcome.requeue.value_or(wait), wait);
    return true;
  }
  pass.memory.progress_turn.reset();
  json body = pass.training.json();
  body["status"] = to_json(next);
  const auto written = cluster_.update_status(
      body, change == StatusChange::kProgress ? WriteClass::kProgress : WriteClass::kDecision);
  if (written) {
    pass.memory.last_write = clock_.now();
    // What was just written may let the next step be planned; the cache has it, so no event tells.
    if (change != StatusChange::kProgress) pass.outcome.requeue = Duration(0);
    pass.outcome.transitions = transitions(stored, next);
    reader_.wrote(*written, pass.training.resource_version());
    return true;
  }
  const Error& error = written.error();
  if (error.kind == ErrorKind::kConflict || error.kind == ErrorKind::kNotFound) {
    pass.outcome.result = ReconcileResult::kConflict;
    return false;
  }
  if (error.kind == ErrorKind::kInvalid) {
    // The stored object itself breaks the schema: no status can be written until its spec changes.
    if (pass.memory.unwritable_generation != pass.training.generation()) {
      pass.memory.unwritable_generation = pass.training.generation();
      log_.error("status refused by the server",
                 {{"run", pass.key.name}, {"error", error.message}});
      cluster_.record({Kind::kTraining, pass.key.name_space, pass.key.name, pass.training.uid(),
                       true, "StatusRefused", cut_utf8(error.message, 800), clock_.wall(), ""});
    }
    pass.outcome.requeue.reset();
    return false;
  }
  log_.warn("status not written", {{"run", pass.key.name}, {"error", error.describe()}});
  pass.outcome.result = ReconcileResult::kRetry;
  return false;
}

void Reconciler::execute(Pass& pass) {
  pass.memory.problems.clear();
  const auto keep = [&](std::optional<ExecutionProblem> problem) {
    if (problem) pass.memory.problems.push_back(std::move(*problem));
  };
  check_templates(pass);
  for (const json& object : pass.decision.applies) {
    const auto applied = cluster_.apply(object);
    if (!applied) keep(refusal(pass, string_at(object, {"metadata", "name"}), applied.error()));
  }
  for (const DeleteAction& d : pass.decision.deletes) {
    const Status removed =
        cluster_.remove(d.kind, {pass.key.name_space, d.name}, {d.uid, d.grace_seconds});
    if (removed || removed.error().kind == ErrorKind::kNotFound) continue;
    if (removed.error().kind == ErrorKind::kConflict)
      continue;  // another object of that name: not ours to delete
    keep(refusal(pass, d.name, removed.error()));
  }
  create_all(pass);
}

void Reconciler::check_templates(Pass& pass) {
  if (pass.decision.checks.empty()) return;
  pass.memory.template_problems.clear();
  for (const json& pod : pass.decision.checks) {
    const Status judged = cluster_.check(pod);
    if (judged) continue;
    const ErrorKind kind = judged.error().kind;
    if (kind != ErrorKind::kInvalid && kind != ErrorKind::kRefused) continue;  // asked at the POST
    const std::string where = string_at(pod, {"metadata", "labels", kLabelDatacenter});
    const bool outer = string_at(pod, {"metadata", "labels", kLabelRole}) == kRoleOuter;
    pass.memory.template_problems.push_back(
        {ProblemKind::kPodRejected,
         outer ? "spec.outerOptimizer.template" : "spec.datacenters[" + where + "].template",
         judged.error().message});
  }
  if (!pass.memory.template_problems.empty()) pass.outcome.requeue = Duration(0);  // to tell it
}

// What was refused is tried again with a backoff of its own, whatever else wakes the run: a full
// quota must not turn every event into a request.
void Reconciler::create_all(Pass& pass) {
  std::map<std::string, Refusal> still;
  const TimePoint now = clock_.now();
  for (const json& object : pass.decision.creates) {
    const std::string name =
        child_name(string_at(object, {"kind"}), string_at(object, {"metadata", "name"}));
    if (pass.awaited.count(name) != 0 || expectations_.pending(pass.key, name, now)) continue;
    const auto known = pass.memory.refused.find(name);
    Refusal next = known != pass.memory.refused.end() ? known->second : Refusal{};
    if (known == pass.memory.refused.end() || next.again <= now) {
      auto problem = create(pass, object);
      if (!problem) continue;
      Rng rng(options_.seed + static_cast<std::uint64_t>(next.count));
      next.again = now + backoff_delay({seconds(1), seconds(60), 2.0, 0.2}, next.count, rng);
      ++next.count;
      next.problem = std::move(*problem);
    }
    const Duration wait = next.again - now;
    if (!pass.outcome.requeue || *pass.outcome.requeue > wait) pass.outcome.requeue = wait;
    still.insert_or_assign(name, std::move(next));
  }
  pass.memory.refused = std::move(still);
}

std::optional<ExecutionProblem> Reconciler::create(Pass& pass, const json& object) {
  const std::string name = string_at(object, {"metadata", "name"});
  const std::string child = child_name(string_at(object, {"kind"}), name);
  // Before the POST: the event may be faster than its answer.
  expectations_.expect(pass.key, child, clock_.now());
  const auto made = cluster_.create(object);
  if (made) return std::nullopt;
  if (made.error().kind != ErrorKind::kConflict) {
    expectations_.seen(pass.key, child);
    return refusal(pass, name, made.error());
  }
  const Kind kind = parse_kind(string_at(object, {"kind"})).value_or(Kind::kPod);
  const auto there = cluster_.get(kind, {pass.key.name_space, name});
  if (!there) {
    expectations_.seen(pass.key, child);
    return refusal(pass, name, there.error());
  }
  // Ours: an earlier pass made it and our view had not caught up.
  if (observe_child(there->json(), pass.training.uid()).ours) return std::nullopt;
  expectations_.seen(pass.key, child);
  pass.outcome.result = ReconcileResult::kRetry;
  return ExecutionProblem{
      ProblemKind::kNameConflict, name,
      "a " + std::string(to_string(kind)) +
          " of this name belongs to something else; rename the run, or remove it"};
}

std::optional<ExecutionProblem> Reconciler::refusal(Pass& pass, const std::string& name,
                                                    const Error& error) {
  pass.outcome.result = ReconcileResult::kRetry;
  if (error.kind == ErrorKind::kInvalid || error.kind == ErrorKind::kRefused)
    return ExecutionProblem{
        is_forbidden(error) ? ProblemKind::kForbidden : ProblemKind::kPodRejected, name,
        error.message};
  log_.warn("action failed",
            {{"run", pass.key.name}, {"object", name}, {"error", error.describe()}});
  return std::nullopt;
}

}  // namespace archipelago::op
