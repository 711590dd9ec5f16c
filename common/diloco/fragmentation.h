#pragma once
// Which tensors make up which fragment: balanced fragmentation of Decoupled DiLoCo, appendix C
// (algorithm.md §1.5).
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/diloco/layout.h"

namespace archipelago::diloco {

// A tensor's place in its fragment. Offsets are elements from the fragment's begin.
struct FragmentTensor {
  std::size_t index = 0;  // in Layout::tensors()
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  bool operator==(const FragmentTensor&) const = default;
};

struct Fragment {
  std::vector<FragmentTensor> tensors;  // in layout order
  std::int64_t elements = 0;
  bool operator==(const Fragment&) const = default;
};

class Fragmentation {
 public:
  Fragmentation() = default;
  // Tensors by size descending, ties by name; each goes to the smallest fragment so far, ties to
  // the lowest index. The largest fragment is at most 4/3 of the optimum. kInvalid when there are
  // fewer tensors than fragments.
  [[nodiscard]] static Result<Fragmentation> balanced(const Layout& layout, std::int64_t fragments);

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
