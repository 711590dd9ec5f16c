#pragma once
// The owner's half of a round (protocol.md §2.6, §3): which uploads it holds, how long the missing
// ones are awaited, and what is merged, in order of t. It never decides who is a member; tensors
// stay with the daemon, addressed by key.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/diloco/round_clock.h"

namespace archipelago::diloco {

[[nodiscard]] CommitRecord record_of(const StartMerge& merge);

class FragmentOwner {
 public:
  explicit FragmentOwner(const SyncerConfig& config) : config_(&config) {}

  void announce(const AnnounceMessage& message);
  void close(const CloseMessage& message, TimePoint now);
  void reopened(GlobalStep t);
  void lower_quorum(std::int32_t quorum, TimePoint now);  // as RoundClock's

  [[nodiscard]] Result<UploadVerdict> started(const UploadKey& key, std::int32_t fragment,
                                              GlobalStep base, std::uint64_t bytes, TimePoint now);
  void received(const UploadKey& key, std::uint64_t bytes, TimePoint now);
  [[nodiscard]] Result<std::int32_t> complete(const UploadInfo& info, TimePoint now);
  // Returns true where an incomplete upload of that key was known.
  bool aborted(const UploadKey& key);
  // The unit has a newer incarnation, or left: what it did not complete is not awaited any more.
  void drop_incomplete(const std::string& unit);

  // Ends waits that are over. Returns the rounds to reopen: nothing more to await, fewer than K
  // complete.
  [[nodiscard]] std::vector<GlobalStep> evaluate(double step_seconds, TimePoint now);
  // The merge of committed + 1, once its wait is over; nullopt while one is running.
  [[nodiscard]] std::optional<StartMerge> start_merge(GlobalStep committed, const UnitTable& units);
  void merge_failed(GlobalStep t);
  // Returns the record of the committed round; its uploads are forgotten.
  CommitRecord committed(GlobalStep t);

  [[nodiscard]] double throughput(const std::string& unit) const;  // bytes/s; 0 = unmeasured
  [[nodiscard]] const StartMerge* merging() const { return merging_ ? &*merging_ : nullptr; }
  [[nodiscard]] bool in_flight(const std::string& unit) const;

 private:
  struct Upload {
    UploadKey key;
    std::uint64_t bytes = 0, received = 0;
    TimePoint started{};
    bool complete = false;
    UploadInfo info;
  };
  struct Entry {
    std::int32_t fragment = kNoFragment;
    GlobalStep base;
    std::int32_t quorum = 1;
    bool closed = false, ready = false;
    TimePoint closed_at{};
    std::optional<Duration> kth;    // time since the close at which the K-th upload was complete
    std::set<std::string> awaited;  // members that may still complete
    std::map<std::string, Upload> uploads;
  };
  struct Link {  // one unit's uplink
    double throughput = 0;
    std::uint64_t total = 0, mark_bytes = 0;
    TimePoint mark{};
    double recent = 0;  // bytes/s over the last half second or more
  };

  [[nodiscard]] std::int32_t complete_count(const Entry& entry) const;
  [[nodiscard]] bool still_awaited(const Entry& entry, const std::string& unit, double step_seconds,
                                   double kth_smallest, TimePoint now) const;
  [[nodiscard]] double kth_smallest_figure(const Entry& entry) const;
  [[nodiscard]] double figure(const Entry& entry,
                              const std::string& unit) const;  // bytes / throughput; < 0 unmeasured
  void note_bytes(const std::string& unit, std::uint64_t bytes, TimePoint now);

  const SyncerConfig* config_;
  std::map<GlobalStep, Entry> entries_;
  std::map<std::string, Link> links_;
  std::map<std::int32_t, std::uint64_t> fragment_bytes_;  // of the last upload of a fragment
  std::optional<StartMerge> merging_;
};

}  // namespace archipelago::diloco
