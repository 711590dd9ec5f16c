#include "common/config/field_error.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <nlohmann/json.hpp>

namespace archipelago::config {
namespace {

constexpr std::size_t kMaxShown = 80;

// Cuts on a UTF-8 boundary.
std::string shorten(std::string text) {
  if (text.size() <= kMaxShown) return text;
  std::size_t end = kMaxShown - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  text.resize(end);
  return text + "...";
}

// Optimal string alignment distance; words are short (callers cut at 64).
std::size_t distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kMax = 65;
  std::array<std::array<std::size_t, kMax>, kMax> d{};
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  };
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t cost = same(a[i - 1], b[j - 1]) ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

bool lies_in(std::string_view path, std::string_view ancestor) {
  if (path.size() < ancestor.size() || path.substr(0, ancestor.size()) != ancestor) return false;
  return path.size() == ancestor.size() || path[ancestor.size()] == '.' ||
         path[ancestor.size()] == '[';
}

}  // namespace

std::string format_error(const FieldError& error) {
  std::string out = error.path;
  if (error.line > 0) {
    out +=
        (out.empty() ? "line " : " (line ") + std::to_string(error.line) + (out.empty() ? "" : ")");
  }
  if (!out.empty()) out += ": ";
  if (!error.given.empty()) out += error.given + " ";
  out += error.problem;
  if (!error.allowed.empty()) out += ", allowed: " + error.allowed;
  if (!error.hint.empty()) out += ". HINT: " + error.hint;
  return out;
}

std::string format_errors(const std::vector<FieldError>& errors) {
  std::string out;
  for (const FieldError& error : errors) out += format_error(error) + "\n";
  return out;
}

void ErrorList::add(FieldError error) {
  if (errors_.size() < kMaxErrors) {
    errors_.push_back(std::move(error));
  } else if (errors_.size() == kMaxErrors) {
    errors_.push_back({"", "", "", "", "more errors follow, not listed", 0});
  }
}

bool ErrorList::touches(std::string_view path) const {
  return std::any_of(errors_.begin(), errors_.end(), [&](const FieldError& error) {
    return lies_in(error.path, path) || lies_in(path, error.path);
  });
}

std::string show_text(std::string_view text) {
  const nlohmann::json value(std::string(text.substr(0, 4 * kMaxShown)));
  return shorten(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string show_value(const nlohmann::json& value) {
  if (value.is_string()) return show_text(value.get_ref<const std::string&>());
  // Containers are not dumped: they may be deep, and nobody reads them in an error line.
  if (value.is_object()) return "an object of " + std::to_string(value.size()) + " fields";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_binary() || value.is_discarded()) return "binary data";
  return value.dump();
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > 64) return "";
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::string best;
  std::size_t best_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 64) continue;
    const std::size_t d = distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (!out.empty()) out += separator;
    out += part;
  }
  return out;
}

}  // namespace archipelago::config
