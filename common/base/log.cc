#include "common/base/log.h"

#include <cmath>

#include <nlohmann/json.hpp>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "common/base/clock.h"

namespace archipelago {

struct Logger::Sink {
  std::shared_ptr<spdlog::logger> out;
  LogLevel level = LogLevel::kInfo;
};

namespace {

std::shared_ptr<spdlog::logger> make_logger(spdlog::sink_ptr sink) {
  auto out = std::make_shared<spdlog::logger>("archipelago", std::move(sink));
  out->set_pattern("%v");
  out->set_level(spdlog::level::trace);
  out->flush_on(spdlog::level::trace);
  return out;
}

// Strict dump throws on invalid UTF-8, which a peer's text may hold: replace instead.
std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_field(std::string& line, const LogField& field) {
  line += ',';
  line += quote(field.name);
  line += ':';
  if (const auto* s = std::get_if<std::string>(&field.value)) {
    line += quote(*s);
  } else if (const auto* i = std::get_if<std::int64_t>(&field.value)) {
    line += std::to_string(*i);
  } else if (const auto* b = std::get_if<bool>(&field.value)) {
    line += *b ? "true" : "false";
  } else {
    const double d = std::get<double>(field.value);
    line += std::isfinite(d) ? nlohmann::json(d).dump() : quote(std::isnan(d) ? "nan" : "inf");
  }
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
  }
  return "info";
}

}  // namespace

Logger Logger::to_stderr(std::string_view name, LogLevel level) {
  Logger logger;
  logger.sink_ = std::make_shared<Sink>(
      Sink{make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>()), level});
  logger.name_ = name;
  return logger;
}

Logger Logger::to_file(std::string_view name, const std::string& path, LogLevel level) {
  Logger logger;
  logger.sink_ = std::make_shared<Sink>(
      Sink{make_logger(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path)), level});
  logger.name_ = name;
  return logger;
}

Logger Logger::null() {
  Logger logger;
  logger.sink_ = std::make_shared<Sink>(Sink{nullptr, LogLevel::kError});
  return logger;
}

Logger Logger::named(std::string_view name) const {
  Logger copy = *this;
  copy.name_ = name;
  return copy;
}

Logger Logger::with(std::initializer_list<LogField> fields) const {
  Logger copy = *this;
  std::string text = extra_ ? *extra_ : std::string();
  for (const auto& field : fields) append_field(text, field);
  copy.extra_ = std::make_shared<const std::string>(std::move(text));
  return copy;
}

void Logger::write(LogLevel level, std::string_view msg,
                   std::initializer_list<LogField> fields) const {
  if (!sink_ || !sink_->out || level < sink_->level) return;
  std::string line = "{\"ts\":\"" + format_wall(SystemClock().wall()) + "\",\"level\":\"" +
                     level_name(level) + "\",\"logger\":" + quote(name_) +
                     ",\"msg\":" + quote(std::string(msg));
  if (extra_) line += *extra_;
  for (const auto& field : fields) append_field(line, field);
  line += '}';
  sink_->out->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

void Logger::debug(std::string_view m, std::initializer_list<LogField> f) const {
  write(LogLevel::kDebug, m, f);
}
void Logger::info(std::string_view m, std::initializer_list<LogField> f) const {
  write(LogLevel::kInfo, m, f);
}
void Logger::warn(std::string_view m, std::initializer_list<LogField> f) const {
  write(LogLevel::kWarn, m, f);
}
void Logger::error(std::string_view m, std::initializer_list<LogField> f) const {
  write(LogLevel::kError, m, f);
}

bool parse_log_level(std::string_view text, LogLevel* out) {
  if (text == "debug")
    *out = LogLevel::kDebug;
  else if (text == "info")
    *out = LogLevel::kInfo;
  else if (text == "warn")
    *out = LogLevel::kWarn;
  else if (text == "error")
    *out = LogLevel::kError;
  else
    return false;
  return true;
}

}  // namespace archipelago
