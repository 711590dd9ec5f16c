#pragma once
// The event tape as values (protocol.md §10; paper E.2): everything that decided the bytes of a
// run, so that it can be trained again bit for bit without its timing. Byte format: common/wire
// tape_file.h; docs/tape.md has the whole story. Pure: no file, clock or thread.
//
// A learner's events are one sequence an incarnation, numbered from 0 in the order in which its
// training thread did them; the outer optimizer's records lie between them in the order in which
// they were written, which means nothing: what depends on what is in the records themselves.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/ids.h"

namespace archipelago::diloco::tape {

// Sequences [first, first + count) of a leased block, in the order in which they were trained on.
struct SequenceRun {
  std::uint64_t block = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(const SequenceRun&, const SequenceRun&) = default;
};

// --- events of a learner

struct Start {  // first event of an incarnation
  std::string session;
  std::string datacenter;
  std::string layout_digest;   // hex SHA-256
  std::string dataset_digest;  // TokenFile::digest
  std::string kernels;         // what the bits of a step depend on: library version, instructions
  std::int32_t threads = 1;
  friend bool operator==(const Start&, const Start&) = default;
};
struct Seed {  // initialised the model; its bytes are version 0
  std::uint64_t init_seed = 0;
  friend bool operator==(const Seed&, const Seed&) = default;
};
struct Step {
  std::vector<SequenceRun> runs;
  GlobalStep schedule_step;  // drives the learning rate
  GlobalStep budget;
  double rate_scale = 1;  // below 1 during the ramp after fresh moments
  double loss = 0;        // as computed, for comparison alone
  bool skipped = false;   // loss or gradient not finite
  friend bool operator==(const Step&, const Step&) = default;
};
struct Snapshot {  // contribution to round t, taken at this place
  GlobalStep t;
  std::int32_t fragment = 0;
  std::int32_t attempt = 1;
  GlobalStep base;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};
struct Apply {  // overwrote the fragment with its published version
  std::int32_t fragment = 0;
  GlobalStep version;
  friend bool operator==(const Apply&, const Apply&) = default;
};
struct Donate {  // copied the inner optimizer state for relay `id`
  std::string id;
  friend bool operator==(const Donate&, const Donate&) = default;
};
struct Restore {  // took inner optimizer state
  std::string id;
  std::string donor;
  Incarnation incarnation;  // of the donor
  LocalStep local_step;     // of the donor, at the copy
  friend bool operator==(const Restore&, const Restore&) = default;
};
struct Fresh {  // starts with fresh moments
  friend bool operator==(const Fresh&, const Fresh&) = default;
};
struct Gap {  // events that were never written down: nothing after them can be replayed
  std::int64_t events = 0;
  friend bool operator==(const Gap&, const Gap&) = default;
};

using LearnerEvent = std::variant<Start, Seed, Step, Snapshot, Apply, Donate, Restore, Fresh, Gap>;

// Consecutive events of one incarnation; `from` is the number of the first.
struct Batch {
  std::string unit;
  Incarnation incarnation;
  std::int64_t from = 0;
  std::vector<LearnerEvent> events;
  [[nodiscard]] std::int64_t upto() const {
    return from + static_cast<std::int64_t>(events.size());
  }
  friend bool operator==(const Batch&, const Batch&) = default;
};

// --- records of the outer optimizer

struct Opened {  // each start of the outer optimizer, or of a writer of synthetic tapes
  std::int64_t epoch = 0;
  std::string spec;  // the resolved DecoupledTraining, JSON or YAML
  friend bool operator==(const Opened&, const Opened&) = default;
};
struct Member {
  std::string unit;
  Incarnation incarnation;
  std::int32_t attempt = 1;
  std::int64_t tokens = 0;  // counters inside the upload: the weight
  std::int64_t steps = 0;
  friend bool operator==(const Member&, const Member&) = default;
};
struct Rules {  // of the outer step, as they were at this round
  float learning_rate = 0.7F;
  float momentum = 0.9F;
  bool nesterov = true;
  bool radial = true;    // RDA for what is no embedding
  std::string downlink;  // codec's name
  friend bool operator==(const Rules&, const Rules&) = default;
};
// Written before the round commits, so that no commit is without it. Of several with the same t
// the last one counts: a round that was not committed when the process died was merged again.
struct Round {
  GlobalStep t;
  std::int32_t fragment = -1;  // -1: none due, nothing merged
  Rules rules;
  std::vector<Member> members;  // in order of unit name
  friend bool operator==(const Round&, const Round&) = default;
};
struct Published {  // after the commit: xxh3 of the published bytes of the fragment
  GlobalStep t;     // 0: the seed
  std::int32_t fragment = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const Published&, const Published&) = default;
};
struct Final {  // published := master, every fragment at this version
  GlobalStep version;
  friend bool operator==(const Final&, const Final&) = default;
};

using Record = std::variant<Batch, Opened, Round, Published, Final>;

// --- state of the two writers

// A learner's events until the outer optimizer has them. Bounded: beyond kMaxPending they are
// counted and a Gap says so, because a tape must never hold up training.
class Log {
 public:
  static constexpr std::size_t kMaxPending = 2048;

  void add(LearnerEvent event);
  // The oldest unacknowledged events, at most `max_events`; unit and incarnation are the caller's.
  [[nodiscard]] Batch pending(std::size_t max_events) const;
  void acknowledged(std::int64_t upto);  // numbers below are with the outer optimizer
  [[nodiscard]] std::size_t size() const { return events_.size(); }

 private:
  std::deque<LearnerEvent> events_;
  std::int64_t first_ = 0;  // number of events_.front()
  std::int64_t dropped_ = 0;
};

// Which events of which incarnation are on the tape.
class Cursors {
 public:
  // What of the batch is new, with a Gap where numbers are missing; empty events: nothing. Call
  // written() when it is on the tape.
  [[nodiscard]] Batch unseen(const Batch& batch) const;
  void written(const Batch& batch);
  [[nodiscard]] std::int64_t next(const std::string& unit, Incarnation incarnation) const;

 private:
  std::map<std::pair<std::string, Incarnation>, std::int64_t> next_;
};

// Compresses consecutive references to one block: what Step::runs holds.
void append_sequence(std::vector<SequenceRun>& runs, std::uint64_t block, std::uint32_t index);

}  // namespace archipelago::diloco::tape
