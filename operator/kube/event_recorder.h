#pragma once
// Kubernetes Events (events.k8s.io/v1), best effort. The same (object, reason, learner unit) within
// ten minutes is one event whose series counts on; a full queue drops, a failed write is forgotten,
// nobody ever waits.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include <nlohmann/json_fwd.hpp>

#include "operator/api/event.h"
#include "operator/kube/kube_client.h"
#include "operator/kube/kube_metrics.h"

namespace archipelago::op::kube {

// "2026-12-01T18:00:00.123000Z": what the API calls MicroTime.
[[nodiscard]] std::string micro_time(WallTime t);

struct EventWrite {
  EventRecord record;
  std::string name;  // of the event object
  int count = 1;     // 1: create it, more: its series goes on
};

// Which events are written, and when. Pure.
class EventSeries {
 public:
  EventSeries(std::size_t limit, std::uint64_t seed) : limit_(limit), seed_(seed) {}

  // False: dropped, `limit` events wait already.
  [[nodiscard]] bool add(const EventRecord& event, TimePoint now);
  // The next write that is due: new events at once, a series at most each ten seconds.
  [[nodiscard]] std::optional<EventWrite> take(TimePoint now);
  // When take() may have something; nullopt: after the next add().
  [[nodiscard]] std::optional<TimePoint> next_due() const;
  // The event object is gone on the server: the next occurrence makes a new one.
  void forget(const EventRecord& event);

 private:
  using Key = std::tuple<Kind, std::string, std::string, std::string, std::string, std::string>;
  static Key key_of(const EventRecord& event);
  struct Series {
    EventRecord last;
    std::string name;
    int count = 1;
    TimePoint began{};
    std::optional<TimePoint> due;  // of a write
  };
  void forget_old(TimePoint now);

  const std::size_t limit_;
  std::uint64_t seed_;
  std::map<Key, Series> series_;
  std::deque<Key> waiting_;  // has a write due, in order of arrival
};

[[nodiscard]] nlohmann::json event_body(const EventWrite& write, const std::string& source,
                                        const std::string& instance);
[[nodiscard]] nlohmann::json series_patch(const EventWrite& write);

class EventRecorder {
 public:
  EventRecorder(KubeClient& client, std::string source, std::string instance, std::size_t limit,
                std::uint64_t seed, const KubeMetrics& metrics);
  ~EventRecorder();  // writes what is due for at most two seconds
  EventRecorder(const EventRecorder&) = delete;
  EventRecorder& operator=(const EventRecorder&) = delete;

  void record(const EventRecord& event);

 private:
  void run(const std::stop_token& stop);
  void send(const EventWrite& write);

  KubeClient& client_;
  const std::string source_;
  const std::string instance_;
  const KubeMetrics metrics_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  EventSeries series_;
  std::jthread thread_;
};

}  // namespace archipelago::op::kube
