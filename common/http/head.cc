#include "common/http/head.h"

#include <algorithm>
#include <limits>

namespace archipelago::http {
namespace {

bool is_token_char(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), is_token_char);
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool parse_length(std::string_view s, std::uint64_t* out) {
  if (s.empty() || s.size() > 19) return false;
  std::uint64_t v = 0;
  for (const char c : s) {
    if (c < '0' || c > '9') return false;
    v = v * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
  *out = v;
  return true;
}

std::optional<HeadError> parse_request_line(std::string_view line, const HeadLimits& limits,
                                            Head* out) {
  const std::size_t a = line.find(' ');
  const std::size_t b = a == std::string_view::npos ? a : line.find(' ', a + 1);
  if (b == std::string_view::npos || line.find(' ', b + 1) != std::string_view::npos) {
    return HeadError{400, "request line: METHOD TARGET HTTP/1.1 expected"};
  }
  const std::string_view method = line.substr(0, a);
  const std::string_view target = line.substr(a + 1, b - a - 1);
  const std::string_view version = line.substr(b + 1);
  if (!is_token(method) || method.size() > 16)
    return HeadError{400, "request line: malformed method"};
  if (target.empty() || target.front() != '/')
    return HeadError{400, "request line: the target must begin with /"};
  if (target.size() > limits.max_target) {
    return HeadError{414, "target longer than " + std::to_string(limits.max_target) + " bytes"};
  }
  for (const char c : target) {
    if (c <= ' ' || c == 0x7f)
      return HeadError{400, "request line: control character in the target"};
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return HeadError{505, "only HTTP/1.1 is served"};
  out->method = std::string(method);
  out->target = std::string(target);
  out->minor = version.back() - '0';
  return std::nullopt;
}

std::optional<HeadError> parse_field(std::string_view line, Head* out) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    return HeadError{400, "malformed header field"};
  }
  std::string name = lower(line.substr(0, colon));
  const std::string_view value = trim(line.substr(colon + 1));
  for (const char c : value) {
    const auto u = static_cast<unsigned char>(c);
    if ((u < 0x20 && c != '\t') || u == 0x7f)
      return HeadError{400, "control character in header " + name};
  }
  if (name == "content-length") {
    std::uint64_t length = 0;
    if (out->content_length) return HeadError{400, "Content-Length is given twice"};
    if (!parse_length(value, &length))
      return HeadError{400, "Content-Length is not a decimal number below 2^63"};
    out->content_length = length;
  }
  out->headers.emplace(std::move(name), std::string(value));
  return std::nullopt;
}

std::optional<HeadError> judge(Head* out) {
  const auto value = [&](const char* name) {
    const auto it = out->headers.find(name);
    return it == out->headers.end() ? std::string() : lower(it->second);
  };
  if (out->headers.contains("transfer-encoding")) {
    return HeadError{400, "Transfer-Encoding is not accepted: send Content-Length"};
  }
  const std::string encoding = value("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    return HeadError{415, "Content-Encoding is not accepted: send the body as it is"};
  }
  if (value("content-type").starts_with("multipart/")) {
    return HeadError{415, "multipart bodies are not accepted"};
  }
  out->expect_continue = value("expect") == "100-continue";
  const std::string connection = value("connection");
  out->keep_alive = out->minor == 1 ? connection.find("close") == std::string::npos
                                    : connection.find("keep-alive") != std::string::npos;
  return std::nullopt;
}

}  // namespace

std::size_t find_head_end(std::string_view bytes, std::size_t from) {
  // The four bytes may straddle the earlier end.
  const std::size_t start = from > 3 ? from - 3 : 0;
  const std::size_t at = bytes.find("\r\n\r\n", start);
  return at == std::string_view::npos ? at : at + 4;
}

std::optional<HeadError> parse_head(std::string_view text, const HeadLimits& limits, Head* out) {
  *out = Head{};
  std::size_t fields = 0;
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return HeadError{400, "lines must end with CR LF"};
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (line.empty()) break;
    if (first) {
      if (auto error = parse_request_line(line, limits, out)) return error;
      first = false;
      continue;
    }
    if (++fields > limits.max_fields) {
      return HeadError{431, "more than " + std::to_string(limits.max_fields) + " header fields"};
    }
    if (auto error = parse_field(line, out)) return error;
  }
  if (first) return HeadError{400, "empty request"};
  return judge(out);
}

}  // namespace archipelago::http
