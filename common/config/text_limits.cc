#include "common/config/text_limits.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace archipelago::config {
namespace {

// Length of the well-formed UTF-8 sequence at the start of text, 0 when there is none (RFC 3629).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(text[i]));
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  const unsigned second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

}  // namespace

Status check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return fail(ErrorKind::kTooLarge, "the document has " + std::to_string(text.size()) +
                                          " bytes, at most " + std::to_string(kMaxTextBytes) +
                                          " are read");
  }
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F) {
      return fail(ErrorKind::kInvalid,
                  "control character " + std::to_string(c) + " at byte " + std::to_string(at));
    }
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) return fail(ErrorKind::kInvalid, "not UTF-8 at byte " + std::to_string(at));
    at += length;
  }
  return {};
}

std::size_t bracket_depth(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

Status check_value(const nlohmann::json& value) {
  std::vector<std::pair<const nlohmann::json*, int>> open{{&value, 1}};
  std::size_t nodes = 0;
  while (!open.empty()) {
    const auto [at, depth] = open.back();
    open.pop_back();
    if (++nodes > kMaxNodes) {
      return fail(ErrorKind::kTooLarge, "more than " + std::to_string(kMaxNodes) + " values");
    }
    if (!at->is_structured()) continue;
    if (depth > kMaxDepth) {
      return fail(ErrorKind::kTooLarge,
                  "nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    for (const auto& item : *at) open.emplace_back(&item, depth + 1);
  }
  return {};
}

}  // namespace archipelago::config
