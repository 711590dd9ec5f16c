#include "common/base/result.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "common/base/check.h"

namespace archipelago {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid:
      return "invalid";
    case ErrorKind::kNotFound:
      return "not found";
    case ErrorKind::kConflict:
      return "conflict";
    case ErrorKind::kFenced:
      return "fenced";
    case ErrorKind::kRefused:
      return "refused";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kTooLarge:
      return "too large";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kNoSpace:
      return "no space";
    case ErrorKind::kIo:
      return "io";
    case ErrorKind::kCorrupt:
      return "corrupt";
    case ErrorKind::kCancelled:
      return "cancelled";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "unknown";
}

Error Error::with_context(std::string_view context) const {
  return Error{kind, std::string(context) + ": " + message};
}

std::string Error::describe() const { return std::string(to_string(kind)) + ": " + message; }

Error errno_error(std::string_view what, int errno_value) {
  const bool full = errno_value == ENOSPC || errno_value == EDQUOT;
  return Error{full ? ErrorKind::kNoSpace : ErrorKind::kIo,
               std::string(what) + ": " + std::system_category().message(errno_value)};
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace archipelago
