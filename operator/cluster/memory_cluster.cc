#include "operator/cluster/memory_cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <random>

#include <nlohmann/json.hpp>

#include "common/base/rng.h"
#include "operator/api/json.h"

namespace archipelago::op {

using nlohmann::json;

namespace {
struct HistoryEntry {
  std::uint64_t version;
  Kind kind;
  WatchType type;
  Object object;
};
using KindMap = std::map<ObjectKey, Object>;
constexpr std::size_t kKinds = 6;

std::string describe(Kind kind, const ObjectKey& key) {
  const std::string where = key.name_space.empty() ? key.name : key.name_space + "/" + key.name;
  return std::string(to_string(kind)) + " " + where;
}

// What an update must name: a known kind of ours, a name, and a namespace exactly where the kind
// has one.
Result<std::pair<Kind, ObjectKey>> identify(const json& object) {
  const std::string kind_name = string_at(object, {"kind"});
  const auto kind = parse_kind(kind_name);
  if (!kind || string_at(object, {"apiVersion"}) != api_version(*kind))
    return fail(ErrorKind::kInvalid, "kind: '" + string_at(object, {"apiVersion"}) + " " +
                                         kind_name + "' is not served here");
  ObjectKey key{string_at(object, {"metadata", "namespace"}),
                string_at(object, {"metadata", "name"})};
  if (key.name.empty()) return fail(ErrorKind::kInvalid, "metadata.name: required");
  if (is_namespaced(*kind) == key.name_space.empty())
    return fail(ErrorKind::kInvalid,
                "metadata.namespace: " +
                    std::string(is_namespaced(*kind) ? "required for " : "not allowed for ") +
                    kind_name);
  return std::pair{*kind, key};
}

// Server-side apply without field ownership: objects merge, everything else is replaced.
void merge_into(json& target, const json& patch) {
  if (!patch.is_object() || !target.is_object()) {
    target = patch;
    return;
  }
  for (const auto& [name, value] : patch.items()) {
    if (value.is_object() && target.contains(name))
      merge_into(target[name], value);
    else
      target[name] = value;
  }
}

bool has_labels(const Object& object, const std::map<std::string, std::string>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](const auto& l) { return object.label(l.first) == l.second; });
}

// Graceful deletion waits for a kubelet only when there is one and something still runs.
bool waits_for_kubelet(const Object& pod) {
  const std::string phase = string_at(pod.status(), {"phase"});
  return pod.kind() == Kind::kPod && !string_at(pod.spec(), {"nodeName"}).empty() &&
         phase != "Succeeded" && phase != "Failed";
}
}  // namespace

struct MemoryCluster::State {
  State(const Clock& c, MemoryClusterOptions o)
      : clock(c), options(std::move(o)), rng(options.uid_seed) {
    if (options.uid_seed == 0) {
      std::random_device device;
      rng = Rng((static_cast<std::uint64_t>(device()) << 32U) | device());
    }
  }

  const Clock& clock;
  MemoryClusterOptions options;
  mutable std::mutex mutex;  // guards everything below
  std::condition_variable_any changed;
  Rng rng;
  std::uint64_t version = 1;
  std::uint64_t forgotten = 0;  // highest version that fell out of the history
  std::array<KindMap, kKinds> objects;
  std::deque<HistoryEntry> history;
  std::deque<EventRecord> events;

  KindMap& of(Kind kind) { return objects[static_cast<std::size_t>(kind)]; }

  std::string new_uid() {
    const std::uint64_t a = rng.next();
    const std::uint64_t b = rng.next();
    std::array<char, 40> text{};
    std::snprintf(text.data(), text.size(), "%08x-%04x-4%03x-%04x-%012llx",
                  static_cast<unsigned>(a >> 32U), static_cast<unsigned>((a >> 16U) & 0xffffU),
                  static_cast<unsigned>(a & 0xfffU),
                  static_cast<unsigned>(0x8000U | ((b >> 48U) & 0x3fffU)),
                  static_cast<unsigned long long>(b & 0xffffffffffffULL));
    return text.data();
  }

  void remember(Kind kind, WatchType type, const Object& object) {
    history.push_back({version, kind, type, object});
    while (history.size() > options.history) {
      forgotten = history.front().version;
      history.pop_front();
    }
    changed.notify_all();
  }

  Object store(Kind kind, const ObjectKey& key, json value, WatchType type) {
    value["metadata"]["resourceVersion"] = std::to_string(++version);
    Object object(std::move(value));
    of(kind).insert_or_assign(key, object);
    remember(kind, type, object);
    return object;
  }

  Result<Object> find(Kind kind, const ObjectKey& key) {
    const auto it = of(kind).find(key);
    if (it == of(kind).end()) return fail(ErrorKind::kNotFound, describe(kind, key) + " not found");
    return it->second;
  }

  Status check_preconditions(const Object& stored, const json& body) const {
    const std::string given = string_at(body, {"metadata", "resourceVersion"});
    if (!given.empty() && given != stored.resource_version())
      return fail(ErrorKind::kConflict, describe(stored.kind(), stored.key()) +
                                            ": resourceVersion " + given + " is stale, stored is " +
                                            stored.resource_version());
    return check_uid(stored, string_at(body, {"metadata", "uid"}));
  }
  static Status check_uid(const Object& stored, const std::string& uid) {
    if (!uid.empty() && uid != stored.uid())
      return fail(ErrorKind::kConflict, describe(stored.kind(), stored.key()) + ": uid " + uid +
                                            " was expected, the object has " + stored.uid());
    return {};
  }

  Result<Object> replace(const Object& stored, json next) {
    for (const char* field : {"uid", "creationTimestamp", "generation", "deletionTimestamp",
                              "deletionGracePeriodSeconds", "resourceVersion"}) {
      const json& old = at(stored.json(), {"metadata", field});
      if (old.is_null())
        next["metadata"].erase(field);
      else
        next["metadata"][field] = old;
    }
    if (stored.status().is_null())
      next.erase("status");
    else
      next["status"] = stored.status();
    if (next == stored.json()) return stored;  // nothing changed: no new version, no event
    if (at(next, {"spec"}) != stored.spec())
      next["metadata"]["generation"] = stored.generation() + 1;
    return store(stored.kind(), stored.key(), std::move(next), WatchType::kModified);
  }

  bool uid_exists(const std::string& uid) const {
    return std::any_of(objects.begin(), objects.end(), [&](const KindMap& m) {
      return std::any_of(m.begin(), m.end(), [&](const auto& o) { return o.second.uid() == uid; });
    });
  }
  bool is_orphan(const Object& object) const {
    const json& owners = at(object.json(), {"metadata", "ownerReferences"});
    if (!owners.is_array() || owners.empty()) return false;
    return std::none_of(owners.begin(), owners.end(),
                        [&](const json& o) { return uid_exists(string_at(o, {"uid"})); });
  }

  void erase(const Object& object) {
    of(object.kind()).erase(object.key());
    json last = object.json();
    last["metadata"]["resourceVersion"] = std::to_string(++version);
    remember(object.kind(), WatchType::kDeleted, Object(std::move(last)));
    collect_orphans();
  }
  // Background propagation: dependents whose last owner is gone.
  void collect_orphans() {
    std::vector<Object> orphans;
    for (const KindMap& m : objects)
      for (const auto& [key, object] : m)
        if (!object.deleting() && is_orphan(object)) orphans.push_back(object);
    for (const Object& o : orphans)
      if (of(o.kind()).count(o.key()) != 0) remove(o, std::nullopt);
  }

  void remove(const Object& object, std::optional<std::int64_t> grace) {
    const std::int64_t period =
        grace.value_or(int_at(object.spec(), {"terminationGracePeriodSeconds"}, 30));
    if (!waits_for_kubelet(object) || period <= 0) {
      erase(object);
      return;
    }
    const std::int64_t before =
        int_at(object.json(), {"metadata", "deletionGracePeriodSeconds"}, period + 1);
    if (object.deleting() && period >= before) return;  // a later request may only shorten it
    json next = object.json();
    next["metadata"]["deletionTimestamp"] =
        format_wall(clock.wall() + std::chrono::seconds(period));
    next["metadata"]["deletionGracePeriodSeconds"] = period;
    store(object.kind(), object.key(), std::move(next), WatchType::kModified);
  }
};

class MemoryCluster::MemoryWatch final : public Watch {
 public:
  MemoryWatch(std::shared_ptr<State> state, Kind kind, std::string name_space,
              std::uint64_t version)
      : state_(std::move(state)),
        kind_(kind),
        name_space_(std::move(name_space)),
        version_(version) {}

  std::optional<WatchEvent> next(TimePoint deadline, std::stop_token stop) override {
    std::unique_lock lock(state_->mutex);
    std::optional<WatchEvent> found;
    if (ended_) return std::nullopt;
    state_->changed.wait_until(lock, stop, deadline, [&] {
      found = take();
      return found.has_value();
    });
    return found;
  }

 private:
  std::optional<WatchEvent> take() {
    if (version_ < state_->forgotten) {
      ended_ = true;
      return WatchEvent{WatchType::kGone, std::nullopt, ""};
    }
    const auto& history = state_->history;
    auto it =
        std::upper_bound(history.begin(), history.end(), version_,
                         [](std::uint64_t v, const HistoryEntry& e) { return v < e.version; });
    for (; it != history.end(); ++it) {
      version_ = it->version;
      if (it->kind != kind_) continue;
      if (!name_space_.empty() && it->object.name_space() != name_space_) continue;
      return WatchEvent{it->type, it->object, std::to_string(version_)};
    }
    version_ = std::max(version_, state_->version);  // what others did must not age us out
    return std::nullopt;
  }

  std::shared_ptr<State> state_;
  const Kind kind_;
  const std::string name_space_;
  std::uint64_t version_;
  bool ended_ = false;
};

MemoryCluster::MemoryCluster(const Clock& clock, MemoryClusterOptions options)
    : state_(std::make_shared<State>(clock, std::move(options))) {}
MemoryCluster::~MemoryCluster() = default;

Status MemoryCluster::check(const json& object) {
  ARCH_TRY(const auto id, identify(object));
  const auto& [kind, key] = id;
  std::lock_guard lock(state_->mutex);
  if (state_->of(kind).count(key) != 0)
    return fail(ErrorKind::kConflict, describe(kind, key) + " already exists");
  return {};
}

Result<Object> MemoryCluster::create(const json& object) {
  ARCH_TRY(const auto id, identify(object));
  const auto& [kind, key] = id;
  std::lock_guard lock(state_->mutex);
  if (state_->of(kind).count(key) != 0)
    return fail(ErrorKind::kConflict, describe(kind, key) + " already exists");
  json value = object;
  value.erase("status");
  json& meta = value["metadata"];
  meta.erase("deletionTimestamp");
  if (string_at(value, {"metadata", "uid"}).empty()) meta["uid"] = state_->new_uid();
  meta["creationTimestamp"] = format_wall(state_->clock.wall());
  meta["generation"] = 1;
  if (kind == Kind::kPod) value["status"]["phase"] = "Pending";
  Object stored = state_->store(kind, key, std::move(value), WatchType::kAdded);
  if (state_->is_orphan(stored)) state_->remove(stored, std::nullopt);
  return stored;
}

Result<Object> MemoryCluster::get(Kind kind, const ObjectKey& key) const {
  std::lock_guard lock(state_->mutex);
  return state_->find(kind, key);
}

Result<ObjectList> MemoryCluster::list(Kind kind, const ListOptions& options) const {
  std::lock_guard lock(state_->mutex);
  ObjectList out;
  out.resource_version = std::to_string(state_->version);
  for (const auto& [key, object] : state_->of(kind)) {
    if (!options.name_space.empty() && key.name_space != options.name_space) continue;
    if (has_labels(object, options.labels)) out.items.push_back(object);
  }
  return out;
}

Result<Object> MemoryCluster::update(const json& object) {
  ARCH_TRY(const auto id, identify(object));
  std::lock_guard lock(state_->mutex);
  ARCH_TRY(const Object stored, state_->find(id.first, id.second));
  ARCH_TRY_VOID(state_->check_preconditions(stored, object));
  return state_->replace(stored, object);
}

Result<Object> MemoryCluster::apply(const json& object) {
  ARCH_TRY(const auto id, identify(object));
  std::unique_lock lock(state_->mutex);
  const auto found = state_->find(id.first, id.second);
  if (!found) {
    if (!string_at(object, {"metadata", "uid"}).empty())
      return fail(ErrorKind::kConflict,
                  describe(id.first, id.second) + " is gone, and the apply names its uid");
    lock.unlock();
    return create(object);
  }
  ARCH_TRY_VOID(state_->check_preconditions(*found, object));
  json merged = found->json();
  merge_into(merged, object);
  return state_->replace(*found, std::move(merged));
}

Result<Object> MemoryCluster::update_status(const json& object, WriteClass) {
  ARCH_TRY(const auto id, identify(object));
  std::lock_guard lock(state_->mutex);
  ARCH_TRY(const Object stored, state_->find(id.first, id.second));
  ARCH_TRY_VOID(state_->check_preconditions(stored, object));
  json next = stored.json();
  next["status"] = at(object, {"status"});
  if (next["status"].is_null()) next.erase("status");
  if (next == stored.json()) return stored;
  return state_->store(id.first, id.second, std::move(next), WatchType::kModified);
}

Status MemoryCluster::remove(Kind kind, const ObjectKey& key, const DeleteOptions& options) {
  std::lock_guard lock(state_->mutex);
  ARCH_TRY(const Object stored, state_->find(kind, key));
  ARCH_TRY_VOID(State::check_uid(stored, options.uid));
  state_->remove(stored, options.grace_seconds);
  return {};
}

Result<std::unique_ptr<Watch>> MemoryCluster::watch(Kind kind, const std::string& name_space,
                                                    const std::string& resource_version) {
  std::uint64_t version = 0;
  const char* end = resource_version.data() + resource_version.size();
  const auto [stop, error] = std::from_chars(resource_version.data(), end, version);
  if (error != std::errc{} || stop != end)
    return fail(ErrorKind::kInvalid,
                "resourceVersion: '" + resource_version + "' is not one of ours");
  return std::make_unique<MemoryWatch>(state_, kind, name_space, version);
}

void MemoryCluster::record(const EventRecord& event) {
  EventRecord copy = event;
  {
    std::lock_guard lock(state_->mutex);
    if (copy.time == WallTime{}) copy.time = state_->clock.wall();
    state_->events.push_back(copy);
    while (state_->events.size() > state_->options.events) state_->events.pop_front();
  }
  if (state_->options.on_event) state_->options.on_event(copy);
}

Status MemoryCluster::finalize_delete(const ObjectKey& pod, const std::string& uid) {
  std::lock_guard lock(state_->mutex);
  ARCH_TRY(const Object stored, state_->find(Kind::kPod, pod));
  ARCH_TRY_VOID(State::check_uid(stored, uid));
  state_->erase(stored);
  return {};
}

std::vector<EventRecord> MemoryCluster::events() const {
  std::lock_guard lock(state_->mutex);
  return {state_->events.begin(), state_->events.end()};
}

}  // namespace archipelago::op
