#include "common/config/yaml_json.h"

#include <charconv>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "common/config/text_limits.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

bool digit(char c) { return c >= '0' && c <= '9'; }

// [-+]? (digits . digits? | . digits | digits) ([eE] [-+]? digits)?, and at least one digit.
bool is_float(std::string_view text) {
  std::size_t at = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const std::size_t start = at;
  std::size_t digits = 0;
  while (at < text.size() && digit(text[at])) ++at, ++digits;
  if (digits > 1 && text[start] == '0') return false;  // 010.5 is as doubtful as 010
  if (at < text.size() && text[at] == '.') {
    ++at;
    while (at < text.size() && digit(text[at])) ++at, ++digits;
  }
  if (digits == 0) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (at == text.size()) return false;
    while (at < text.size() && digit(text[at])) ++at;
  }
  return at == text.size();
}

std::optional<Json> integer(std::string_view text) {
  const bool plus = !text.empty() && text[0] == '+';
  const std::string_view number = plus ? text.substr(1) : text;
  const std::string_view digits =
      !number.empty() && number[0] == '-' && !plus ? number.substr(1) : number;
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  for (const char c : digits) {
    if (!digit(c)) return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error == std::errc() && end == number.data() + number.size()) return Json(value);
  return std::nullopt;  // too large for 63 bits: a float, which integer fields refuse with its
                        // digits
}

Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL")
    return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (const auto value = integer(text)) return *value;
  if (is_float(text)) {
    double value = 0;
    const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value))
      return value;
  }
  return text;
}

// yaml-cpp takes a quote that is never closed and swallows the rest of the text. True when nothing
// at the position is quoted, or the quote ends.
bool closed_quote(std::string_view text, int position) {
  if (position < 0 || static_cast<std::size_t>(position) >= text.size()) return true;
  const char quote = text[static_cast<std::size_t>(position)];
  if (quote != '\'' && quote != '"') return true;
  for (std::size_t i = static_cast<std::size_t>(position) + 1; i < text.size(); ++i) {
    const bool escaped = quote == '"' ? text[i] == '\\' : text.substr(i, 2) == "''";
    if (escaped) {
      ++i;
    } else if (text[i] == quote) {
      return true;
    }
  }
  return false;
}

struct Stop final : std::exception {};  // a limit was passed; the builder has the error

class Handler final : public YAML::EventHandler {
 public:
  Handler(std::string_view text, DocumentBuilder& builder) : text_(text), builder_(builder) {}

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (builder_.expects_key()) stop("an empty key", mark);
    scalar(mark, "", anchor, "");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    scalar(mark, tag, anchor, text);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (builder_.expects_key()) stop("an alias can't be a key", mark);
    if (++aliases_ > kMaxAliases)
      stop("more than " + std::to_string(kMaxAliases) + " aliases", mark);
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) stop("an alias inside its own anchor", mark);
    if (depth_ + found->second.depth > kMaxDepth) stop("is nested too deeply by an alias", mark);
    if (!builder_.charge(found->second.nodes)) throw Stop();
    nodes_ += found->second.nodes;
    deepen(found->second.depth);
    if (!builder_.value(found->second.value)) throw Stop();
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    start(mark, tag, anchor, Json::array());
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    start(mark, tag, anchor, Json::object());
  }
  void OnMapEnd() override { end(); }

 private:
  struct Anchored {
    Json value;
    std::size_t nodes = 0;
    int depth = 0;  // of the value itself: 0 for a scalar
  };
  struct Open {
    YAML::anchor_t anchor = 0;
    std::size_t nodes_before = 0;
    int deepest = 0;  // levels below this one
  };

  [[noreturn]] void stop(std::string problem, const YAML::Mark& mark) {
    builder_.refuse(std::move(problem), mark.line + 1);
    throw Stop();
  }

  void scalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
              const std::string& text) {
    if (tag != "?" && !closed_quote(text_, mark.pos)) stop("a quote is never closed", mark);
    if (builder_.expects_key()) {
      if (text == "<<" && tag == "?") stop("merge keys (<<) are not supported", mark);
      if (anchor != 0) stop("a key can't have an anchor", mark);
      builder_.key(text, mark.line + 1);
      return;
    }
    const std::size_t nodes = 1 + text.size() / kBytesPerNode;
    nodes_ += nodes;
    Json value = tag == "?" || tag.empty() ? plain_scalar(text) : Json(text);
    if (tag != "?" && tag != "!" && !tag.empty() && tag != "tag:yaml.org,2002:str") {
      stop("tag " + show_text(tag) + " is not supported", mark);
    }
    if (anchor != 0) anchors_[anchor] = {value, nodes, 0};
    if (!builder_.value(std::move(value))) throw Stop();
  }

  void start(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
             Json container) {
    if (builder_.expects_key())
      stop("a list or object can't be a key; a bracket may never be closed", mark);
    if (tag != "?" && !tag.empty()) stop("tag " + show_text(tag) + " is not supported", mark);
    open_.push_back({anchor, nodes_++, 0});
    ++depth_;
    if (!builder_.open(std::move(container))) throw Stop();
  }

  void end() {
    const Open closed = open_.back();
    open_.pop_back();
    --depth_;
    if (!builder_.close()) throw Stop();
    if (closed.anchor != 0)
      anchors_[closed.anchor] = {builder_.last(), nodes_ - closed.nodes_before, closed.deepest + 1};
    deepen(closed.deepest + 1);
  }

  void deepen(int levels) {
    if (!open_.empty() && open_.back().deepest < levels) open_.back().deepest = levels;
  }

  std::string_view text_;
  DocumentBuilder& builder_;
  std::map<YAML::anchor_t, Anchored> anchors_;  // bounded by kMaxNodes
  std::vector<Open> open_;
  std::size_t nodes_ = 0;
  int aliases_ = 0;
  int depth_ = 0;
};

class IgnoreAll final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    throw YAML::ParserException(mark, "second document");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnScalar(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*text*/) override {}
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/,
                       YAML::anchor_t /*anchor*/, YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}
};

// Runs yaml-cpp; a returned error is a syntax error, limits are in the builder.
std::optional<FieldError> run(std::string_view text, DocumentBuilder& builder) {
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    Handler handler(text, builder);
    if (!parser.HandleNextDocument(handler))
      return FieldError{"", "", "", "", "the document is empty", 0};
    IgnoreAll none;
    try {
      if (parser.HandleNextDocument(none)) throw YAML::ParserException(YAML::Mark::null_mark(), "");
    } catch (const YAML::ParserException& ex) {
      return FieldError{"",
                        "",
                        "one document",
                        "split the file at its '---'",
                        "the text goes on after the first document",
                        ex.mark.is_null() ? 0 : ex.mark.line + 1};
    }
    return std::nullopt;
  } catch (const Stop&) {
    return std::nullopt;
  } catch (const YAML::Exception& ex) {
    return FieldError{"",
                      "",
                      "",
                      "",
                      "not YAML: " + ex.msg.substr(0, 200),
                      ex.mark.is_null() ? 0 : ex.mark.line + 1};
  } catch (const std::exception& ex) {
    return FieldError{"", "", "", "", "not YAML: " + std::string(ex.what()).substr(0, 200), 0};
  }
}

}  // namespace

tl::expected<YamlDocument, std::vector<FieldError>> parse_yaml_text(std::string_view text) {
  // yaml-cpp's scanner looks ahead in long runs of brackets; refuse those before it does.
  if (bracket_depth(text) > 1000) {
    return tl::unexpected(std::vector<FieldError>{
        {"", "", "", "", "brackets are nested deeper than 1000 levels", 0}});
  }
  if (text.substr(0, 3) == "\xEF\xBB\xBF")
    text.remove_prefix(3);  // or every mark would be off by it
  DocumentBuilder builder;
  const auto syntax = run(text, builder);
  std::vector<FieldError> errors = builder.take_errors();
  if (syntax) errors.push_back(*syntax);
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  return YamlDocument{builder.take(), builder.take_lines()};
}

}  // namespace archipelago::config
