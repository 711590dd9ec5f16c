#include "common/base/clock.h"

#include <cstdio>
#include <ctime>

namespace archipelago {

std::string format_wall(WallTime t) {
  const auto ms = t.time_since_epoch().count();
  const std::time_t secs = static_cast<std::time_t>(ms / 1000);
  std::tm parts{};
  gmtime_r(&secs, &parts);
  char text[96];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(ms % 1000));
  return text;
}

bool parse_wall(const std::string& text, WallTime* out) {
  std::tm parts{};
  int ms = 0;
  const int got =
      std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &ms);
  if (got < 6) return false;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  const std::time_t secs = timegm(&parts);
  *out = WallTime(std::chrono::milliseconds(static_cast<std::int64_t>(secs) * 1000 + ms));
  return true;
}

}  // namespace archipelago
