#pragma once
// The fragment owner's state on one disk: tensors, journal, checkpoints, epoch and lock
// (protocol.md §2.7-§2.9, §4).
//
//   DIR/lock  epoch  journal/journal-<g>.log  checkpoints/<t>/  model/
//
// A version leaves the process only after its record is durable: merge_and_commit() journals before
// it publishes. Recovery is the newest complete checkpoint and the journal behind it, replayed
// through the same apply().
//
// Checkpoints do not stop the merges: start_checkpoint() rotates the journal and a writer thread
// then writes the live arrays fragment by fragment. A merge of a fragment that is not yet written
// waits for just that one, so the checkpoint is exact at its step, and no copy of anything is made.
// (Fragments are written in the order in which they are due, so the writer normally stays ahead.)
//
// Threads: one owner thread for everything but what is marked "any thread".
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/diloco/fragmentation.h"
#include "common/diloco/layout.h"
#include "common/diloco/schedule.h"
#include "outer-optimizer/store/checkpoint.h"
#include "outer-optimizer/store/file_ops.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::outer {

struct StoreOptions {
  std::filesystem::path folder;
  std::string run_id;
  std::int64_t fragments = 1;  // P
  std::int64_t interval = 1;   // H
  diloco::FragmentScheme scheme = diloco::FragmentScheme::kBalanced;
  bool published_bf16 = false;
  OuterRules rules;
  int threads = 1;
  std::int64_t checkpoint_every = 100;  // global steps; sizes the journal's reservation
  // false (`checkpoint.journal: off`): commits are noted without their gradients, and a start goes
  // back to the newest checkpoint.
  bool journal_gradients = true;
  std::int64_t keep = 2;
  std::int64_t keep_every = 0;  // steps that are multiples of it are kept for good; 0: none
  FileOps* ops = nullptr;       // nullptr: the real ones
};

struct RecoveryReport {
  bool found = false;  // a checkpoint was loaded
  GlobalStep checkpoint_step;
  GlobalStep committed{-1};           // newest version replayed or loaded
  std::uint64_t records = 0;          // journal records replayed
  bool rolled_back = false;           // the state is older than what was once published
  bool without_gradients = false;     // because commits behind `exact` have no gradients
  GlobalStep exact;                   // where the tensors stand
  std::vector<std::string> problems;  // corrupt checkpoints and journals, by name
};

struct MergeRequest {
  GlobalStep t;
  FragmentId fragment;
  std::vector<MergeInput> members;  // in order of unit name
  std::string
      meta;  // members and excluded, opaque; comes back in Frame::meta, also after a restart
  std::string core_state;  // the core as it is once t is committed
};

struct MergeOutcome {
  bool updated = false;  // false: nobody's contribution counted
  std::uint64_t frame_bytes = 0;
  std::uint64_t journal_bytes = 0;
  double merge_seconds = 0;    // prepare
  double journal_seconds = 0;  // append and sync
  double publish_seconds = 0;  // outer step and downlink; without waiting for a checkpoint
  double wait_seconds = 0;     // for the checkpoint writer to be done with this fragment
};

struct CheckpointResult {
  GlobalStep step;
  Status status;  // kNoSpace: pruned to the last good one, try again later (CheckpointStale)
  double seconds = 0;
};

class Store {
 public:
  // Takes the folder's lock (kConflict: another process has it), counts the epoch up, recovers.
  // `on_state` gets every core state found, oldest first: the checkpoint's, then one a journal
  // record. kCorrupt / kConflict: nothing usable or another run's; the message names the file.
  [[nodiscard]] static Result<std::unique_ptr<Store>> open(
      StoreOptions options, const std::function<void(std::string_view)>& on_state);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  [[nodiscard]] std::int64_t epoch() const;              // any thread
  [[nodiscard]] const RecoveryReport& recovery() const;  // any thread
  // True once a layout is known (from a checkpoint or set_layout) / every fragment has a version.
  [[nodiscard]] bool has_layout() const;
  [[nodiscard]] bool seeded() const;
  [[nodiscard]] const diloco::Layout& layout() const;
  [[nodiscard]] const Assets& assets() const;
  [[nodiscard]] const diloco::Fragmentation& fragmentation() const;

  // First layout of a fresh run. kInvalid: it doesn't fit P. kNoSpace: the disk or the memory is
  // too small; the message has the figures.
  [[nodiscard]] Status set_layout(diloco::Layout layout, Assets assets);
  // Seed or rebuild: every fragment once, then commit_seed(), which writes the checkpoint of `step`
  // (0 for a fresh run) before it returns. Nothing is published before. kRefused: non-finite.
  [[nodiscard]] Status seed_fragment(FragmentId p, GlobalStep version,
                                     std::span<const float> values);
  [[nodiscard]] Status commit_seed(GlobalStep step, std::string_view core_state);

  // Rebuild of a lost disk: what was staged stands as these versions, one a fragment.
  [[nodiscard]] Status commit_rebuilt(GlobalStep step, const std::vector<GlobalStep>& versions,
                                      std::string_view core_state);
  // The counter of starts was lost, learners have heard a higher one.
  [[nodiscard]] Status raise_epoch(std::int64_t epoch);

  // Journals what the core must not forget. Durable when it returns.
  [[nodiscard]] Status persist(std::string_view core_state);
  // Merge, journal, publish. kNoSpace: nothing changed, call again when there is room. kRefused,
  // kInvalid: the inputs are at fault, nothing changed.
  [[nodiscard]] Result<MergeOutcome> merge_and_commit(const MergeRequest& request);
  // published := master for every fragment, keyframes of `version`; journaled first.
  [[nodiscard]] Status publish_final(GlobalStep version, std::string_view core_state);

  // The checkpoint of `step`, where the tensors stand now, before it returns; one that is being
  // written ends first. kNoSpace: nothing changed.
  [[nodiscard]] Status checkpoint_now(GlobalStep step, std::string_view core_state);
  // The state as of now (after commit of `step`) will be checkpointed by the writer thread. False:
  // one is being written (nothing happens). On kNoSpace of the new journal file the checkpoint is
  // not started.
  [[nodiscard]] Result<bool> start_checkpoint(GlobalStep step, std::string_view core_state);
  // The outcome of a checkpoint that has ended since the last call; frees the journal before it.
  [[nodiscard]] std::optional<CheckpointResult> poll_checkpoint();
  // Waits for the running one, if any (shutdown).
  [[nodiscard]] std::optional<CheckpointResult> finish_checkpoint();

  // Writes model.safetensors (published copy; names unchanged) and the assets to `folder`.
  [[nodiscard]] Status export_model(const std::filesystem::path& folder) const;

  // Any thread, after seeded() has been seen true by the owner: the next frame
  // (FragmentStore::frame).
  [[nodiscard]] std::optional<Frame> frame(FragmentId p, GlobalStep have) const;
  [[nodiscard]] std::vector<GlobalStep> versions() const;
  // xxh3 of the published bytes of p and the version they belong to (for donors and the tape). Any
  // thread.
  struct PublishedDigest {
    GlobalStep version;
    std::uint64_t xxh3 = 0;
  };
  [[nodiscard]] std::optional<PublishedDigest> published_digest(FragmentId p) const;

  struct DiskUse {
    std::uint64_t journal_used = 0, journal_allocated = 0, free_bytes = 0;
  };
  [[nodiscard]] DiskUse disk_use() const;
  [[nodiscard]] const FragmentStore* fragments() const;  // nullptr before a layout is known

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A kept checkpoint as a model folder, without opening the run (archipelago fetch --step,
// initFrom).
[[nodiscard]] Status export_checkpoint(const std::filesystem::path& run_folder, GlobalStep step,
                                       const std::filesystem::path& out);

}  // namespace archipelago::outer
