#pragma once
// Errors as values. A kind is the decision a caller makes (retry, re-read, give up), not the place
// it came from.
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace archipelago {

enum class ErrorKind {
  kInvalid,  // input breaks a rule; retrying the same input cannot help
  kNotFound,
  kConflict,     // stale: re-read, then decide again
  kFenced,       // a newer incarnation lives: stop
  kRefused,      // well-formed but refused (non-finite, layout, norm)
  kUnsupported,  // version, codec or field this build does not have
  kTooLarge,
  kUnavailable,  // peer or network: retry with backoff
  kTimeout,      // retry with backoff
  kNoSpace,
  kIo,
  kCorrupt,  // checksum or structure of stored bytes
  kCancelled,
  kInternal,
};

[[nodiscard]] std::string_view to_string(ErrorKind kind);
[[nodiscard]] constexpr bool is_retryable(ErrorKind kind) {
  return kind == ErrorKind::kUnavailable || kind == ErrorKind::kTimeout ||
         kind == ErrorKind::kNoSpace;
}

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;

  // "context: message", same kind: added at the boundary that knows the noun.
  [[nodiscard]] Error with_context(std::string_view context) const;
  [[nodiscard]] std::string describe() const;  // "kind: message"
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<Error> fail(ErrorKind kind, std::string message) {
  return tl::unexpected<Error>(Error{kind, std::move(message)});
}
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}
// kIo or kNoSpace from errno, "what PATH: strerror".
[[nodiscard]] Error errno_error(std::string_view what, int errno_value);

}  // namespace archipelago

#define ARCH_CONCAT_(a, b) a##b
#define ARCH_CONCAT(a, b) ARCH_CONCAT_(a, b)
// ARCH_TRY(x, expr): x = *expr, or return its error from this function.
#define ARCH_TRY(x, expr)                                                 \
  auto ARCH_CONCAT(arch_try_, __LINE__) = (expr);                         \
  if (!ARCH_CONCAT(arch_try_, __LINE__))                                  \
    return ::archipelago::fail(ARCH_CONCAT(arch_try_, __LINE__).error()); \
  x = std::move(*ARCH_CONCAT(arch_try_, __LINE__))
#define ARCH_TRY_VOID(expr)                                                              \
  if (auto ARCH_CONCAT(arch_try_, __LINE__) = (expr); !ARCH_CONCAT(arch_try_, __LINE__)) \
  return ::archipelago::fail(ARCH_CONCAT(arch_try_, __LINE__).error())
