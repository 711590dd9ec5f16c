#pragma once
// The model as the outer optimizer knows it: names, shapes, merge classes (protocol.md §5).
// Elements are fp32; every count and offset is 64-bit (cases W-05, W-08).
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace archipelago::diloco {

inline constexpr std::size_t kMaxTensors = 4096;
inline constexpr std::size_t kMaxTensorName = 255;  // bytes
inline constexpr std::size_t kMaxRank = 8;
inline constexpr std::int64_t kMaxElements = 1LL << 48;

// How the outer gradients of a tensor are merged: weighted mean for embeddings, radial-directional
// averaging for the others (Decoupled DiLoCo, D.2).
enum class MergeClass : std::uint8_t { kOther = 0, kEmbedding = 1 };
[[nodiscard]] std::string_view to_string(MergeClass merge_class);  // "other", "embedding"

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;  // rank 0 is a scalar
  MergeClass merge_class = MergeClass::kOther;
  std::int64_t elements = 0;  // set by Layout::create
  std::int64_t offset = 0;    // in elements, in layout order; set by Layout::create
  bool operator==(const Tensor&) const = default;
};

// SHA-256 of the text form.
struct LayoutDigest {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const LayoutDigest&) const = default;
  [[nodiscard]] std::string hex() const;
};
[[nodiscard]] Result<LayoutDigest> parse_digest(std::string_view hex);

class Layout {
 public:
  Layout() = default;
  // Checks the limits above, that names are unique, printable (no control characters) and
  // dimensions positive. The error names the tensor.
  [[nodiscard]] static Result<Layout> create(std::vector<Tensor> tensors);

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] const LayoutDigest& digest() const { return digest_; }
  [[nodiscard]] bool empty() const { return tensors_.empty(); }

  // One line a tensor after a header line: "<class> <rank> <dim>... <name>". Canonical: equal
  // layouts, equal text.
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] static Result<Layout> parse_text(std::string_view text);

  bool operator==(const Layout& other) const { return tensors_ == other.tensors_; }

 private:
  std::vector<Tensor> tensors_;
  std::int64_t elements_ = 0;
  LayoutDigest digest_;
};

// "tensor 3: expected other lm_head.weight [256, 64], got ..."; empty when the layouts are the
// same.
[[nodiscard]] std::string first_difference(const Layout& expected, const Layout& got);

}  // namespace archipelago::diloco
