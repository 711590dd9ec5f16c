#include "operator/api/conditions.h"

#include <algorithm>

namespace archipelago::op {

std::string cut_utf8(std::string_view text, std::size_t max) {
  if (text.size() <= max) return std::string(text);
  std::size_t end = max;
  // A continuation byte at the cut belongs to a sequence that began before it: drop that one whole.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return std::string(text.substr(0, end));
}

const Condition* find_condition(const std::vector<Condition>& conditions, std::string_view type) {
  const auto it = std::find_if(conditions.begin(), conditions.end(),
                               [&](const Condition& c) { return c.type == type; });
  return it == conditions.end() ? nullptr : &*it;
}

bool is_true(const std::vector<Condition>& conditions, std::string_view type) {
  const Condition* c = find_condition(conditions, type);
  return c != nullptr && c->status;
}

void set_condition(std::vector<Condition>& conditions, Condition next, WallTime now) {
  next.message = cut_utf8(next.message, kMaxConditionMessage);
  const auto it = std::find_if(conditions.begin(), conditions.end(),
                               [&](const Condition& c) { return c.type == next.type; });
  if (it == conditions.end()) {
    next.last_transition = now;
    conditions.push_back(std::move(next));
    return;
  }
  next.last_transition = it->status == next.status ? it->last_transition : now;
  *it = std::move(next);
}

void set_trouble(std::vector<Condition>& conditions, Condition next, WallTime now) {
  if (!next.status && find_condition(conditions, next.type) == nullptr) return;
  set_condition(conditions, std::move(next), now);
}

}  // namespace archipelago::op
