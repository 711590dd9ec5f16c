#include "common/config/quantity.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace archipelago::config {
namespace {

struct Suffix {
  std::string_view name;
  long double factor;
};
constexpr std::array<Suffix, 16> kSuffixes{{{"", 1.0L},
                                            {"n", 1e-9L},
                                            {"u", 1e-6L},
                                            {"m", 1e-3L},
                                            {"k", 1e3L},
                                            {"M", 1e6L},
                                            {"G", 1e9L},
                                            {"T", 1e12L},
                                            {"P", 1e15L},
                                            {"E", 1e18L},
                                            {"Ki", 1024.0L},
                                            {"Mi", 1048576.0L},
                                            {"Gi", 1073741824.0L},
                                            {"Ti", 1099511627776.0L},
                                            {"Pi", 1125899906842624.0L},
                                            {"Ei", 1152921504606846976.0L}}};

bool digit(char c) { return c >= '0' && c <= '9'; }

// exponent of "e6" / "E-3"; false when the text is none.
bool exponent(std::string_view text, int& value) {
  if (text.size() < 2 || (text[0] != 'e' && text[0] != 'E')) return false;
  text.remove_prefix(1);
  if (text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= -18 && value <= 18;
}

// 80-bit long double holds 64-bit integers exactly; where it is a double, large odd byte counts
// round.
Result<long double> parse_quantity(std::string_view text) {
  const auto bad = [&] {
    return fail(ErrorKind::kInvalid,
                "'" + std::string(text.substr(0, 40)) +
                    "' is no quantity: a number with one of m, k, M, G, T, Ki, Mi, Gi, Ti");
  };
  std::size_t at = 0;
  long double mantissa = 0;
  long double scale = 1;
  int digits = 0;
  for (; at < text.size() && digit(text[at]); ++at, ++digits)
    mantissa = mantissa * 10 + (text[at] - '0');
  if (at < text.size() && text[at] == '.') {
    for (++at; at < text.size() && digit(text[at]); ++at, ++digits) {
      mantissa = mantissa * 10 + (text[at] - '0');
      scale *= 10;
    }
  }
  if (digits == 0 || digits > 30) return bad();
  const std::string_view rest = text.substr(at);
  for (const Suffix& suffix : kSuffixes) {
    if (rest == suffix.name) return mantissa / scale * suffix.factor;
  }
  int power = 0;
  if (!exponent(rest, power)) return bad();
  return mantissa / scale * std::pow(10.0L, static_cast<long double>(power));
}

}  // namespace

Result<std::int64_t> parse_bytes(std::string_view text) {
  ARCH_TRY(const long double value, parse_quantity(text));
  if (value >= 9.2e18L)
    return fail(ErrorKind::kInvalid, "'" + std::string(text) + "' is more than 8Ei");
  return static_cast<std::int64_t>(std::ceil(value));
}

Result<double> parse_cpu(std::string_view text) {
  ARCH_TRY(const long double value, parse_quantity(text));
  if (value < 0.001L || value > 100000.0L) {
    return fail(ErrorKind::kInvalid,
                "'" + std::string(text) + "' is not between 1m and 100000 cores");
  }
  return static_cast<double>(value);
}

}  // namespace archipelago::config
