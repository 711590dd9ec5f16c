#pragma once
// The daemon's metrics (every combination exists from the start) and metrics.jsonl, a line for each
// global step.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/files.h"
#include "common/base/metrics.h"
#include "common/base/result.h"
#include "common/diloco/messages.h"
#include "outer-optimizer/store_thread.h"

namespace archipelago::outer {

// Appends JSON lines; a torn last line of a killed process is ended first.
class LineFile {
 public:
  [[nodiscard]] static Result<LineFile> open(const std::filesystem::path& path);
  [[nodiscard]] Status append(const nlohmann::json& line);

 private:
  explicit LineFile(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

class DaemonMetrics {
 public:
  DaemonMetrics();

  // result: accepted, repeat, or the error's kind as the sender sees it.
  void upload(std::string result);
  void merged(const MergeReport& report, std::size_t members);
  void checkpoint(const CheckpointResult& result);
  void status(const diloco::StatusDocument& status, std::size_t held_replies,
              std::uint64_t upload_memory);
  void fragment_bytes(std::uint64_t bytes);
  // metrics.jsonl; tape() without an open one does nothing. Core's thread only.
  [[nodiscard]] Status open_tape(const std::filesystem::path& path);
  [[nodiscard]] Status tape(const nlohmann::json& line);
  [[nodiscard]] std::string render() const { return registry_.render(); }

 private:
  Metrics registry_;
  std::optional<LineFile> tape_;
  std::map<std::string, prometheus::Counter*> uploads_;
  std::map<std::string, prometheus::Gauge*> unit_phases_;
  std::map<std::string, prometheus::Counter*> checkpoints_;
  prometheus::Counter* rounds_;
  prometheus::Counter* down_bytes_;
  prometheus::Histogram* members_;
  prometheus::Histogram* merge_seconds_;
  prometheus::Histogram* journal_seconds_;
  prometheus::Histogram* publish_seconds_;
  prometheus::Gauge* global_step_;
  prometheus::Gauge* loss_;
  prometheus::Gauge* held_;
  prometheus::Gauge* upload_memory_;
};

}  // namespace archipelago::outer
