#include "outer-optimizer/tape_log.h"

#include <algorithm>
#include <sys/statvfs.h>
#include <system_error>
#include <utility>

namespace archipelago::outer {
namespace tape = diloco::tape;

TapeLog::TapeLog(std::filesystem::path folder, std::string run_id, Logger log)
    : folder_(std::move(folder)), run_id_(std::move(run_id)), log_(std::move(log)) {
  open();
}

void TapeLog::open() {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return trouble({ErrorKind::kIo, folder_.string() + ": " + error.message()});
  const auto path = folder_ / "events.tape";
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto writer = wire::TapeWriter::open(
        path, run_id_, [this](tape::Record record) { return keep(std::move(record)); });
    if (writer) {
      writer_ = std::move(*writer);
      written_ = seen_;
      return;
    }
    trouble(writer.error());
    seen_ = {};
    published_.clear();
    std::filesystem::rename(path, folder_ / "events.tape.unusable", error);
    if (error) return;
  }
}

Status TapeLog::keep(tape::Record record) {
  if (const auto* batch = std::get_if<tape::Batch>(&record)) seen_.written(*batch);
  if (const auto* one = std::get_if<tape::Published>(&record)) {
    GlobalStep& newest = published_.try_emplace(one->fragment, one->t).first->second;
    newest = std::max(newest, one->t);
  }
  return {};
}

void TapeLog::trouble(const Error& error) {
  if (!told_) log_.warn("event tape not written", {{"why", error.describe()}});
  told_ = true;
}

void TapeLog::add(tape::Record record) {
  if (!writer_) return;
  static_cast<void>(keep(record));
  pending_.push_back(std::move(record));
  if (pending_.size() >= kMaxPending) write();
}

void TapeLog::write() {
  if (pending_.empty() || !writer_) return;
  struct statvfs info {};
  const bool known = ::statvfs(folder_.c_str(), &info) == 0;
  const bool room =
      !known || static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize >= kFreeBytesLeft;
  const Status written = room ? writer_->append(pending_)
                              : fail(ErrorKind::kNoSpace, folder_.string() + ": the last " +
                                                              std::to_string(kFreeBytesLeft >> 20) +
                                                              " MiB are the journal's");
  pending_.clear();
  if (written) {
    written_ = seen_;
    told_ = false;
    return;
  }
  // Learners send again what they were not told to be written; a lost round is missing at replay.
  seen_ = written_;
  trouble(written.error());
}

std::int64_t TapeLog::events(const tape::Batch& batch, bool now) {
  const std::lock_guard lock(mutex_);
  if (!writer_) return batch.upto();  // nobody will ever want them
  if (tape::Batch fresh = seen_.unseen(batch); !fresh.events.empty()) add(std::move(fresh));
  if (now) write();
  return written_.next(batch.unit, batch.incarnation);
}

void TapeLog::opened(tape::Opened opened) {
  const std::lock_guard lock(mutex_);
  add(std::move(opened));
  write();
}

void TapeLog::round(tape::Round round) {
  const std::lock_guard lock(mutex_);
  add(std::move(round));
  write();
}

void TapeLog::published(GlobalStep t, std::int32_t fragment, std::uint64_t digest) {
  const std::lock_guard lock(mutex_);
  add(tape::Published{t, fragment, digest});
}

bool TapeLog::knows(GlobalStep version, std::int32_t fragment) const {
  const std::lock_guard lock(mutex_);
  const auto it = published_.find(fragment);
  return it != published_.end() && it->second >= version;
}

void TapeLog::final_version(GlobalStep version) {
  const std::lock_guard lock(mutex_);
  add(tape::Final{version});
}

void TapeLog::flush() {
  const std::lock_guard lock(mutex_);
  write();
}

}  // namespace archipelago::outer
