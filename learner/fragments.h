#pragma once
// A model cut into fragments, and the published bytes that this learner holds of each (its bases,
// protocol.md §1).
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/diloco/fragmentation.h"
#include "common/diloco/layout.h"
#include "learner/tensor_shape.h"

namespace archipelago::learner {

[[nodiscard]] Result<diloco::Layout> layout_of(const std::vector<TensorShape>& tensors);

// One fragment as the trainer and the codecs want it: values of a fragment are its tensors' (or
// their parts') one after another.
struct FragmentView {
  std::vector<TensorRange> tensors;        // places in the whole flat buffer
  std::vector<std::int64_t> elements;      // of each
  std::vector<std::int64_t> flat_offsets;  // of each
  std::int64_t total = 0;
};

class FragmentMap {
 public:
  [[nodiscard]] static Result<FragmentMap> create(
      const diloco::Layout& layout, std::int32_t fragments,
      diloco::FragmentScheme scheme = diloco::FragmentScheme::kBalanced);
  [[nodiscard]] const FragmentView& operator[](std::int32_t p) const {
    return views_.at(static_cast<std::size_t>(p));
  }
  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(views_.size()); }
  [[nodiscard]] std::int64_t largest() const { return largest_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }

 private:
  std::vector<FragmentView> views_;
  std::int64_t largest_ = 0;
  std::int64_t elements_ = 0;
};

[[nodiscard]] std::size_t payload_size(const FragmentView& view, codec::Codec codec);
// Blocks of the codec restart at each tensor. kRefused: non-finite.
[[nodiscard]] Status encode_fragment(const FragmentView& view, codec::Codec codec,
                                     std::span<const float> values, std::vector<std::byte>* out);
// out = decoded (keyframe), or += decoded (delta): the very additions that the outer optimizer
// made, so all learners hold its bits. On an error `out` is unspecified.
[[nodiscard]] Status decode_fragment(const FragmentView& view, codec::Codec codec,
                                     std::span<const std::byte> payload, bool add,
                                     std::span<float> out);

using Base = std::shared_ptr<const std::vector<float>>;

// Decoded versions of every fragment, from the applied one on. Buffers are immutable once in here.
// Thread-safe. Bounded by the outer optimizer's history: at most kMaxVersions of a fragment.
class BaseBank {
 public:
  static constexpr std::size_t kMaxVersions = 8;
  explicit BaseBank(std::int32_t fragments) : held_(static_cast<std::size_t>(fragments)) {}

  // False: too many versions wait to be applied (the training thread is away); fetch later.
  [[nodiscard]] bool put(std::int32_t p, GlobalStep version, Base values);
  [[nodiscard]] Base get(std::int32_t p, GlobalStep version) const;  // null: not held
  // `version` was applied: older ones are dropped. Returns it.
  [[nodiscard]] Base apply(std::int32_t p, GlobalStep version);
  // All of fragment p but the applied bytes: they are of a lineage that ended.
  void forget(std::int32_t p);
  [[nodiscard]] Base applied(std::int32_t p) const;  // null: none yet

 private:
  struct Held {
    std::deque<std::pair<GlobalStep, Base>> versions;
    Base applied;
  };
  mutable std::mutex mutex_;
  std::vector<Held> held_;
};

}  // namespace archipelago::learner
