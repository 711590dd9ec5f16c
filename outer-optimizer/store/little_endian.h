#pragma once
// Fixed-width little-endian numbers in byte buffers, and the checksum of stored bytes. The store's
// formats are little-endian by definition and so are all machines it runs on (checked at compile
// time).
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <xxhash.h>

#include "common/base/check.h"

namespace archipelago::outer {

static_assert(std::endian::native == std::endian::little,
              "fp32 arrays are written as they lie in memory");

template <class T>
void put(std::span<std::byte> to, std::size_t at, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  ARCH_CHECK(at + sizeof(T) <= to.size());
  std::memcpy(to.data() + at, &value, sizeof(T));
}

template <class T>
[[nodiscard]] T get(std::span<const std::byte> from, std::size_t at) {
  static_assert(std::is_trivially_copyable_v<T>);
  ARCH_CHECK(at + sizeof(T) <= from.size());
  T value;
  std::memcpy(&value, from.data() + at, sizeof(T));
  return value;
}

[[nodiscard]] inline std::span<const std::byte> text_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Streaming 64-bit xxh3.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) {
    ARCH_CHECK(state_ != nullptr);
    XXH3_64bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(std::uint64_t number) { XXH3_64bits_update(state_.get(), &number, sizeof number); }
  [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

[[nodiscard]] inline std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace archipelago::outer
