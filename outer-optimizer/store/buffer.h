#pragma once
// Aligned memory that is not initialised: fragments are large, and zeroing them first would be a pass over them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace archipelago::outer {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  [[nodiscard]] static Buffer of_floats(std::int64_t elements) {
    return Buffer(static_cast<std::size_t>(elements) * sizeof(float));
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  [[nodiscard]] std::span<float> floats() {
    return {static_cast<float*>(static_cast<void*>(data_.get())), size_ / sizeof(float)};
  }
  [[nodiscard]] std::span<const float> floats() const {
    return {static_cast<const float*>(static_cast<const void*>(data_.get())), size_ / sizeof(float)};
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// The one shared family: published bytes, immutable from the moment they are shared.
using SharedBuffer = std::shared_ptr<const Buffer>;

}  // namespace archipelago::outer
