#pragma once
// One JSON object a line on stderr: ts, level, logger, msg (constant text), then fields. Passed in,
// never global.
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace archipelago {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

struct LogField {
  using Value = std::variant<std::string, std::int64_t, double, bool>;
  LogField(std::string_view n, std::string_view v) : name(n), value(std::string(v)) {}
  LogField(std::string_view n, const std::string& v) : name(n), value(v) {}
  LogField(std::string_view n, const char* v) : name(n), value(std::string(v)) {}
  LogField(std::string_view n, bool v) : name(n), value(v) {}
  LogField(std::string_view n, double v) : name(n), value(v) {}
  template <class Int>
  requires std::is_integral_v<Int> LogField(std::string_view n, Int v)
      : name(n), value(static_cast<std::int64_t>(v)) {}
  std::string name;
  Value value;
};

// Cheap to copy; thread-safe.
class Logger {
 public:
  // Writes to stderr; `level` and below are dropped when less severe.
  static Logger to_stderr(std::string_view name, LogLevel level = LogLevel::kInfo);
  static Logger to_file(std::string_view name, const std::string& path,
                        LogLevel level = LogLevel::kInfo);
  static Logger null();

  [[nodiscard]] Logger named(std::string_view name) const;
  // A copy that adds these fields to every line.
  [[nodiscard]] Logger with(std::initializer_list<LogField> fields) const;

  void debug(std::string_view msg, std::initializer_list<LogField> fields = {}) const;
  void info(std::string_view msg, std::initializer_list<LogField> fields = {}) const;
  void warn(std::string_view msg, std::initializer_list<LogField> fields = {}) const;
  void error(std::string_view msg, std::initializer_list<LogField> fields = {}) const;

 private:
  struct Sink;
  void write(LogLevel level, std::string_view msg, std::initializer_list<LogField> fields) const;
  std::shared_ptr<Sink> sink_;
  std::string name_;
  std::shared_ptr<const std::string> extra_;  // ready-made ",\"key\":value" text
};

[[nodiscard]] bool parse_log_level(std::string_view text, LogLevel* out);

}  // namespace archipelago
