#pragma once
// "host:port", "[v6]:port", ":port" or "http://host:port[/]" as a value. Port 0 means "any" for a
// server.
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace archipelago::http {

struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 0;
  [[nodiscard]] std::string text() const;  // host:port, IPv6 in brackets
};

// kInvalid says what was given and what is allowed. An empty host is `default_host`.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text,
                                              std::string_view default_host = "127.0.0.1");

// One path segment or query value, percent-encoded (RFC 3986 unreserved characters stay).
[[nodiscard]] std::string url_encode(std::string_view text);

}  // namespace archipelago::http
