#pragma once
// The event tape as bytes (docs/tape.md has the tables). A file is a header and blocks of whole
// records, compressed with zstd where that helps; header and blocks carry checksums that depend on
// the file and the place, so a block of another tape, or one that was moved, is damage. A process
// that is killed leaves at most one incomplete block at the end: the torn tail, which is cut.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/files.h"
#include "common/base/result.h"
#include "common/diloco/event_tape.h"

namespace archipelago::wire {

inline constexpr std::uint32_t kTapeVersion = 1;
inline constexpr std::size_t kMaxTapeBlock = std::size_t{4} << 20;   // raw bytes of a block
inline constexpr std::size_t kMaxTapeBatch = std::size_t{64} << 10;  // bytes of POST /v1/tape
inline constexpr std::size_t kMaxTapeHeader = std::size_t{3} << 10;  // of X-Archipelago-Tape, raw

// One record, and back. The reader wants the whole span to be that record; kCorrupt says where in
// it.
[[nodiscard]] std::vector<std::byte> encode_tape_record(const diloco::tape::Record& record);
[[nodiscard]] Result<diloco::tape::Record> decode_tape_record(std::span<const std::byte> bytes);

// Records in a header line: lower-case hexadecimal. kInvalid: anything else, or longer than
// kMaxTapeHeader.
[[nodiscard]] std::string tape_header_text(std::span<const std::byte> bytes);
[[nodiscard]] Result<std::vector<std::byte>> parse_tape_header(std::string_view text);

struct TapeScan {
  std::string run_id;
  std::uint64_t id = 0;    // of the file: part of its checksums
  std::uint64_t end = 0;   // of the last whole block
  std::uint64_t torn = 0;  // bytes behind it
  std::uint64_t blocks = 0;
  std::uint64_t records = 0;
};
// Every record in order. kUnsupported: not a tape, or another version; kCorrupt: damage, with the
// file's name and the offset of the block. An error of `each` ends the scan.
[[nodiscard]] Result<TapeScan> scan_tape(const std::filesystem::path& path,
                                         const std::function<Status(diloco::tape::Record)>& each);

// Appends; one owner at a time (no lock here). Also the way to write a synthetic tape.
class TapeWriter {
 public:
  // Creates the file, or reads the one that is there (`each` gets its records), cuts a torn tail
  // and goes on behind it. kConflict: another run's tape.
  [[nodiscard]] static Result<TapeWriter> open(
      const std::filesystem::path& path, const std::string& run_id,
      const std::function<Status(diloco::tape::Record)>& each = {});

  // One block, in the kernel's hands when it returns (it survives the process, not the machine).
  // On an error the file ends where it did before.
  [[nodiscard]] Status append(std::span<const diloco::tape::Record> records);
  [[nodiscard]] std::uint64_t size() const { return end_; }

 private:
  explicit TapeWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  std::uint64_t id_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace archipelago::wire
