#include "operator/kube/event_recorder.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/base/rng.h"
#include "operator/api/conditions.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;

constexpr Duration kWindow = seconds(600);
constexpr Duration kSeriesInterval = seconds(10);
constexpr Duration kLastWords = seconds(2);
constexpr std::size_t kMaxNote = 1000;  // the API allows 1,024 bytes
constexpr std::size_t kMaxName = 230;
constexpr std::size_t kMaxShort = 120;

std::string namespace_of(const EventRecord& e) {
  return e.name_space.empty() ? "default" : e.name_space;
}
}  // namespace

std::string micro_time(WallTime t) {
  std::string text = format_wall(t);
  text.insert(text.size() - 1, "000");
  return text;
}

EventSeries::Key EventSeries::key_of(const EventRecord& e) {
  return {e.kind, e.name_space, e.name, e.uid, e.reason, e.unit};
}

void EventSeries::forget_old(TimePoint now) {
  std::erase_if(series_, [&](const auto& item) {
    return !item.second.due && now - item.second.began >= kWindow;
  });
}

bool EventSeries::add(const EventRecord& event, TimePoint now) {
  const Key key = key_of(event);
  auto it = series_.find(key);
  if (it != series_.end() && now - it->second.began < kWindow) {
    Series& s = it->second;
    s.last.time = event.time;
    ++s.count;
    if (s.due) return true;  // one write will tell of both
    if (waiting_.size() >= limit_) return false;
    s.due = now + kSeriesInterval;
    waiting_.push_back(key);
    return true;
  }
  if (series_.size() >= limit_) forget_old(now);
  if (waiting_.size() >= limit_ || series_.size() >= 4 * limit_) return false;
  if (it != series_.end() && it->second.due) return true;  // its write is waiting still
  std::array<char, 24> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(mix64(seed_++)));
  Series fresh{event, event.name.substr(0, kMaxName) + "." + hex.data(), 1, now, now};
  series_.insert_or_assign(key, std::move(fresh));
  waiting_.push_back(key);
  return true;
}

std::optional<EventWrite> EventSeries::take(TimePoint now) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const auto found = series_.find(*it);
    if (found == series_.end() || !found->second.due) {
      waiting_.erase(it);
      return take(now);
    }
    Series& s = found->second;
    if (*s.due > now) continue;
    const bool made = s.began != *s.due;
    s.due.reset();
    waiting_.erase(it);
    // What came before the first write is counted with the next one.
    return EventWrite{s.last, s.name, made ? s.count : 1};
  }
  return std::nullopt;
}

std::optional<TimePoint> EventSeries::next_due() const {
  std::optional<TimePoint> out;
  for (const Key& key : waiting_)
    if (const auto it = series_.find(key); it != series_.end() && it->second.due)
      out = out ? std::min(*out, *it->second.due) : *it->second.due;
  return out;
}

void EventSeries::forget(const EventRecord& event) {
  const Key key = key_of(event);
  std::erase(waiting_, key);
  series_.erase(key);
}

json event_body(const EventWrite& write, const std::string& source, const std::string& instance) {
  const EventRecord& e = write.record;
  const std::string reason = e.reason.empty() ? "Unknown" : e.reason.substr(0, kMaxShort);
  return {{"apiVersion", "events.k8s.io/v1"},
          {"kind", "Event"},
          {"metadata", {{"name", write.name}, {"namespace", namespace_of(e)}}},
          {"eventTime", micro_time(e.time)},
          {"reportingController", source},
          {"reportingInstance", instance.substr(0, kMaxShort)},
          {"action", reason},
          {"reason", reason},
          {"regarding",
           {{"apiVersion", api_version(e.kind)},
            {"kind", to_string(e.kind)},
            {"namespace", e.name_space},
            {"name", e.name},
            {"uid", e.uid}}},
          {"note", cut_utf8(e.message, kMaxNote)},
          {"type", e.warning ? "Warning" : "Normal"}};
}

json series_patch(const EventWrite& write) {
  return {
      {"series",
       {{"count", std::max(write.count, 2)}, {"lastObservedTime", micro_time(write.record.time)}}}};
}

EventRecorder::EventRecorder(KubeClient& client, std::string source, std::string instance,
                             std::size_t limit, std::uint64_t seed, const KubeMetrics& metrics)
    : client_(client),
      source_(std::move(source)),
      instance_(std::move(instance)),
      metrics_(metrics),
      series_(limit, seed) {
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

EventRecorder::~EventRecorder() {
  thread_.request_stop();
  thread_.join();
}

void EventRecorder::record(const EventRecord& event) {
  bool taken = false;
  {
    std::lock_guard lock(mutex_);
    taken = series_.add(event, SystemClock().now());
  }
  if (!taken) metrics_.events_dropped();
  changed_.notify_one();
}

void EventRecorder::run(const std::stop_token& stop) {
  std::optional<TimePoint> last_words;
  while (true) {
    std::optional<EventWrite> write;
    {
      std::unique_lock lock(mutex_);
      const TimePoint now = SystemClock().now();
      write = series_.take(now);
      if (stop.stop_requested()) {
        if (!last_words) last_words = now + kLastWords;
        if (!write || now >= *last_words) return;
      } else if (!write) {
        const TimePoint until = series_.next_due().value_or(now + seconds(60));
        changed_.wait_until(lock, stop, until, [&] {
          const auto due = series_.next_due();
          return due && *due <= SystemClock().now();
        });
        continue;
      }
    }
    send(*write);
  }
}

void EventRecorder::send(const EventWrite& write) {
  if (!client_.may_write()) return;  // the next leader sees the same and says it
  const std::string ns = namespace_of(write.record);
  const Request request = write.count <= 1 ? create_event(ns, event_body(write, source_, instance_))
                                           : patch_event({ns, write.name}, series_patch(write));
  const auto answer = client_.call(request, CallClass::kEvent);
  if (answer) return;
  metrics_.events_dropped();
  client_.log().debug("event not written", {{"error", answer.error().describe()}});
  std::lock_guard lock(mutex_);
  series_.forget(write.record);
}

}  // namespace archipelago::op::kube
