#pragma once
// Little-endian integers to and from bytes, and a reader that can't run past its end.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace archipelago::wire {

template <class T>
void put(std::vector<std::byte>& out, T value) {
  static_assert(std::is_integral_v<T>);
  const auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<std::byte>(bits >> (8 * i) & 0xffU));
}

inline void put_bytes(std::vector<std::byte>& out, std::span<const std::uint8_t> bytes) {
  const auto raw = std::as_bytes(bytes);
  out.insert(out.end(), raw.begin(), raw.end());
}

inline void put_text(std::vector<std::byte>& out, std::string_view text) {
  const auto raw = std::as_bytes(std::span(text.data(), text.size()));
  out.insert(out.end(), raw.begin(), raw.end());
}

// Reads in order; past the end every read gives zeros and ok() turns false for good.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

  [[nodiscard]] std::span<const std::byte> take(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  template <class T>
  [[nodiscard]] T get() {
    static_assert(std::is_integral_v<T>);
    std::uint64_t bits = 0;
    std::size_t shift = 0;
    for (const std::byte byte : take(sizeof(T))) {
      bits |= std::to_integer<std::uint64_t>(byte) << shift;
      shift += 8;
    }
    return static_cast<T>(bits);
  }

  template <class Array>
  [[nodiscard]] Array get_array() {
    Array out{};
    std::size_t i = 0;
    for (const std::byte byte : take(out.size())) out[i++] = std::to_integer<std::uint8_t>(byte);
    return out;
  }

  [[nodiscard]] std::string get_text(std::size_t size) {
    std::string out;
    for (const std::byte byte : take(size)) out.push_back(std::to_integer<char>(byte));
    return out;
  }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace archipelago::wire
