// Values of the server's interface: requests, replies, error documents.
#include <algorithm>
#include <charconv>

#include <nlohmann/json.hpp>

#include "common/http/server.h"

namespace archipelago::http {
namespace {

Result<std::int64_t> parse_int(std::string_view name, std::string_view text, std::int64_t min,
                               std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return fail(ErrorKind::kInvalid, std::string(name) + ": '" + std::string(text.substr(0, 64)) +
                                         "' given, a whole number from " + std::to_string(min) +
                                         " to " + std::to_string(max) + " is allowed");
  }
  return value;
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid:
    case ErrorKind::kCorrupt:
      return 400;
    case ErrorKind::kNotFound:
      return 404;
    case ErrorKind::kConflict:
      return 409;
    case ErrorKind::kFenced:
      return 410;
    case ErrorKind::kTooLarge:
      return 413;
    case ErrorKind::kUnsupported:
      return 415;
    case ErrorKind::kRefused:
      return 422;
    case ErrorKind::kUnavailable:
      return 429;
    case ErrorKind::kTimeout:
      return 408;
    case ErrorKind::kNoSpace:
      return 507;
    case ErrorKind::kIo:
    case ErrorKind::kCancelled:
    case ErrorKind::kInternal:
      return 500;
  }
  return 500;
}

}  // namespace

std::string_view Request::header(std::string_view lower_case_name) const {
  const auto it = headers.find(std::string(lower_case_name));
  return it == headers.end() ? std::string_view() : std::string_view(it->second);
}

std::optional<std::string> Request::param(const std::string& name) const {
  const auto it = query.find(name);
  if (it == query.end()) return std::nullopt;
  return it->second;
}

Result<std::int64_t> Request::int_param(const std::string& name, std::int64_t min,
                                        std::int64_t max) const {
  const auto text = param(name);
  if (!text) return fail(ErrorKind::kInvalid, "query parameter " + name + " is missing");
  return parse_int("query parameter " + name, *text, min, max);
}

Result<std::int64_t> Request::int_arg(std::size_t index, std::int64_t min, std::int64_t max) const {
  if (index >= args.size())
    return fail(ErrorKind::kInternal, "route has no argument " + std::to_string(index));
  return parse_int("path segment", args[index], min, max);
}

Reply Reply::json(std::string text, int status) {
  Reply reply;
  reply.status = status;
  reply.body = std::move(text);
  return reply;
}

Reply Reply::text(std::string text, int status) {
  Reply reply = json(std::move(text), status);
  reply.content_type = "text/plain; charset=utf-8";
  return reply;
}

Reply Reply::bytes(std::vector<SharedBytes> parts) {
  Reply reply;
  reply.content_type = std::string(kBytes);
  reply.parts = std::move(parts);
  return reply;
}

Reply error_reply(int status, std::string_view error, std::string_view message,
                  std::string_view expected, std::string_view current) {
  const auto text = [](std::string_view s) {
    return s.empty() ? nlohmann::json() : nlohmann::json(s);
  };
  const nlohmann::json body{{"error", error},
                            {"message", message},
                            {"expected", text(expected)},
                            {"current", text(current)}};
  Reply reply =
      Reply::json(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), status);
  if (status == 429 || status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

Reply error_reply(const Error& error, std::string_view expected, std::string_view current) {
  const int status = status_of(error.kind);
  // What went wrong inside is for the log, not for the peer.
  const std::string_view message =
      status == 500 ? std::string_view("internal error") : std::string_view(error.message);
  return error_reply(status, to_string(error.kind), message, expected, current);
}

Status BodyReader::read_exact(std::span<std::byte> into, std::size_t piece,
                              const std::function<Status(std::span<const std::byte>)>& on_piece) {
  if (into.size() > remaining()) {
    return fail(ErrorKind::kInvalid, "body has " + std::to_string(remaining()) + " bytes left, " +
                                         std::to_string(into.size()) + " are needed");
  }
  std::size_t done = 0;
  std::size_t told = 0;
  while (done < into.size()) {
    ARCH_TRY(const std::size_t n,
             read(into.subspan(done, std::min(piece - (done - told), into.size() - done))));
    if (n == 0) return fail(ErrorKind::kUnavailable, "body ended early");
    done += n;
    if (on_piece && (done - told >= piece || done == into.size())) {
      ARCH_TRY_VOID(on_piece(std::span<const std::byte>(into.subspan(told, done - told))));
      told = done;
    } else if (!on_piece && done - told >= piece) {
      told = done;
    }
  }
  return {};
}

}  // namespace archipelago::http
