// Blocks that broke other encoders (zeros, tiny, huge, non-finite), bytes from a hostile peer, very
// large tensors.
#include <array>
#include <sys/mman.h>

#include <catch2/catch.hpp>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "tests/codec/codec_fixtures.h"

namespace archipelago::codec {
namespace {
using namespace test;

std::vector<std::vector<float>> odd_blocks() {
  std::vector<std::vector<float>> blocks;
  const auto filled = [](float x) { return std::vector<float>(kBlock, x); };
  blocks.push_back(filled(0.0F));
  blocks.push_back(filled(-0.0F));
  for (const float c :
       {1e-6F, 1e-40F, -1e-40F, 0x1p-149F, 0x1p-126F, kTinyBlock, kMax, -kMax, 3.0F}) {
    blocks.push_back(filled(c));
    auto last = filled(0.0F);
    last.back() = c;
    blocks.push_back(last);
  }
  auto mixed = filled(0.0F);
  for (std::size_t i = 0; i < kBlock; ++i)
    mixed[i] = i % 3 == 0 ? kMax : i % 3 == 1 ? -kMax : 1e-40F;
  blocks.push_back(mixed);
  // Just below and above what a scale that underflows would make of them.
  blocks.push_back(filled(std::nextafter(kTinyBlock, 0.0F)));
  blocks.push_back(filled(180 * 0x1p-149F));
  return blocks;
}

TEST_CASE("W-01: odd blocks come back finite, zeros exactly zero, the rest within half a step") {
  for (const auto& in : odd_blocks()) {
    for (const Codec codec : kAllCodecs) {
      CAPTURE(name(codec), in.front(), in.back());
      const auto bytes = encoded(codec, in);
      REQUIRE_FALSE(bytes.empty());
      const auto out = decoded(codec, bytes, in.size());
      REQUIRE(out.size() == in.size());
      const bool is_int = codec == Codec::kInt8 || codec == Codec::kInt4;
      const double scale = is_int ? static_cast<double>(scale_at(bytes, 0)) : 0.0;
      for (std::size_t i = 0; i < in.size(); ++i) {
        REQUIRE(std::isfinite(out[i]));
        if (in[i] == 0.0F) REQUIRE(out[i] == 0.0F);
        if (!is_int) continue;
        const double bound = scale == 0.0 ? static_cast<double>(kTinyBlock)
                                          : scale * (0.5 + 4 * levels(codec) * 0x1p-24);
        REQUIRE(std::abs(static_cast<double>(in[i]) - static_cast<double>(out[i])) <= bound);
      }
    }
  }
}

#if defined(__SSE2__)
TEST_CASE("W-01: flush-to-zero changes no encoded byte and no decoded element") {
  for (const auto& in : odd_blocks()) {
    for (const Codec codec : kIntCodecs) {
      const auto bytes = encoded(codec, in);
      const auto out = decoded(codec, bytes, in.size());
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(saved | 0x8040U);  // FTZ and DAZ
      const auto flushed_bytes = encoded(codec, in);
      const auto flushed_out = decoded(codec, bytes, in.size());
      _mm_setcsr(saved);
      CAPTURE(name(codec), in.front(), in.back());
      REQUIRE(bytes == flushed_bytes);
      REQUIRE(same_bits(out, flushed_out));
    }
  }
}
#endif

TEST_CASE("W-02: one NaN or infinity anywhere refuses the tensor") {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{17}, std::size_t{256}, std::size_t{300}, std::size_t{1024}}) {
    for (const float bad : {kNan, -kNan, kInf, -kInf}) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        std::vector<float> in(n, 0.5F);
        in[at] = bad;
        for (const Codec codec : kAllCodecs) {
          std::vector<std::byte> out(encoded_size(codec, n));
          CAPTURE(name(codec), n, at, bad);
          const auto status = encode(codec, in, out);
          REQUIRE_FALSE(status);
          REQUIRE(status.error().kind == ErrorKind::kRefused);
        }
      }
    }
  }
}

// Bytes of `n` elements with one scale or value replaced.
void check_refused(Codec codec, std::vector<std::byte> bytes, std::size_t n) {
  std::vector<float> out(n);
  const auto status = decode(codec, bytes, out);
  REQUIRE_FALSE(status);
  CHECK(status.error().kind == ErrorKind::kRefused);
  const auto norm2 = validate_norm2(codec, bytes, n);
  REQUIRE_FALSE(norm2);
  CHECK(norm2.error().kind == ErrorKind::kRefused);
}

TEST_CASE("scales and values that no encoder writes are refused, in whole and in partial blocks") {
  for (const std::size_t n : {std::size_t{40}, std::size_t{600}}) {
    const std::vector<float> in(n, 1.0F);
    const float denormal = 0x1p-130F;
    for (const Codec codec : kIntCodecs) {
      const std::size_t last = (n - 1) / kBlock * encoded_size(codec, kBlock);
      const float too_large = codec == Codec::kInt8 ? 0x1.020408p+121F : 0x1.24924ap+125F;
      for (const float scale : {kNan, kInf, -kInf, -1.0F, -0.0F, kMax, too_large, denormal}) {
        for (const std::size_t offset : {std::size_t{0}, last}) {
          CAPTURE(name(codec), n, scale, offset);
          auto bytes = encoded(codec, in);
          std::memcpy(bytes.data() + offset, &scale, sizeof scale);
          check_refused(codec, bytes, n);
        }
      }
      for (const std::size_t offset : {std::size_t{4}, last + 4}) {
        auto bytes = encoded(codec, in);
        bytes[offset] =
            codec == Codec::kInt8 ? std::byte{0x80} : std::byte{0x87};  // -128; -8 beside 7
        CAPTURE(name(codec), n, offset);
        check_refused(codec, bytes, n);
      }
    }
    for (const float value : {kNan, kInf, -kInf}) {
      auto bytes = encoded(Codec::kFp32, in);
      std::memcpy(bytes.data() + 4 * (n - 1), &value, sizeof value);
      check_refused(Codec::kFp32, bytes, n);
    }
    for (const std::uint16_t value :
         {std::uint16_t{0x7f80}, std::uint16_t{0xff80}, std::uint16_t{0x7fc1}}) {
      auto bytes = encoded(Codec::kBf16, in);
      std::memcpy(bytes.data(), &value, sizeof value);
      check_refused(Codec::kBf16, bytes, n);
    }
  }
}

TEST_CASE("random bytes either decode to finite elements or are refused") {
  Rng rng(41);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t n = rng.below(700);
    const Codec codec = kAllCodecs[rng.below(kAllCodecs.size())];
    std::vector<std::byte> bytes(encoded_size(codec, n));
    for (auto& byte : bytes)
      byte = static_cast<std::byte>(rng.next() & (rng.chance(0.5) ? 0x3fU : 0x7fU));
    std::vector<float> out(n);
    const bool ok = decode(codec, bytes, out).has_value();
    accepted += ok ? 1 : 0;
    REQUIRE(validate_norm2(codec, bytes, n).has_value() == ok);
    for (const float x : out) {
      if (ok) REQUIRE(std::isfinite(x));
    }
  }
  CHECK(accepted > 10);
  CHECK(accepted < 2990);
}

TEST_CASE("wrong sizes are kInvalid and say what was expected") {
  std::vector<float> floats(300);
  for (const Codec codec : kAllCodecs) {
    for (const std::size_t delta : {std::size_t{0}, std::size_t{2}}) {
      std::vector<std::byte> bytes(encoded_size(codec, 300) - 1 + delta);
      CHECK(encode(codec, floats, bytes).error().kind == ErrorKind::kInvalid);
      CHECK(decode(codec, bytes, floats).error().kind == ErrorKind::kInvalid);
      const auto norm2 = validate_norm2(codec, bytes, 300);
      REQUIRE_FALSE(norm2);
      CHECK(norm2.error().kind == ErrorKind::kInvalid);
      CHECK(norm2.error().message.find(std::to_string(encoded_size(codec, 300))) !=
            std::string::npos);
    }
  }
}

TEST_CASE("an odd int4 block leaves zeros in its last half byte") {
  const auto bytes = encoded(Codec::kInt4, {7.0F, -7.0F, 1.0F});
  REQUIRE(bytes.size() == 6);
  CHECK(scale_at(bytes, 0) == 1.0F);
  CHECK(bytes[4] == std::byte{0x97});  // 7 low, -7 (0x9) high
  CHECK(bytes[5] == std::byte{0x01});
}

// A sparse map: only the pages that are touched exist.
class SparseBytes {
 public:
  explicit SparseBytes(std::size_t size)
      : size_(size),
        data_(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  SparseBytes(const SparseBytes&) = delete;
  SparseBytes& operator=(const SparseBytes&) = delete;
  ~SparseBytes() {
    if (valid()) munmap(data_, size_);
  }
  [[nodiscard]] bool valid() const { return data_ != MAP_FAILED; }
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data_), size_};
  }

 private:
  std::size_t size_;
  void* data_;
};

TEST_CASE("W-08: the last element of a tensor beyond 2^31 elements and 2^32 bytes is right") {
  struct Large {
    Codec codec;
    std::size_t total;
  };
  for (const auto& [codec, total] :
       {Large{Codec::kInt8, (1ULL << 31) + 17}, Large{Codec::kInt4, (1ULL << 33) + 17},
        Large{Codec::kFp32, (1ULL << 31) + 17}}) {
    CAPTURE(name(codec), total);
    const SparseBytes map(encoded_size(codec, total));
    REQUIRE(map.valid());
    const std::size_t first = total - 17;
    const std::vector<float> tail{1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4, -5, -6, -7, 0, 3, -7};
    const auto tail_bytes = encoded(codec, tail);
    std::copy(tail_bytes.begin(), tail_bytes.end(),
              map.bytes().end() - static_cast<std::ptrdiff_t>(tail_bytes.size()));
    std::vector<float> out(17);
    decode_range(codec, map.bytes(), total, first, out);
    CHECK(out == round_trip(codec, tail));
    CHECK(out.back() == -7.0F);
    decode_accumulate_range(codec, map.bytes(), total, first, 1.0F, out);
    CHECK(out.back() == -14.0F);
  }
}

}  // namespace
}  // namespace archipelago::codec
