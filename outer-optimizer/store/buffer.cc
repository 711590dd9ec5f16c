#include "outer-optimizer/store/buffer.h"

#include <cstring>
#include <new>
#include <sys/mman.h>
#include <utility>

#include "common/base/check.h"

namespace archipelago::outer {

Buffer::Buffer(std::size_t bytes) : size_(bytes), capacity_(bytes + bytes / 16) {
  constexpr std::size_t kHugePage = 2U << 20;
  const bool large = bytes >= 2 * kHugePage;
  void* memory = nullptr;
  const std::size_t alignment = large ? kHugePage : 64;
  if (::posix_memalign(&memory, alignment, capacity_ == 0 ? 1 : capacity_) != 0)
    throw std::bad_alloc();
  // Fewer page faults on the merge's path; refused by some kernels, which costs nothing.
  if (large) static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
  data_.reset(static_cast<std::byte*>(memory));
}

void Buffer::set_size(std::size_t size) {
  ARCH_CHECK(size <= capacity_, << size << " of " << capacity_);
  size_ = size;
}

std::shared_ptr<Buffer> BufferPool::take(std::size_t bytes) {
  std::unique_ptr<Buffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    buffer = std::move(spare_);
  }
  if (buffer != nullptr && buffer->capacity() >= bytes && buffer->capacity() <= bytes + bytes / 8)
    buffer->set_size(bytes);
  else
    buffer = std::make_unique<Buffer>(bytes);
  return {buffer.release(), [pool = shared_from_this()](Buffer* dropped) {
            pool->give(std::unique_ptr<Buffer>(dropped));
          }};
}

void BufferPool::give(std::unique_ptr<Buffer> buffer) {
  const std::lock_guard lock(mutex_);
  std::swap(spare_, buffer);
}

}  // namespace archipelago::outer
