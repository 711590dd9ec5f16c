#pragma once
// Checkpoints: one folder a global step, written beside and renamed, so a half-written one is never
// seen (protocol.md §2.8; cases D-23, D-25, D-26).
//
// checkpoints/<t>/ holds fragment-<p>.bin (64-byte header; master, momentum, published as fp32),
// layout.txt, state.json (opaque to the store), assets/<name>, and manifest.txt, which names every
// file with size and xxh3 and ends with its own checksum: it is written last and commits all parts
// together. The state is exact at t: it can be used without any journal, and the journal generation
// named in the manifest continues from it.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/diloco/fragmentation.h"
#include "common/diloco/layout.h"
#include "outer-optimizer/store/file_ops.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::outer {

// Files that travel with the model (config.json, tokenizer): plain names only, they become paths.
using Assets = std::map<std::string, std::string>;
[[nodiscard]] Status check_assets(
    const Assets& assets);  // kInvalid / kTooLarge (16 MiB in all, 64 files)

struct CheckpointInfo {
  std::string run_id;
  GlobalStep step;
  std::int64_t epoch = 0;
  std::uint64_t journal_generation = 1;  // replay from here
  std::uint64_t journal_sequence = 1;    // and its first record is this one
  diloco::Layout layout;
  Assets assets;
  std::string core_state;
  std::int64_t fragments = 0;
  // How they were cut and what the published copy holds; absent in the oldest manifests: these.
  diloco::FragmentScheme scheme = diloco::FragmentScheme::kBalanced;
  bool published_bf16 = false;
};

// Bytes of a checkpoint's tensors, without touching any: 12N and headers. 64-bit.
[[nodiscard]] std::uint64_t checkpoint_bytes(const diloco::Fragmentation& fragmentation);
// protocol.md §2.8: 12N(keep + 1) + 1.5 * 4N * every/P + the model; every: global steps between
// checkpoints.
[[nodiscard]] std::uint64_t storage_needed(const diloco::Fragmentation& fragmentation,
                                           std::int64_t keep, std::int64_t every);
// Journal bytes to reserve: 1.5 * 4N * every/P (every: at most 4,096 here), at least
// kMinJournalBytes.
inline constexpr std::uint64_t kMinJournalBytes = 64ULL << 10;
[[nodiscard]] std::uint64_t journal_bytes(const diloco::Fragmentation& fragmentation,
                                          std::int64_t every);

// Steps of the complete-looking checkpoints in a folder, ascending by number (999 < 1000).
[[nodiscard]] std::vector<GlobalStep> list_checkpoints(const std::filesystem::path& folder);

// Writes one checkpoint piece by piece. Destroyed before finish(): the temporary folder is removed.
class CheckpointWriter {
 public:
  CheckpointWriter(FileOps& ops, std::filesystem::path folder, CheckpointInfo info);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  [[nodiscard]] Status begin();
  [[nodiscard]] Status write_fragment(FragmentId p, GlobalStep version,
                                      std::span<const float> master,
                                      std::span<const float> momentum,
                                      std::span<const float> published);
  [[nodiscard]] Status finish();  // manifest, fsync, rename, fsync of the folder
  [[nodiscard]] const CheckpointInfo& info() const { return info_; }

 private:
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;
  };
  [[nodiscard]] Status write_small(const std::string& name, std::string_view content);

  FileOps& ops_;
  std::filesystem::path folder_;
  std::filesystem::path temporary_;
  CheckpointInfo info_;
  std::vector<File> files_;
  bool finished_ = false;
};

// Everything but the tensors; checks the manifest and the small files. kCorrupt names the file.
[[nodiscard]] Result<CheckpointInfo> read_checkpoint_info(const std::filesystem::path& folder,
                                                          GlobalStep step);
// The tensors, straight into the store's arrays; checks sizes and checksums.
[[nodiscard]] Status read_checkpoint_tensors(const std::filesystem::path& folder,
                                             const CheckpointInfo& info, FragmentStore& store);
// The published copy of each fragment, mapped; `verify`: sizes, headers and the checksums of whole
// files. kCorrupt names the file.
struct MappedFragment {
  std::shared_ptr<const MappedFile> file;
  std::span<const float> values;
};
[[nodiscard]] Result<std::vector<MappedFragment>> map_published(
    const std::filesystem::path& folder, const CheckpointInfo& info,
    const diloco::Fragmentation& fragmentation, bool verify);
// After a crash while a checkpoint was being replaced by one of the same step: the old one is put
// back.
[[nodiscard]] Status restore_replaced(FileOps& ops, const std::filesystem::path& folder);
// Sets a corrupt checkpoint aside; prune_checkpoints() removes it once newer ones exist.
[[nodiscard]] Status set_aside(FileOps& ops, const std::filesystem::path& folder, GlobalStep step);
// Removes all but the newest `keep` (and multiples of keep_every, when > 0), and leftovers of
// crashed writers. The newest always stays.
[[nodiscard]] Status prune_checkpoints(FileOps& ops, const std::filesystem::path& folder,
                                       std::int64_t keep, std::int64_t keep_every);

}  // namespace archipelago::outer
