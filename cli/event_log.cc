#include "cli/event_log.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "operator/api/conditions.h"
#include "operator/api/json.h"
#include "operator/local/dashboard.h"

namespace archipelago::cli {

namespace {
using nlohmann::json;
constexpr std::size_t kKept = 5000;
constexpr std::size_t kShownBytes = 200;

// A message may be the tail of a log: one line of it is enough here, events.jsonl has all.
std::string one_line(const std::string& text) {
  std::string line = op::cut_utf8(text, kShownBytes);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line.size() < text.size() ? line + "..." : line;
}

std::string show(const op::ReportEvent& event) {
  std::string unit = event.unit;
  unit.resize(std::max<std::size_t>(unit.size(), 14), ' ');
  std::string time = op::show_duration(event.t);
  time.insert(0, time.size() < 7 ? 7 - time.size() : 0, ' ');
  return time + "  " + unit + "  " + one_line(event.text);
}
}  // namespace

EventLog::EventLog(const std::string& file, const Clock& clock, double offset, std::FILE* console)
    : clock_(clock), start_(clock.now()), offset_(offset), console_(console) {
  read_earlier(file);
  file_ = std::fopen(file.c_str(), "ae");
}

EventLog::~EventLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void EventLog::read_earlier(const std::string& file) {
  const auto text = read_file(file);
  if (!text) return;
  std::size_t from = 0;
  while (from < text->size()) {
    const std::size_t end = std::min(text->find('\n', from), text->size());
    const json line = json::parse(std::string_view(*text).substr(from, end - from), nullptr, false);
    from = end + 1;
    if (!line.is_object()) continue;
    events_.push_back({op::number_at(line, {"t"}), op::string_at(line, {"unit"}),
                       op::string_at(line, {"message"}), op::string_at(line, {"kind"}) == "chaos"});
    if (events_.size() > kKept) events_.pop_front();
  }
}

double EventLog::now() const { return offset_ + to_seconds(clock_.now() - start_); }

void EventLog::write(const std::string& unit, const std::string& kind, const std::string& reason,
                     const std::string& text, bool warning) {
  const double t = now();
  std::lock_guard lock(mutex_);
  events_.push_back({t, unit, kind == "chaos" ? "chaos: " + text : text, kind == "chaos"});
  if (events_.size() > kKept) events_.pop_front();
  if (file_ != nullptr) {
    const json line = {{"time", format_wall(clock_.wall())},
                       {"t", t},
                       {"kind", kind},
                       {"unit", unit},
                       {"reason", reason},
                       {"warning", warning},
                       {"message", events_.back().text}};
    std::fprintf(file_, "%s\n", op::to_text(line).c_str());
    std::fflush(file_);
  }
  if (console_ != nullptr) {
    std::fprintf(console_, "%s\n", show(events_.back()).c_str());
    std::fflush(console_);
  }
}

void EventLog::add(const op::EventRecord& event) {
  const bool named =
      event.message.find(event.name) != std::string::npos || event.kind == op::Kind::kTraining;
  write(event.unit.empty() ? event.name : event.unit, "event", event.reason,
        event.reason + ": " + (named ? "" : event.name + ": ") + event.message, event.warning);
}

void EventLog::chaos(const std::string& unit, const std::string& text) {
  write(unit, "chaos", "Chaos", text, true);
}

void EventLog::note(const std::string& text) { write("", "note", "", text, false); }

std::vector<std::string> EventLog::last(std::size_t n) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (std::size_t i = events_.size() > n ? events_.size() - n : 0; i < events_.size(); ++i)
    out.push_back(show(events_[i]));
  return out;
}

std::vector<op::ReportEvent> EventLog::all() const {
  std::lock_guard lock(mutex_);
  return {events_.begin(), events_.end()};
}

}  // namespace archipelago::cli
