#pragma once
// A run in a box for plan tests: it plays API server (pods come and go as decided) without one.
#include <algorithm>
#include <string>
#include <vector>

#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/api/names.h"
#include "operator/plan/children.h"
#include "operator/plan/observe.h"
#include "operator/plan/plan.h"

namespace archipelago::op {

inline WallTime wall(double s) {
  return WallTime(std::chrono::milliseconds(1'800'000'000'000LL)) + wall_seconds(s);
}

inline config::DecoupledTraining small_run(int east = 2, int west = 1, int quorum = 1) {
  config::DecoupledTraining run;
  run.name = "r";
  run.uid = "5c0e1111-2222-4333-8444-555555555555";
  run.spec.images.learner = "learner:1";
  config::DatacenterSpec e;
  e.name = "east";
  e.learner_units = east;
  run.spec.datacenters.push_back(e);
  if (west > 0) {
    config::DatacenterSpec w;
    w.name = "west";
    w.learner_units = west;
    run.spec.datacenters.push_back(w);
  }
  run.spec.outer_optimizer.datacenter = "east";
  run.spec.sync.quorum = quorum;
  run.spec.sync.max_lead = 48;
  run.spec.sync.start_units = east + west;
  run.spec.data.train.path = "/data/train.bin";
  return run;
}

class World {
 public:
  explicit World(config::DecoupledTraining run = small_run()) {
    in.run = std::move(run);
    in.seed = 7;
    in.now = wall(0);
  }

  Observed in;
  PlanOptions options;
  int next_uid = 1;

  Decision look() {
    Decision d = plan(in, options);
    return d;
  }
  // Looks and lets everything happen: status stored, pods made and (bound ones: gracefully)
  // deleted.
  Decision step() {
    Decision d = look();
    in.status = parse_status(to_json(d.status));
    for (const DeleteAction& del : d.deletes) remove(del);
    for (const auto& object : d.creates) make(object);
    return d;
  }
  void make(const nlohmann::json& object) {
    if (string_at(object, {"kind"}) == "Pod") {
      ObservedPod pod = observe_pod(object);
      pod.uid = "uid-" + std::to_string(next_uid++);
      pod.started = in.now;
      in.pods.push_back(pod);
    } else {
      ObservedChild child = observe_child(object, in.run.uid);
      child.uid = "child-" + std::to_string(next_uid++);
      if (string_at(object, {"kind"}) == "Service") in.service = child;
      if (string_at(object, {"kind"}) == "ConfigMap") in.config_map = child;
      if (string_at(object, {"kind"}) == "PersistentVolumeClaim") in.claim = child;
    }
  }
  void remove(const DeleteAction& del) {
    for (ObservedPod& p : in.pods)
      if (p.uid == del.uid && !p.node.empty() && !p.finished() && del.grace_seconds != 0)
        p.deletion = in.now + std::chrono::seconds(30);
    std::erase_if(in.pods, [&](const ObservedPod& p) { return p.uid == del.uid && !p.deletion; });
  }
  void gone(const std::string& name) {
    std::erase_if(in.pods, [&](const ObservedPod& p) { return p.name == name; });
  }
  ObservedPod& pod(const std::string& name) {
    for (ObservedPod& p : in.pods)
      if (p.name == name) return p;
    throw std::runtime_error("no pod " + name);
  }
  bool has_pod(const std::string& name) const {
    return std::any_of(in.pods.begin(), in.pods.end(),
                       [&](const ObservedPod& p) { return p.name == name; });
  }
  const UnitStatus& unit(const std::string& name) const {
    for (const UnitStatus& u : in.status.units)
      if (u.name == name) return u;
    throw std::runtime_error("no unit " + name);
  }

  void run_all() {
    for (ObservedPod& p : in.pods)
      if (p.phase == PodPhase::kPending) {
        p.phase = PodPhase::kRunning;
        p.node = "node-" + (p.name.find("west") != std::string::npos ? std::string("west")
                                                                     : std::string("east"));
        p.ready = true;
        p.ready_changed = in.now;
      }
  }
  // The outer optimizer says that every running learner pod steps.
  void poll(std::int64_t global_step, const std::string& phase = "running") {
    PolledStatus polled;
    polled.time = in.now;
    polled.pod_uid = in.status.outer.pod_uid;
    polled.document.phase = phase;
    polled.document.global_step = global_step;
    polled.document.settings_generation = in.run.generation;
    for (const ObservedPod& p : in.pods) {
      if (p.role != kRoleLearner || p.phase != PodPhase::kRunning) continue;
      OuterUnit u;
      u.name = p.unit;
      u.datacenter = p.unit.substr(0, p.unit.rfind('-'));
      u.incarnation = p.incarnation;
      u.phase = "Stepping";
      u.local_step = global_step;
      polled.document.units.push_back(u);
    }
    in.polled = polled;
  }
  void pass(double s) { in.now += wall_seconds(s); }
  // Pods made, running, stepping.
  void start(std::int64_t global_step = 10) {
    step();
    step();
    run_all();
    step();
    poll(global_step);
    step();
  }
  void fail_pod(const std::string& name, int code, const std::string& reason = "Error") {
    ObservedPod& p = pod(name);
    p.phase = code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
    p.ready = false;
    p.terminated = Termination{code, reason, ""};
  }
};

inline int count_kind(const std::vector<nlohmann::json>& objects, const std::string& kind) {
  return static_cast<int>(std::count_if(objects.begin(), objects.end(), [&](const auto& o) {
    return string_at(o, {"kind"}) == kind;
  }));
}

}  // namespace archipelago::op
