#include "outer-optimizer/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

namespace archipelago::outer {
namespace {

const std::vector<double> kSeconds{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30};

std::string name(const char* rest) { return std::string("archipelago_outer_optimizer_") + rest; }

}  // namespace

DaemonMetrics::DaemonMetrics()
    : rounds_(&registry_.counter(name("rounds_total"),
                                 "Committed global steps that merged a fragment")),
      down_bytes_(&registry_.counter(name("fragment_bytes_total"), "Bytes of fragments",
                                     {{"direction", "down"}})),
      members_(&registry_.histogram(name("round_members"), "Members of a round",
                                    {0, 1, 2, 3, 4, 8, 16, 32, 64, 128})),
      merge_seconds_(&registry_.histogram(name("merge_seconds"), "Merging a fragment", kSeconds)),
      journal_seconds_(
          &registry_.histogram(name("journal_seconds"), "Journaling a round durably", kSeconds)),
      publish_seconds_(&registry_.histogram(name("publish_seconds"),
                                            "Outer step and downlink encoding", kSeconds)),
      global_step_(&registry_.gauge(name("global_step"), "Committed global step")),
      loss_(&registry_.gauge(name("loss"), "Training loss as the learners report it")),
      held_(&registry_.gauge(name("held_replies"), "Progress replies that are held")),
      upload_memory_(
          &registry_.gauge(name("upload_memory_bytes"), "Memory of uploads of open rounds")) {
  for (const char* result : {"accepted", "repeat", "invalid", "not_found", "conflict", "fenced",
                             "refused", "unsupported", "too_large", "unavailable", "timeout",
                             "no_space", "io", "corrupt", "cancelled", "internal"}) {
    uploads_[result] =
        &registry_.counter(name("uploads_total"), "Uploads by result", {{"result", result}});
  }
  for (const char* phase : {"Recovering", "Stepping", "Waiting", "Starved", "Silent", "Left"}) {
    unit_phases_[phase] =
        &registry_.gauge(name("units"), "Learner units by phase", {{"phase", phase}});
  }
  for (const char* result : {"ok", "failed"}) {
    checkpoints_[result] = &registry_.counter(name("checkpoints_total"), "Checkpoints by result",
                                              {{"result", result}});
  }
}

void DaemonMetrics::upload(std::string result) {
  std::replace(result.begin(), result.end(), ' ', '_');
  if (const auto it = uploads_.find(result); it != uploads_.end()) it->second->Increment();
}

void DaemonMetrics::merged(const MergeReport& report, std::size_t members) {
  rounds_->Increment();
  members_->Observe(static_cast<double>(members));
  merge_seconds_->Observe(report.outcome.merge_seconds);
  journal_seconds_->Observe(report.outcome.journal_seconds);
  publish_seconds_->Observe(report.outcome.publish_seconds);
}

void DaemonMetrics::checkpoint(const CheckpointResult& result) {
  checkpoints_[result.status ? "ok" : "failed"]->Increment();
}

void DaemonMetrics::fragment_bytes(std::uint64_t bytes) {
  down_bytes_->Increment(static_cast<double>(bytes));
}

void DaemonMetrics::status(const diloco::StatusDocument& status, std::size_t held_replies,
                           std::uint64_t upload_memory) {
  global_step_->Set(static_cast<double>(status.global_step.value));
  if (std::isfinite(status.loss)) loss_->Set(status.loss);
  held_->Set(static_cast<double>(held_replies));
  upload_memory_->Set(static_cast<double>(upload_memory));
  std::map<std::string, int> phases;
  for (const auto& unit : status.units) ++phases[unit.phase];
  for (const auto& [phase, gauge] : unit_phases_) gauge->Set(phases[phase]);
}

Status DaemonMetrics::open_tape(const std::filesystem::path& path) {
  ARCH_TRY(tape_, LineFile::open(path));
  return {};
}

Status DaemonMetrics::tape(const nlohmann::json& line) {
  return tape_ ? tape_->append(line) : Status();
}

Result<LineFile> LineFile::open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return fail(errno_error("open " + path.string(), errno));
  const off_t size = ::lseek(fd.get(), 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(fd.get(), &last, 1, size - 1) == 1 && last != '\n') {
    const std::byte end{'\n'};
    ARCH_TRY_VOID(write_all(fd.get(), std::span(&end, 1)));
  }
  return LineFile(std::move(fd));
}

Status LineFile::append(const nlohmann::json& line) {
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return write_all(fd_.get(), std::as_bytes(std::span(text)));
}

}  // namespace archipelago::outer
