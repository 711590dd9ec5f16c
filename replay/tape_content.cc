#include "replay/tape_content.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace archipelago::replay {
namespace tape = diloco::tape;
namespace fs = std::filesystem;

std::string to_string(const LearnerKey& key) {
  return key.unit + " (incarnation " + std::to_string(key.incarnation.value) + ")";
}

std::string hex(std::uint64_t digest) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(digest));
  return text.data();
}

std::string members_text(const tape::Round& round) {
  std::string text;
  for (const auto& member : round.members)
    text += (text.empty() ? "" : ", ") + member.unit + " (incarnation " +
            std::to_string(member.incarnation.value) + ", " + std::to_string(member.tokens) +
            " tokens, " + std::to_string(member.steps) + " steps)";
  return text.empty() ? "nobody" : text;
}

void TapeCollector::batch(tape::Batch batch) {
  const LearnerKey key{batch.unit, batch.incarnation};
  const auto [it, fresh] = content_.learners.try_emplace(key);
  if (fresh) it->second.opened = content_.opened.empty() ? 0 : content_.opened.size() - 1;
  auto& events = it->second.events;
  std::int64_t& next = next_[key];
  if (batch.from > next) events.emplace_back(tape::Gap{batch.from - next});
  const auto known = static_cast<std::ptrdiff_t>(
      std::clamp<std::int64_t>(next - batch.from, 0, batch.upto() - batch.from));
  events.insert(events.end(), std::make_move_iterator(batch.events.begin() + known),
                std::make_move_iterator(batch.events.end()));
  next = std::max(next, batch.from + static_cast<std::int64_t>(batch.events.size()));
}

void TapeCollector::add(tape::Record record) {
  if (auto* events = std::get_if<tape::Batch>(&record)) {
    batch(std::move(*events));
  } else if (auto* opened = std::get_if<tape::Opened>(&record)) {
    content_.opened.push_back(std::move(*opened));
  } else if (auto* round = std::get_if<tape::Round>(&record)) {
    if (content_.published.contains({round->t, round->fragment}))
      content_.went_back = std::min(content_.went_back.value_or(round->t), round->t);
    content_.rounds.insert_or_assign(round->t, std::move(*round));
  } else if (const auto* published = std::get_if<tape::Published>(&record)) {
    content_.published.insert_or_assign({published->t, published->fragment}, published->digest);
  } else if (const auto* final_one = std::get_if<tape::Final>(&record)) {
    content_.final_version = final_one->version;
  }
}

namespace {

fs::path file_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  for (const char* inner : {"tape/events.tape", "events.tape"})
    if (fs::exists(path / inner, error)) return path / inner;
  return path / "tape" / "events.tape";
}

}  // namespace

Result<TapeContent> load_tape(const fs::path& path) {
  TapeCollector collector;
  ARCH_TRY(const auto scan, wire::scan_tape(file_of(path), [&](tape::Record record) -> Status {
             collector.add(std::move(record));
             return {};
           }));
  TapeContent content = collector.take();
  content.scan = scan;
  return content;
}

namespace {

std::string round_text(const tape::Round& round) {
  return "fragment " + std::to_string(round.fragment) + ", members " + members_text(round);
}

// The first key at which two maps differ; `text` describes a value.
template <class Map, class Text>
void first_difference(const Map& a, const Map& b, const Text& text, std::vector<std::string>* out) {
  auto i = a.begin();
  auto j = b.begin();
  for (; i != a.end() && j != b.end() && *i == *j; ++i, ++j) {
  }
  if (i == a.end() && j == b.end()) return;
  const bool has_a = i != a.end() && (j == b.end() || i->first <= j->first);
  const bool has_b = j != b.end() && (i == a.end() || j->first <= i->first);
  out->push_back(text(has_a ? &*i : nullptr, has_b ? &*j : nullptr));
}

// What doesn't decide any bits.
tape::LearnerEvent plain(tape::LearnerEvent event) {
  if (auto* step = std::get_if<tape::Step>(&event)) step->loss = 0;
  if (auto* start = std::get_if<tape::Start>(&event)) start->session.clear();
  return event;
}

std::string event_difference(const LearnerKey& key, const LearnerEvents& a,
                             const LearnerEvents& b) {
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < std::max(a.events.size(), b.events.size()); ++i) {
    const bool both = i < a.events.size() && i < b.events.size();
    if (both && plain(a.events[i]) == plain(b.events[i])) {
      steps += std::holds_alternative<tape::Step>(a.events[i]) ? 1 : 0;
      continue;
    }
    return to_string(key) + ": event " + std::to_string(i) + ", after local step " +
           std::to_string(steps) +
           (both                  ? " differs"
            : i < a.events.size() ? " is only on the first"
                                  : " is only on the second");
  }
  return "";
}

}  // namespace

std::vector<std::string> differences(const TapeContent& a, const TapeContent& b) {
  std::vector<std::string> out;
  first_difference(
      a.rounds, b.rounds,
      [](const auto* one, const auto* two) {
        const GlobalStep t = (one != nullptr ? one : two)->first;
        return "global step " + std::to_string(t.value) + ": " +
               (one != nullptr ? round_text(one->second) : std::string("no round")) + " | " +
               (two != nullptr ? round_text(two->second) : std::string("no round"));
      },
      &out);
  first_difference(
      a.published, b.published,
      [](const auto* one, const auto* two) {
        const auto& key = (one != nullptr ? one : two)->first;
        return "global step " + std::to_string(key.first.value) + ", fragment " +
               std::to_string(key.second) + ": published bytes " +
               (one != nullptr ? hex(one->second) : std::string("unknown")) + " | " +
               (two != nullptr ? hex(two->second) : std::string("unknown"));
      },
      &out);
  for (const auto& [key, events] : a.learners) {
    const auto other = b.learners.find(key);
    const std::string line = other == b.learners.end()
                                 ? to_string(key) + " is only on the first"
                                 : event_difference(key, events, other->second);
    if (!line.empty()) out.push_back(line);
  }
  for (const auto& [key, events] : b.learners)
    if (!a.learners.contains(key)) out.push_back(to_string(key) + " is only on the second");
  return out;
}

}  // namespace archipelago::replay
