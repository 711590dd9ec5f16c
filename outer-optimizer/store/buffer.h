#pragma once
// Aligned memory that is not initialised: fragments are large, and zeroing them first would be a
// pass over them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
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
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  // size <= capacity(); the bytes stay.
  void set_size(std::size_t size);
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  [[nodiscard]] std::span<float> floats() {
    return {static_cast<float*>(static_cast<void*>(data_.get())), size_ / sizeof(float)};
  }
  [[nodiscard]] std::span<const float> floats() const {
    return {static_cast<const float*>(static_cast<const void*>(data_.get())),
            size_ / sizeof(float)};
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ =
      0;  // a little more than asked for, never touched unless the buffer is used again
};

// The one shared family: published bytes, immutable from the moment they are shared.
using SharedBuffer = std::shared_ptr<const Buffer>;

// Keeps the last released buffer for the next fragment of about that size: fresh memory costs a
// page fault and a zeroing pass. Buffers come back from whichever thread drops the last reference.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  [[nodiscard]] std::shared_ptr<Buffer> take(std::size_t bytes);

 private:
  void give(std::unique_ptr<Buffer> buffer);
  std::mutex mutex_;
  std::unique_ptr<Buffer> spare_;
};

}  // namespace archipelago::outer
