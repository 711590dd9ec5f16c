#pragma once
// Which elements make up which fragment: the fragmentation schemes of Decoupled DiLoCo, appendix C
// (algorithm.md §1.5).
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/diloco/layout.h"

namespace archipelago::diloco {

// A tensor's place in its fragment, or that of a part of it. Counted in elements: `offset` from the
// fragment's begin, `begin` from the tensor's.
struct FragmentTensor {
  std::size_t index = 0;  // in Layout::tensors()
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  std::int64_t begin = 0;  // 0 but with kSplit; a multiple of the tensor's row
  bool operator==(const FragmentTensor&) const = default;
};

struct Fragment {
  std::vector<FragmentTensor> tensors;  // in layout order; of a tensor at most one part
  std::int64_t elements = 0;
  bool operator==(const Fragment&) const = default;
};

// A layer's tensors are those whose names have a number between dots ("model.layers.3.mlp.up").
enum class FragmentScheme {
  kBalanced,  // tensors by size descending, ties by name; each into the smallest fragment so far,
              // ties to the lowest index: the largest is at most 4/3 of the optimum
  kLayer,     // what is no layer's in fragment 0, layer l (counted) in 1 + l mod (P - 1)
  kTensor,    // the same with the layers' tensors one by one
  kSplit,     // balanced, but tensors above N/P are cut between rows (their first dimension) and
           // fill what the others leave: the largest is N/P and a row, or what kBalanced makes of
           // the others
};
[[nodiscard]] std::string_view to_string(FragmentScheme scheme);  // the spec's names
[[nodiscard]] Result<FragmentScheme> parse_scheme(std::string_view name);

class Fragmentation {
 public:
  Fragmentation() = default;
  // A function of the layout alone: the same everywhere. kInvalid when a fragment would be empty;
  // the message says how many there may be. P = 1 is everything in one, whatever the scheme.
  [[nodiscard]] static Result<Fragmentation> create(const Layout& layout, std::int64_t fragments,
                                                    FragmentScheme scheme);
  [[nodiscard]] static Result<Fragmentation> balanced(const Layout& layout,
                                                      std::int64_t fragments) {
    return create(layout, fragments, FragmentScheme::kBalanced);
  }

  [[nodiscard]] const std::vector<Fragment>& fragments() const { return fragments_; }
  [[nodiscard]] const Fragment& operator[](FragmentId p) const {
    return fragments_[static_cast<std::size_t>(p.value)];
  }
  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(fragments_.size()); }
  [[nodiscard]] std::int64_t max_elements() const { return max_elements_; }
  bool operator==(const Fragmentation&) const = default;

 private:
  std::vector<Fragment> fragments_;
  std::int64_t max_elements_ = 0;
};

}  // namespace archipelago::diloco
