#pragma once
// The event tape's end at the outer optimizer (docs/tape.md): learners' events and its own rounds
// into one file, DIR/tape/events.tape. Records are collected and written as one block just before
// the commit of a round, so that whatever a committed round rests on is in the kernel's hands; a
// learner is told what is written and sends the rest again.
//
// Thread-safe. Never in the way of training: a tape that cannot be written is warned about, once,
// and goes without.
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/diloco/event_tape.h"
#include "common/wire/tape_file.h"
#include "outer-optimizer/store/store.h"

namespace archipelago::outer {

class TapeLog {
 public:
  // A batch of events is at most wire::kMaxTapeBatch, so these fit a block.
  static constexpr std::size_t kMaxPending = 48;
  static constexpr std::uint64_t kFreeBytesLeft = std::uint64_t{64} << 20;  // for the journal

  // A file that is damaged or of another run is set aside under another name.
  TapeLog(std::filesystem::path folder, std::string run_id, Logger log);

  // Returns up to which number the sender's events are written. `now`: writes them at once.
  std::int64_t events(const diloco::tape::Batch& batch, bool now);
  void opened(diloco::tape::Opened opened);
  void round(diloco::tape::Round round);  // before its commit
  void published(GlobalStep t, std::int32_t fragment, std::uint64_t digest);
  // The version that a fragment was recovered at: one whose digest is missing gets it now.
  [[nodiscard]] bool knows(GlobalStep version, std::int32_t fragment) const;
  void final_version(GlobalStep version);
  void flush();

 private:
  void open();
  [[nodiscard]] Status keep(diloco::tape::Record record);  // of a tape that is read again
  void add(diloco::tape::Record record);                   // with mutex_ held, as below
  void write();
  void trouble(const Error& error);

  const std::filesystem::path folder_;
  const std::string run_id_;
  Logger log_;
  mutable std::mutex mutex_;
  std::optional<wire::TapeWriter> writer_;
  std::vector<diloco::tape::Record> pending_;
  diloco::tape::Cursors seen_, written_;
  std::map<std::int32_t, GlobalStep> published_;  // newest by fragment, pending ones included
  bool told_ = false;
};

// The published versions from `version` on whose digests are not on the tape (core_store.cc). On
// the store's thread, or before there is one.
void record_published(const Store& store, GlobalStep version, TapeLog& tape);

}  // namespace archipelago::outer
