#include "operator/kube/base64.h"

#include <cctype>
#include <cstdint>

namespace archipelago::op::kube {
namespace {
int digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}
}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;    // of bits not yet given out
  int padding = 0;  // '=' seen; nothing but more of them may follow
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) != 0) continue;
    if (c == '=') {
      if (++padding > 2) return std::nullopt;
      continue;
    }
    const int value = digit(c);
    if (value < 0 || padding > 0) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>((bits >> count) & 0xff));
  }
  if (count >= 6) return std::nullopt;  // one digit alone is no byte
  return out;
}

}  // namespace archipelago::op::kube
