#pragma once
// Lists one kind and watches it into a store, for ever: a version that is too old means a new list,
// an error a backoff.
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "operator/cluster/cluster.h"
#include "operator/runtime/object_store.h"

namespace archipelago::op {

class Reflector {
 public:
  // `on_change` runs on the reflector's thread, after the store has the change.
  Reflector(Cluster& cluster, Kind kind, std::string name_space, ObjectStore& store,
            const Clock& clock, Logger log, std::function<void(const Object&)> on_change);
  Reflector(const Reflector&) = delete;
  Reflector& operator=(const Reflector&) = delete;

  void start();
  void stop();  // idempotent
  [[nodiscard]] bool synced() const { return synced_.load(); }
  // Why this kind can't be read, while the server forbids it or doesn't know it; else "".
  [[nodiscard]] std::string unreadable() const;

 private:
  void run(std::stop_token stop);
  void note_failure(const Error& error);
  [[nodiscard]] Status list_and_watch(std::stop_token stop);
  [[nodiscard]] Status follow(std::string version, std::stop_token stop);

  Cluster& cluster_;
  const Kind kind_;
  const std::string name_space_;
  ObjectStore& store_;
  const Clock& clock_;
  Logger log_;
  std::function<void(const Object&)> on_change_;
  std::atomic<bool> synced_{false};
  mutable std::mutex mutex_;  // guards unreadable_
  std::string unreadable_;
  std::jthread thread_;
};

}  // namespace archipelago::op
