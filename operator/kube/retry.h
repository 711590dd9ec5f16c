#pragma once
// What an answer of the API server means, and whether the call is sent again. Pure.
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/rng.h"
#include "common/http/client.h"
#include "operator/kube/requests.h"

namespace archipelago::op::kube {

// Of an answer with status >= 300 (kube_client.h lists the kinds). The message is "VERB RESOURCE
// NAMESPACE/NAME: STATUS REASON: the server's message".
[[nodiscard]] Error error_of(const Request& request, const http::Response& response);
// Of a request without a whole answer: kTimeout, kCancelled and kTooLarge stay, the rest may heal.
[[nodiscard]] Error error_of(const Request& request, const Error& transport);

// From the header (seconds or an HTTP date) or the Status body; at most an hour, never negative.
[[nodiscard]] std::optional<Duration> retry_after(const http::Response& response, WallTime now);
// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110's preferred form).
[[nodiscard]] std::optional<WallTime> parse_http_date(std::string_view text);

struct Attempt {
  int number = 1;      // of this try, from 1
  TimePoint deadline;  // of the whole call
  TimePoint now;
  WallTime wall;
};
inline constexpr int kMaxTries = 5;

struct RetryDecision {
  bool again = false;
  Duration wait{};  // before the next try
  // No request of this verb and resource is to be sent before it; zero: none is asked for.
  Duration pause{};
};
[[nodiscard]] RetryDecision decide_retry(const Request& request,
                                         const Result<http::Response>& answer,
                                         const Attempt& attempt, Rng& rng);

}  // namespace archipelago::op::kube
