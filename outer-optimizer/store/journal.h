#pragma once
// The journal: what happened since the newest checkpoint, one checksummed record after another in
// preallocated files (protocol.md §2.8). A record is durable when append() returns; one that was
// cut off by a crash is ignored; damage with whole records behind it is reported by name.
//
// File journal-<generation>.log, all numbers little-endian:
//   header, 64 bytes: magic "ARCHJRN1", generation u64, first sequence u64, random id u64, zeros,
//   xxh3 of the first 56 record, at a multiple of 8: header, 40 bytes: magic u32, type u32,
//   sequence u64, head bytes u64, tensor bytes u64,
//                               xxh3 of (id, the first 32); head; tensor; zeros to a multiple of 8;
//                               xxh3 of (id, all of these), 8 bytes
// The id keeps bytes of an older file, should the disk hand them out, from ever looking like a
// record of this one.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/files.h"
#include "common/base/result.h"
#include "outer-optimizer/store/file_ops.h"

namespace archipelago::outer {

enum class RecordType : std::uint32_t {
  kState =
      1,  // head: what the core must not forget (identities, reservations, settings); no tensor
  kCommit = 2,  // head: commit_record.h; tensor: the merged gradient exactly as applied, fp32
  kFinal = 3,   // head: version and core state; published := master
};

struct JournalRecord {
  RecordType type = RecordType::kState;
  std::uint64_t sequence = 0;
  std::string head;
  std::uint64_t tensor_bytes = 0;
  // Reads bytes of the tensor part (already verified against the checksum).
  std::function<Status(std::uint64_t first, std::span<std::byte> out)> read_tensor;
};

struct JournalReplay {
  std::uint64_t records = 0;
  std::uint64_t next_sequence = 0;
  std::vector<std::string> problems;  // damage, with file and offset; a torn tail is not a problem
};

class Journal {
 public:
  static constexpr std::uint64_t kMaxHead = 64ULL << 20;

  // Where a checkpoint's journal begins; the default is that of a run without a checkpoint.
  struct Start {
    std::uint64_t generation = 1;
    std::uint64_t sequence = 1;
    bool must_exist = false;
  };
  // Replays every record from `from` on, in order, then opens the newest file for appending after
  // the last whole record. A file whose records are damaged in the middle is left as it is: records
  // behind the damage are not replayed, and appending goes on in a new generation. `preallocate`:
  // bytes reserved for a new file.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> open(
      FileOps& ops, const std::filesystem::path& folder, const Start& from,
      std::uint64_t preallocate, const std::function<Status(const JournalRecord&)>& replay,
      JournalReplay* report);

  // Writes and syncs one record. kNoSpace: nothing changed, try again when there is room. Other
  // errors: the medium failed; the caller stops. `tensor` fills pieces of the tensor part in order.
  using TensorSource = std::function<void(std::uint64_t first_byte, std::span<std::byte> out)>;
  [[nodiscard]] Status append(RecordType type, std::string_view head,
                              std::uint64_t tensor_bytes = 0, const TensorSource& tensor = {});

  // Starts the next generation: records from here on belong to the next checkpoint. On kNoSpace the
  // present file goes on being used.
  [[nodiscard]] Status rotate();
  // Deletes the files of generations below `generation`, once a checkpoint has made them
  // superfluous.
  [[nodiscard]] static Status free_below(FileOps& ops, const std::filesystem::path& folder,
                                         std::uint64_t generation);
  void set_preallocate(std::uint64_t bytes) { preallocate_ = bytes; }  // of the next file
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  [[nodiscard]] std::uint64_t next_sequence() const { return next_sequence_; }
  [[nodiscard]] std::uint64_t used_bytes() const { return end_; }
  [[nodiscard]] std::uint64_t allocated_bytes() const { return allocated_; }

  // The generations present in a folder, ascending (numeric order).
  [[nodiscard]] static std::vector<std::uint64_t> generations(const std::filesystem::path& folder);
  [[nodiscard]] static std::filesystem::path file_path(const std::filesystem::path& folder,
                                                       std::uint64_t generation);

 private:
  Journal(FileOps& ops, std::filesystem::path folder, std::uint64_t preallocate)
      : ops_(ops), folder_(std::move(folder)), preallocate_(preallocate) {}
  [[nodiscard]] Status create_file(std::uint64_t generation);
  [[nodiscard]] Status make_room(std::uint64_t bytes);

  FileOps& ops_;
  std::filesystem::path folder_;
  std::uint64_t preallocate_;
  UniqueFd fd_;
  std::uint64_t generation_ = 0;
  std::uint64_t id_ = 0;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t end_ = 0;        // where the next record begins
  std::uint64_t allocated_ = 0;  // size of the file
};

}  // namespace archipelago::outer
