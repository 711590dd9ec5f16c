#pragma once
// A MemoryCluster with a run in it, a reader on it, and a cluster in front of it that refuses what
// a test asks for.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/cluster/memory_cluster.h"
#include "operator/reconcile/reconciler.h"

namespace archipelago::op {

inline nlohmann::json small_training(const std::string& name = "r",
                                     const std::string& name_space = "default") {
  using nlohmann::json;
  return {{"apiVersion", "archipelago.training/v1alpha1"},
          {"kind", "DecoupledTraining"},
          {"metadata", {{"name", name}, {"namespace", name_space}}},
          {"spec",
           {{"data", {{"train", {{"path", "/data/train.bin"}, {"format", "text"}}}}},
            {"datacenters", json::array({{{"name", "east"}, {"learnerUnits", 2}},
                                         {{"name", "west"}, {"learnerUnits", 1}}})}}}};
}

inline std::vector<Object> items(const Cluster& cluster, Kind kind,
                                 const std::string& name_space = "") {
  return cluster.list(kind, {name_space, {}})->items;
}

class DirectReader final : public StateReader {
 public:
  explicit DirectReader(const Cluster& cluster) : cluster_(cluster) {}
  std::optional<Object> training(const ObjectKey& key) const override {
    const auto o = cluster_.get(Kind::kTraining, key);
    return o ? std::optional(*o) : std::nullopt;
  }
  std::vector<Object> pods(const std::string& name_space, const std::string& uid) const override {
    std::vector<Object> out;
    for (const Object& o : items(cluster_, Kind::kPod, name_space))
      if (o.controller_uid() == uid) out.push_back(o);
    return out;
  }
  void wrote(const Object&, const std::string&) override {}  // it reads the cluster itself
  std::optional<Object> child(Kind kind, const ObjectKey& key) const override {
    const auto o = cluster_.get(kind, key);
    return o ? std::optional(*o) : std::nullopt;
  }
  std::optional<Object> node(const std::string& name) const override {
    const auto o = cluster_.get(Kind::kNode, {"", name});
    return o ? std::optional(*o) : std::nullopt;
  }
  bool nodes_known() const override { return !cluster_.list(Kind::kNode, {})->items.empty(); }

 private:
  const Cluster& cluster_;
};

// Passes everything on, counts, and answers with `refuse`'s error where it gives one.
class FaultyCluster final : public Cluster {
 public:
  explicit FaultyCluster(Cluster& inner) : inner_(inner) {}
  std::function<std::optional<Error>(const std::string& verb, const nlohmann::json& object)> refuse;
  std::function<Duration(bool booked)> turn;
  std::map<std::string, int> calls;
  std::vector<EventRecord> events;

  Result<Object> create(const nlohmann::json& o) override {
    return guarded("create", o, [&] { return inner_.create(o); });
  }
  Status check(const nlohmann::json& o) override {
    ++calls["check"];
    if (refuse)
      if (auto error = refuse("check", o)) return fail(*error);
    return inner_.check(o);
  }
  Result<Object> get(Kind kind, const ObjectKey& key) const override {
    return inner_.get(kind, key);
  }
  Result<ObjectList> list(Kind kind, const ListOptions& options) const override {
    return inner_.list(kind, options);
  }
  Result<Object> update(const nlohmann::json& o) override {
    return guarded("update", o, [&] { return inner_.update(o); });
  }
  Result<Object> apply(const nlohmann::json& o) override {
    return guarded("apply", o, [&] { return inner_.apply(o); });
  }
  Result<Object> update_status(const nlohmann::json& o, WriteClass write_class) override {
    return guarded("status", o, [&] { return inner_.update_status(o, write_class); });
  }
  Status remove(Kind kind, const ObjectKey& key, const DeleteOptions& options) override {
    ++calls["remove"];
    return inner_.remove(kind, key, options);
  }
  Result<std::unique_ptr<Watch>> watch(Kind kind, const std::string& ns,
                                       const std::string& version) override {
    return inner_.watch(kind, ns, version);
  }
  Duration progress_turn(bool booked) override { return turn ? turn(booked) : Duration(0); }
  void record(const EventRecord& e) override { events.push_back(e); }

 private:
  template <class Call>
  Result<Object> guarded(const std::string& verb, const nlohmann::json& object, Call call) {
    ++calls[verb];
    if (refuse)
      if (auto error = refuse(verb, object)) return fail(*error);
    return call();
  }
  Cluster& inner_;
};

// Nothing waits for more to be written with it: tests look at each write.
inline ReconcileOptions at_once() {
  ReconcileOptions options;
  options.settle_write_interval = Duration(0);
  return options;
}

struct ClusterWorld {
  ManualClock clock;
  MemoryCluster memory{clock, {4096, 256, 3, {}}};
  FaultyCluster cluster{memory};
  DirectReader reader{memory};
  Reconciler reconciler{cluster, reader, clock, Logger::null(), at_once()};
  ObjectKey key{"default", "r"};
  PolledInput polled;

  ReconcileOutcome look() { return reconciler.reconcile(key, polled); }
  Object training() const { return *memory.get(Kind::kTraining, key); }
  TrainingStatus status() const { return parse_status(training().status()); }
  std::vector<std::string> pod_names() const {
    std::vector<std::string> out;
    for (const Object& o : items(memory, Kind::kPod)) out.push_back(o.name());
    return out;
  }
  void set_pod(const std::string& name, const nlohmann::json& pod_status) {
    nlohmann::json body = memory.get(Kind::kPod, {key.name_space, name})->json();
    body["status"] = pod_status;
    (void)memory.update_status(body);
  }
  void fail_pod(const std::string& name, int code, const std::string& reason = "Error") {
    set_pod(name,
            {{"phase", "Failed"},
             {"containerStatuses",
              nlohmann::json::array(
                  {{{"state", {{"terminated", {{"exitCode", code}, {"reason", reason}}}}}}})}});
  }
};

}  // namespace archipelago::op
