#pragma once
// Events of a run: events.jsonl, a line on the console where there is no dashboard, and the last
// ones for it.
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "operator/api/event.h"
#include "operator/local/report.h"

namespace archipelago::cli {

class EventLog {
 public:
  // `offset`: active seconds of earlier sessions. Lines go to `console` unless it is null.
  EventLog(const std::string& file, const Clock& clock, double offset, std::FILE* console);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void add(const op::EventRecord& event);  // from any thread
  void chaos(const std::string& unit, const std::string& text);
  void note(const std::string& text);  // of the run itself; console too

  [[nodiscard]] double now() const;  // active seconds
  [[nodiscard]] std::vector<std::string> last(std::size_t n) const;
  [[nodiscard]] std::vector<op::ReportEvent> all() const;

 private:
  void write(const std::string& unit, const std::string& kind, const std::string& reason,
             const std::string& text, bool warning);
  void read_earlier(const std::string& file);

  const Clock& clock_;
  const TimePoint start_;
  const double offset_;
  mutable std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::FILE* console_ = nullptr;
  std::deque<op::ReportEvent> events_;
};

}  // namespace archipelago::cli
