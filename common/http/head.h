#pragma once
// The head of a request as strict text, parsed before the library sees it: framing is decided here
// and nowhere else. httplib percent-decodes header values, skips lines that it doesn't understand
// and takes repeated lengths; each of these lets two readers of one byte stream disagree about
// where a body ends.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace archipelago::http {

struct Head {
  std::string method;
  std::string target;  // as sent: path and query, percent-encoded
  int minor = 1;       // HTTP/1.minor
  std::map<std::string, std::string>
      headers;  // lower-case names, trimmed values; the first of repeated ones
  std::optional<std::uint64_t> content_length;
  bool expect_continue = false;
  bool keep_alive = true;
};

struct HeadError {
  int status = 400;
  std::string message;
};

struct HeadLimits {
  std::size_t max_fields = 100;
  std::size_t max_target = 4096;
};

// Index just after the blank line, or npos. `from`: where an earlier search ended.
[[nodiscard]] std::size_t find_head_end(std::string_view bytes, std::size_t from = 0);

// `text` is everything up to and including the blank line. nullopt on success. Errors: 400
// malformed, doubled or non-decimal Content-Length, Transfer-Encoding; 414 target; 431 too many
// fields; 505 version; 415 Content-Encoding.
[[nodiscard]] std::optional<HeadError> parse_head(std::string_view text, const HeadLimits& limits,
                                                  Head* out);

}  // namespace archipelago::http
