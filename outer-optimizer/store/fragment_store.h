#pragma once
// The tensors of the fragment owner: master, momentum and published copy of every fragment, and the
// frames that carry published versions to learners (protocol.md §2.7, §2.9). No files here: the
// journal is handed the merged gradient between prepare() and apply().
//
// Memory: 3 x 4N for the arrays, at most 4N of delta frames, and two buffers of the largest
// fragment (the merged gradient and the next published copy). A keyframe shares the published
// buffer; a reader that still streams an older version keeps that one alive.
//
// Threads: one owner thread calls everything that changes; frame(), version() and keyframe() may be
// called from any.
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/codec/kernels.h"
#include "common/diloco/fragmentation.h"
#include "common/diloco/layout.h"
#include "outer-optimizer/store/buffer.h"
#include "outer-optimizer/store/payload.h"
#include "outer-optimizer/store/worker_pool.h"

namespace archipelago::outer {

inline constexpr GlobalStep kNoBase{-1};  // a keyframe needs none

// Which classes of tensors are merged by radial-directional averaging; the others by their mean.
struct RadialClasses {
  bool other = true;
  bool embedding = false;
  RadialClasses(bool others = true, bool embeddings = false)  // NOLINT: one bool says it mostly
      : other(others), embedding(embeddings) {}
  [[nodiscard]] bool operator[](diloco::MergeClass merge_class) const {
    return merge_class == diloco::MergeClass::kEmbedding ? embedding : other;
  }
};

struct OuterRules {
  codec::OuterStep step{0.7F, 0.9F, true};  // learning rate, momentum, nesterov
  RadialClasses radial;
  codec::Codec downlink = codec::Codec::kInt4;
};

// One member's complete, validated upload; borrowed for the merge.
struct MergeInput {
  std::span<const std::byte> payload;
  codec::Codec codec = codec::Codec::kInt4;
  std::int64_t tokens = 0;  // counters of the fragment inside the upload
  std::int64_t steps = 0;
  std::span<const double> norm2;  // PayloadValidator::norm2
};

// What one published version looks like on its way to a learner.
struct Frame {
  FragmentId fragment;
  GlobalStep version;
  GlobalStep base = kNoBase;  // kNoBase: keyframe, fp32 (from frame(): bf16 where published is)
  codec::Codec codec = codec::Codec::kFp32;
  SharedBuffer payload;                     // layout: payload.h
  std::shared_ptr<const std::string> meta;  // as given to apply(): members and excluded
  [[nodiscard]] bool keyframe() const { return base == kNoBase; }
};

// Gives the merged gradient "exactly as applied", piece by piece in element order; called by the
// owner thread.
using GradientSource = std::function<void(std::int64_t first, std::span<float> out)>;

class FragmentStore {
 public:
  static constexpr std::size_t kMaxDeltasPerFragment = 4;

  // Allocates; kNoSpace when the memory is not there. threads >= 1. published_bf16: every published
  // copy holds only what bf16 can, so that a keyframe in bf16 is exact; what rounding leaves stays
  // between master and published copy and goes with a later delta.
  [[nodiscard]] static Result<std::unique_ptr<FragmentStore>> create(
      const diloco::Layout& layout, const diloco::Fragmentation& fragmentation, int threads,
      bool published_bf16 = false);

  [[nodiscard]] const diloco::Fragmentation& fragmentation() const { return fragmentation_; }

  // Sets a fragment as the seed or a recovery has it. Momentum may be empty (zeros), published may
  // be empty (= master). kRefused: non-finite.
  [[nodiscard]] Status set(FragmentId p, GlobalStep version, std::span<const float> master,
                           std::span<const float> momentum, std::span<const float> published);
  // In place, for reading a checkpoint without a copy: the three arrays of p. After filling them
  // call adopt(). Both, and set(), only before anything of p has been published.
  struct Arrays {
    std::span<float> master, momentum, published;
  };
  [[nodiscard]] Arrays arrays(FragmentId p);
  void adopt(FragmentId p, GlobalStep version);

  // Pass 1: the merged gradient of fragment p into the gradient buffer. Members in the given order
  // (unit names). Nothing visible changes, so it may be thrown away. False: nobody's contribution
  // counts, there is nothing to apply. kRefused: a norm beyond kMaxTensorNorm; kInvalid: sizes do
  // not fit the fragment.
  [[nodiscard]] Result<bool> prepare(FragmentId p, std::span<const MergeInput> members,
                                     RadialClasses radial);
  // The prepared gradient, scaled: what the journal stores.
  void gradient(std::int64_t first, std::span<float> out) const;
  // For replay: fills the gradient buffer from the journal instead of prepare(). Size: elements of
  // p.
  [[nodiscard]] std::span<float> load_gradient(FragmentId p);

  // Pass 2: outer step on master and momentum, delta encoded against the published copy, published
  // += decoded, frame kept, version set. Uses the prepared gradient up. Without `update` the outer
  // step is left out (a round in which nobody counted). Cannot fail. Returns the payload bytes of
  // the new frame.
  std::uint64_t apply(FragmentId p, GlobalStep version, const OuterRules& rules, bool update,
                      std::string meta);
  // Final publication: published := master, a keyframe of `version`, for every fragment; history is
  // dropped.
  void publish_masters(GlobalStep version);

  // The next frame for a learner that holds version `have` of p (negative: nothing): the delta
  // based on it while that is kept, else a keyframe of the newest version; nullopt when there is
  // nothing newer or nothing published.
  [[nodiscard]] std::optional<Frame> frame(FragmentId p, GlobalStep have) const;
  [[nodiscard]] std::optional<Frame> keyframe(FragmentId p) const;  // fp32, shared
  [[nodiscard]] GlobalStep version(FragmentId p) const;             // negative: none yet
  [[nodiscard]] std::vector<GlobalStep> versions() const;
  [[nodiscard]] std::uint64_t history_bytes() const;

  // Owner thread (or a checkpoint writer that holds the owner off): the arrays as they are.
  [[nodiscard]] std::span<const float> master(FragmentId p) const;
  [[nodiscard]] std::span<const float> momentum(FragmentId p) const;
  [[nodiscard]] SharedBuffer published(FragmentId p) const;

 private:
  struct Part {
    Buffer master, momentum;
    std::shared_ptr<Buffer> published;
    GlobalStep version{-1};
    std::deque<Frame> deltas;  // oldest first, at most kMaxDeltasPerFragment
    std::shared_ptr<const std::string> meta;
  };
  struct TensorPlan;

  FragmentStore(const diloco::Layout& layout, const diloco::Fragmentation& fragmentation,
                int threads, bool published_bf16);
  [[nodiscard]] Frame as_bf16(Frame keyframe) const;
  [[nodiscard]] Part& part(FragmentId p) { return parts_[static_cast<std::size_t>(p.value)]; }
  [[nodiscard]] const Part& part(FragmentId p) const {
    return parts_[static_cast<std::size_t>(p.value)];
  }
  void reserve_gradient(FragmentId p);  // gradient_: of p's size, content unspecified
  void merge_tensor(const diloco::FragmentTensor& tensor, const TensorPlan& plan,
                    std::span<const MergeInput> members);
  std::uint64_t publish(FragmentId p, GlobalStep version, codec::Codec codec,
                        std::shared_ptr<Buffer> encoded, std::shared_ptr<Buffer> next,
                        std::string meta);
  void trim_history();
  void drop_history(Part& of);  // with mutex_ held, like trim_history

  std::vector<diloco::MergeClass> classes_;  // by tensor of the layout
  diloco::Fragmentation fragmentation_;
  bool published_bf16_ = false;
  std::uint64_t history_limit_ = 0;
  WorkerPool pool_;
  std::shared_ptr<BufferPool> buffers_ = std::make_shared<BufferPool>();  // published copies
  std::shared_ptr<Buffer> gradient_;  // apply() makes it the published copy
  FragmentId gradient_of_{-1};
  std::vector<float> scale_;  // of each tensor of the prepared fragment

  mutable std::mutex mutex_;  // versions, published pointers, deltas: what frame() reads
  std::vector<Part> parts_;
  std::uint64_t history_bytes_ = 0;
};

}  // namespace archipelago::outer
