#pragma once
// A whole tape in memory, sorted by what its records are about, and what two tapes differ in. Pure
// but for load_tape(). About 150 bytes for each learner step.
#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/diloco/event_tape.h"
#include "common/wire/tape_file.h"

namespace archipelago::replay {

struct LearnerKey {
  std::string unit;
  Incarnation incarnation;
  friend auto operator<=>(const LearnerKey&, const LearnerKey&) = default;
};
[[nodiscard]] std::string to_string(const LearnerKey& key);  // "us-east-0 (incarnation 2)"

struct LearnerEvents {
  std::size_t opened = 0;  // index into TapeContent::opened: the settings when it started
  std::vector<diloco::tape::LearnerEvent> events;  // a Gap stands where some are missing
};

struct TapeContent {
  wire::TapeScan scan;
  std::vector<diloco::tape::Opened> opened;
  std::map<LearnerKey, LearnerEvents> learners;
  std::map<GlobalStep, diloco::tape::Round> rounds;
  std::map<std::pair<GlobalStep, std::int32_t>, std::uint64_t> published;  // digest by (t, p)
  std::optional<GlobalStep> final_version;
  // The lowest step that was merged again after its digest was written: the run lost commits that
  // learners had seen, and what follows cannot be told apart.
  std::optional<GlobalStep> went_back;
};

// Adds one record, in the order of the file.
class TapeCollector {
 public:
  void add(diloco::tape::Record record);
  [[nodiscard]] TapeContent take() { return std::move(content_); }

 private:
  void batch(diloco::tape::Batch batch);
  TapeContent content_;
  std::map<LearnerKey, std::int64_t> next_;
};

// `path`: a tape, or the folder of a run or of its outer optimizer. Errors: wire::scan_tape.
[[nodiscard]] Result<TapeContent> load_tape(const std::filesystem::path& path);

// What `a` and `b` first differ in, a line each: the rounds (by t), the published bytes (by t), and
// each learner's events (by local step). Empty: the same. Sessions, loss and where the files'
// blocks begin don't count.
[[nodiscard]] std::vector<std::string> differences(const TapeContent& a, const TapeContent& b);

// "us-east-0 (incarnation 1, 512 tokens, 4 steps), ...".
[[nodiscard]] std::string members_text(const diloco::tape::Round& round);
[[nodiscard]] std::string hex(std::uint64_t digest);

}  // namespace archipelago::replay
