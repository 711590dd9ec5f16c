// What every codec promises about ordinary tensors: sizes, errors, symmetry, ranges.
#include <algorithm>

#include <catch2/catch.hpp>

#include "common/codec/kernels.h"
#include "tests/codec/codec_fixtures.h"

namespace archipelago::codec {
namespace {
using namespace test;

TEST_CASE("codec names and bytes map both ways and anything else is refused by name") {
  for (const Codec codec : kAllCodecs) {
    REQUIRE(parse_codec(name(codec)) == codec);
    REQUIRE(codec_from_byte(static_cast<std::uint8_t>(codec)) == codec);
  }
  for (const char* other : {"f16", "f64", "i64", "bool", "BF16", "int4 ", ""}) {
    CAPTURE(other);
    const auto parsed = parse_codec(other);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().kind == ErrorKind::kInvalid);
    CHECK(parsed.error().message.find("fp32, bf16, int8, int4") != std::string::npos);
  }
  CHECK(codec_from_byte(4).error().kind == ErrorKind::kUnsupported);
}

TEST_CASE("encoded sizes are those of docs/wire-format.md, in 64 bits") {
  CHECK(encoded_size(Codec::kFp32, 1000) == 4000);
  CHECK(encoded_size(Codec::kBf16, 1000) == 2000);
  CHECK(encoded_size(Codec::kInt8, 256) == 260);
  CHECK(encoded_size(Codec::kInt8, 1000) == 3 * 260 + 4 + 232);
  CHECK(encoded_size(Codec::kInt4, 256) == 132);
  CHECK(encoded_size(Codec::kInt4, 257) == 132 + 4 + 1);
  for (const Codec codec : kAllCodecs) CHECK(encoded_size(codec, 0) == 0);
  const std::size_t huge = 3'000'000'001;
  CHECK(encoded_size(Codec::kFp32, huge) == 12'000'000'004);
  CHECK(encoded_size(Codec::kInt4, huge) == huge / 256 * 132 + 4 + 1);
}

TEST_CASE("an element comes back within half a step plus the derived rounding") {
  Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    const std::size_t n = 1 + rng.below(1500);
    const auto in = random_tensor(rng, n);
    CAPTURE(round, n);
    REQUIRE(same_bits(round_trip(Codec::kFp32, in), in));
    for (const Codec codec : kIntCodecs) {
      const auto bytes = encoded(codec, in);
      const auto out = decoded(codec, bytes, n);
      REQUIRE(out.size() == n);
      const std::size_t stride = encoded_size(codec, kBlock);
      for (std::size_t i = 0; i < n; ++i) {
        const double scale = static_cast<double>(scale_at(bytes, i / kBlock * stride));
        // r = fl(x * fl(1/s)) is within 2u of x/s (u = 2^-24, |x/s| <= L(1+3u)), the level within
        // 1/2 of r, and fl(level * s) within u of level * s: s * (1/2 + 3Lu + O(u^2)).
        const double bound = scale == 0.0 ? static_cast<double>(kTinyBlock)
                                          : scale * (0.5 + 4 * levels(codec) * 0x1p-24);
        const double error = std::abs(static_cast<double>(in[i]) - static_cast<double>(out[i]));
        if (error > bound)
          FAIL("element " << i << " of " << name(codec) << " " << in[i] << " -> " << out[i]);
      }
    }
  }
}

TEST_CASE("bf16 rounds to nearest, ties to even, and saturates instead of overflowing") {
  const std::vector<float> in{1.0F, 0x1.01p0F, 0x1.03p0F, 0x1.010002p0F,       -0x1.01p0F,
                              kMax, -kMax,     0x1p-149F, 0x1.fe8p-127F * 0.5F};
  const auto out = round_trip(Codec::kBf16, in);
  REQUIRE(out.size() == in.size());
  CHECK(out[0] == 1.0F);
  CHECK(out[1] == 1.0F);       // tie, down to even
  CHECK(out[2] == 0x1.04p0F);  // tie, up to even
  CHECK(out[3] == 0x1.02p0F);  // just above the tie
  CHECK(out[4] == -1.0F);
  CHECK(out[5] == 0x1.fep127F);  // largest bf16
  CHECK(out[6] == -0x1.fep127F);
  CHECK(out[7] == 0.0F);
  Rng rng(5);
  for (const float x : random_tensor(rng, 4000)) {
    const float y = round_trip(Codec::kBf16, {x})[0];
    const double ulp =
        std::max(0x1p-133, std::exp2(std::floor(std::log2(std::abs(static_cast<double>(x)))) - 7));
    if (x != 0.0F && std::abs(x) < 0x1.fep127F)
      REQUIRE(std::abs(static_cast<double>(x) - static_cast<double>(y)) <= ulp / 2);
  }
}

TEST_CASE("zero stays zero and negation is symmetric") {
  Rng rng(17);
  for (int round = 0; round < 40; ++round) {
    auto in = random_tensor(rng, 1 + rng.below(900));
    for (std::size_t i = 0; i < in.size(); i += 7) in[i] = rng.chance(0.5) ? 0.0F : -0.0F;
    auto negated = in;
    for (float& x : negated) x = -x;
    for (const Codec codec : kAllCodecs) {
      CAPTURE(round, name(codec));
      const auto out = round_trip(codec, in);
      const auto out_negated = round_trip(codec, negated);
      REQUIRE(out.size() == in.size());
      REQUIRE(out_negated.size() == in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (in[i] == 0.0F) REQUIRE(out[i] == 0.0F);
        REQUIRE(out[i] == -out_negated[i]);
      }
    }
  }
}

TEST_CASE(
    "every level survives a second encoding, so re-encoding a decoded tensor changes nothing") {
  Rng rng(23);
  for (const Codec codec : kIntCodecs) {
    const auto once = round_trip(codec, random_tensor(rng, 3000));
    const auto twice = round_trip(codec, once);
    REQUIRE(once.size() == 3000);
    for (std::size_t i = 0; i < once.size(); ++i) {
      // The second scale is fl(fl(L*s)/L): within 2u of s.
      REQUIRE(static_cast<double>(twice[i]) ==
              Approx(static_cast<double>(once[i])).epsilon(4 * 0x1p-24).margin(0));
    }
  }
}

TEST_CASE(
    "a range decodes to the same elements as the whole, and blocks restart at their own scale") {
  Rng rng(29);
  const std::size_t total = 3 * kChunk + 700;
  const auto in = random_tensor(rng, total);
  const auto base = random_tensor(rng, total);
  for (const Codec codec : kAllCodecs) {
    const auto bytes = encoded(codec, in);
    const auto whole = decoded(codec, bytes, total);
    REQUIRE(whole.size() == total);
    for (const std::size_t step : {kBlock, 3 * kBlock, kChunk}) {
      std::vector<float> pieces(total);
      auto sums = base;
      for (std::size_t first = 0; first < total; first += step) {
        const std::size_t count = std::min(step, total - first);
        decode_range(codec, bytes, total, first, std::span(pieces).subspan(first, count));
        decode_accumulate_range(codec, bytes, total, first, 0.3F,
                                std::span(sums).subspan(first, count));
      }
      CAPTURE(name(codec), step);
      REQUIRE(same_bits(pieces, whole));
      auto expected = base;
      for (std::size_t i = 0; i < total; ++i) {
        const float product = 0.3F * whole[i];
        expected[i] += product;
      }
      REQUIRE(same_bits(sums, expected));
    }
  }
}

TEST_CASE("validate_norm2 is the sum of squares of the decoded tensor, bit for bit") {
  Rng rng(31);
  for (const std::size_t n : lengths()) {
    const auto in = random_tensor(rng, n);
    for (const Codec codec : kAllCodecs) {
      CAPTURE(n, name(codec));
      const auto bytes = encoded(codec, in);
      const auto norm2 = validate_norm2(codec, bytes, n);
      REQUIRE(norm2);
      REQUIRE(*norm2 == sumsq(decoded(codec, bytes, n)));
    }
  }
}

TEST_CASE("error feedback on the downlink carries what a quantum cannot (protocol.md §2.9)") {
  for (const Codec codec : kIntCodecs) {
    std::vector<float> master(kBlock, 0.0F);
    std::vector<float> published(kBlock, 0.0F);
    std::vector<float> difference(kBlock);
    const auto quantum = static_cast<float>(1.0 / levels(codec));
    const int rounds = 200;
    for (int round = 0; round < rounds; ++round) {
      master[0] += round % 2 == 0 ? 1.0F : -1.0F;  // the large one sets the scale each round
      master[1] += 0.2F * quantum;
      subtract(master, published, difference);
      const auto bytes = encoded(codec, difference);
      REQUIRE_FALSE(bytes.empty());
      decode_accumulate_range(codec, bytes, kBlock, 0, 1.0F, published);
    }
    CAPTURE(name(codec));
    CHECK(std::abs(published[1] - master[1]) <= 0.51F * quantum);
    CHECK(published[1] >
          38.0F * quantum);  // 40 quanta in 200 rounds; without feedback it would be 0
  }
}

}  // namespace
}  // namespace archipelago::codec
