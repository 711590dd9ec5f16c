#include "operator/kube/retry.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

#include <nlohmann/json.hpp>

#include "common/base/backoff.h"
#include "operator/api/json.h"

namespace archipelago::op::kube {
namespace {
using nlohmann::json;

constexpr BackoffPolicy kBackoff{seconds(0.2), seconds(4), 2.0, 0.3};
constexpr Duration kLongestPause = seconds(3600);
constexpr std::size_t kMaxMessage = 4096;

bool has_cause(const json& status, std::string_view reason) {
  const json& causes = at(status, {"details", "causes"});
  if (!causes.is_array()) return false;
  return std::any_of(causes.begin(), causes.end(),
                     [&](const json& c) { return string_at(c, {"reason"}) == reason; });
}

// A create into a namespace that isn't there, or that is going.
bool namespace_missing(const Request& request, const json& status) {
  return request.rule.verb == "create" && string_at(status, {"details", "kind"}) == "namespaces";
}
bool namespace_ending(const Request& request, const json& status, const std::string& message) {
  return request.rule.verb == "create" &&
         (has_cause(status, "NamespaceTerminating") ||
          message.find("because it is being terminated") != std::string::npos);
}

ErrorKind kind_of(int status) {
  switch (status) {
    case 403:
      return ErrorKind::kRefused;
    case 404:
      return ErrorKind::kNotFound;
    case 408:
    case 504:
      return ErrorKind::kTimeout;
    case 409:
      return ErrorKind::kConflict;
    case 410:
      return ErrorKind::kFenced;
    case 401:
    case 429:
      return ErrorKind::kUnavailable;
    default:
      return status >= 500 || status < 400 ? ErrorKind::kUnavailable : ErrorKind::kInvalid;
  }
}

bool told_to_wait(int status) { return status == 429 || status == 503 || status == 504; }
}  // namespace

Error error_of(const Request& request, const http::Response& response) {
  const json status = json::parse(response.body, nullptr, false);
  const bool is_status = status.is_object();
  std::string message = is_status ? string_at(status, {"message"}) : "";
  // A proxied page, or a load balancer's: the first line says enough.
  if (message.empty()) message = response.body.substr(0, response.body.find('\n'));
  message = message.substr(0, kMaxMessage);
  const std::string reason = string_at(status, {"reason"});
  ErrorKind kind = kind_of(response.status);
  std::string hint;
  if (response.status == 401)
    hint = " (the API server does not accept the credentials)";
  else if (response.status == 404 && namespace_missing(request, status))
    hint = " (the namespace does not exist)";
  else if (response.status == 403 && namespace_ending(request, status, message)) {
    kind = ErrorKind::kNotFound;
    hint = " (the namespace is going)";
  }
  return {kind, request.what() + ": " + std::to_string(response.status) +
                    (reason.empty() ? "" : " " + reason) + (message.empty() ? "" : ": " + message) +
                    hint};
}

Error error_of(const Request& request, const Error& transport) {
  const bool kept = transport.kind == ErrorKind::kTimeout ||
                    transport.kind == ErrorKind::kCancelled ||
                    transport.kind == ErrorKind::kTooLarge;
  return {kept ? transport.kind : ErrorKind::kUnavailable,
          request.what() + ": " + transport.message};
}

std::optional<WallTime> parse_http_date(std::string_view text) {
  static constexpr std::array kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::string copy(text.substr(0, 64));
  std::array<char, 4> day{};
  std::array<char, 4> month{};
  std::array<char, 4> zone{};
  std::tm t{};
  if (std::sscanf(copy.c_str(), "%3s, %2d %3s %4d %2d:%2d:%2d %3s", day.data(), &t.tm_mday,
                  month.data(), &t.tm_year, &t.tm_hour, &t.tm_min, &t.tm_sec, zone.data()) != 8)
    return std::nullopt;
  const auto found = std::find_if(kMonths.begin(), kMonths.end(), [&](const char* name) {
    return std::string_view(name) == month.data();
  });
  if (found == kMonths.end() || std::string_view(zone.data()) != "GMT" || t.tm_year < 1970 ||
      t.tm_mday < 1 || t.tm_mday > 31 || t.tm_hour > 23 || t.tm_min > 59 || t.tm_sec > 60)
    return std::nullopt;
  t.tm_mon = static_cast<int>(found - kMonths.begin());
  t.tm_year -= 1900;
  return WallTime(std::chrono::seconds(timegm(&t)));
}

std::optional<Duration> retry_after(const http::Response& response, WallTime now) {
  std::optional<Duration> out = response.retry_after();
  if (!out)
    if (const auto date = parse_http_date(response.header("retry-after")))
      out = *date > now ? Duration(*date - now) : Duration(0);
  if (!out) {
    const json status = json::parse(response.body, nullptr, false);
    const std::int64_t given = int_at(status, {"details", "retryAfterSeconds"});
    if (given > 0) out = std::chrono::seconds(std::min<std::int64_t>(given, 3600));
  }
  if (!out) return std::nullopt;
  return std::clamp(*out, Duration(0), kLongestPause);
}

RetryDecision decide_retry(const Request& request, const Result<http::Response>& answer,
                           const Attempt& attempt, Rng& rng) {
  RetryDecision out;
  if (answer && answer->status < 500 && !told_to_wait(answer->status)) return out;
  if (!answer &&
      (answer.error().kind == ErrorKind::kCancelled || answer.error().kind == ErrorKind::kTooLarge))
    return out;
  out.wait = backoff_delay(kBackoff, attempt.number - 1, rng);
  if (answer && told_to_wait(answer->status)) {
    const auto told = retry_after(*answer, attempt.wall);
    if (told && *told > Duration(0)) {
      // Everyone was told the same number: they must not all come back in the same moment.
      out.pause = *told + seconds(to_seconds(*told) * 0.2 * rng.uniform());
      out.wait = std::max(out.wait, out.pause);
    }
  }
  out.again =
      request.repeatable && attempt.number < kMaxTries && attempt.now + out.wait < attempt.deadline;
  return out;
}

}  // namespace archipelago::op::kube
