#pragma once
// Time as an argument in pure code, as a port in loops.
#include <chrono>
#include <cstdint>
#include <string>

namespace archipelago {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds>;

[[nodiscard]] constexpr Duration seconds(double s) {
  return Duration(static_cast<std::int64_t>(s * 1e9));
}
[[nodiscard]] constexpr double to_seconds(Duration d) {
  return static_cast<double>(d.count()) * 1e-9;
}

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  [[nodiscard]] virtual WallTime wall() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
  [[nodiscard]] WallTime wall() const override {
    return std::chrono::time_point_cast<std::chrono::milliseconds>(
        std::chrono::system_clock::now());
  }
};

class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  [[nodiscard]] WallTime wall() const override {
    return WallTime(std::chrono::milliseconds(1'767'225'600'000)) +
           std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch());
  }
  void advance(Duration d) { now_ += d; }

 private:
  TimePoint now_{};
};

// RFC 3339 with milliseconds, UTC: "2026-12-01T18:00:00.123Z"; parse accepts the same, nullopt-like
// epoch 0 on error.
[[nodiscard]] std::string format_wall(WallTime t);
[[nodiscard]] bool parse_wall(const std::string& text, WallTime* out);

}  // namespace archipelago
