// Every vector target of this CPU against the scalar reference, bit for bit.
#include <algorithm>

#include <catch2/catch.hpp>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include "common/codec/traits.h"
#include "tests/codec/codec_fixtures.h"

namespace archipelago::codec {
namespace {
using namespace test;

class OneTarget {
 public:
  explicit OneTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  OneTarget(const OneTarget&) = delete;
  OneTarget& operator=(const OneTarget&) = delete;
  ~OneTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// The targets of this CPU that the library was compiled for, and the scalar fallback.
std::vector<std::int64_t> targets() {
  hwy::SetSupportedTargetsForTest(0);
  auto all = hwy::SupportedAndGeneratedTargets();
  if (std::find(all.begin(), all.end(), HWY_SCALAR) == all.end()) all.push_back(HWY_SCALAR);
  return all;
}

void compare_codec(const CodecTraits& entry, const std::vector<float>& in,
                   const std::vector<float>& base) {
  const std::size_t n = in.size();
  const std::size_t size = encoded_size(entry.codec, n);
  // One spare byte in front: encoded tensors start at any address inside a frame.
  std::vector<std::byte> expected(size + 1, std::byte{0xee});
  auto actual = expected;
  REQUIRE(entry.reference.encode(in.data(), n, expected.data() + 1));
  REQUIRE(entry.fast.encode(in.data(), n, actual.data() + 1));
  REQUIRE(actual == expected);
  std::vector<float> expected_out(n);
  std::vector<float> actual_out(n);
  REQUIRE(entry.reference.decode(expected.data() + 1, n, expected_out.data()));
  REQUIRE(entry.fast.decode(expected.data() + 1, n, actual_out.data()));
  REQUIRE(same_bits(actual_out, expected_out));
  auto expected_sum = base;
  auto actual_sum = base;
  entry.reference.accumulate(expected.data() + 1, n, 0.37F, expected_sum.data());
  entry.fast.accumulate(expected.data() + 1, n, 0.37F, actual_sum.data());
  REQUIRE(same_bits(actual_sum, expected_sum));
}

TEST_CASE("every target encodes, decodes and accumulates like the reference") {
  const auto all = targets();
  REQUIRE_FALSE(all.empty());
  for (const auto target : all) {
    const OneTarget only(target);
    CAPTURE(hwy::TargetName(target));
    Rng rng(101);
    for (int round = 0; round < 4; ++round) {
      for (const std::size_t n : lengths()) {
        CAPTURE(round, n);
        const auto in = random_tensor(rng, n);
        const auto base = random_tensor(rng, n);
        for (const Codec codec : kAllCodecs) compare_codec(traits(codec), in, base);
      }
    }
  }
}

TEST_CASE("every target decodes all byte patterns like the reference and judges them alike") {
  for (const auto target : targets()) {
    const OneTarget only(target);
    CAPTURE(hwy::TargetName(target));
    Rng rng(103);
    for (int round = 0; round < 400; ++round) {
      const std::size_t n = rng.below(1200);
      const CodecTraits& entry = traits(kAllCodecs[rng.below(kAllCodecs.size())]);
      std::vector<std::byte> bytes(encoded_size(entry.codec, n));
      for (auto& byte : bytes)
        byte = static_cast<std::byte>(rng.next() & (round % 2 == 0 ? 0x7fU : 0xffU));
      std::vector<float> expected(n);
      std::vector<float> actual(n);
      const bool valid = entry.reference.decode(bytes.data(), n, expected.data());
      REQUIRE(entry.fast.decode(bytes.data(), n, actual.data()) == valid);
      if (valid) REQUIRE(same_bits(actual, expected));
    }
  }
}

TEST_CASE("every target refuses non-finite input wherever it is") {
  for (const auto target : targets()) {
    const OneTarget only(target);
    CAPTURE(hwy::TargetName(target));
    for (const Codec codec : kAllCodecs) {
      std::vector<float> in(600, -1.0F);
      std::vector<std::byte> out(encoded_size(codec, in.size()));
      for (std::size_t at = 0; at < in.size(); ++at) {
        const float saved = in[at];
        in[at] = at % 2 == 0 ? kInf : kNan;
        if (traits(codec).fast.encode(in.data(), in.size(), out.data()))
          FAIL(name(codec) << " took element " << at);
        in[at] = saved;
      }
      REQUIRE(traits(codec).fast.encode(in.data(), in.size(), out.data()));
    }
  }
}

TEST_CASE("every target runs the merge kernels like the reference") {
  const KernelFunctions& fast = fast_kernels();
  const KernelFunctions& reference = reference_kernels();
  for (const auto target : targets()) {
    const OneTarget only(target);
    CAPTURE(hwy::TargetName(target));
    Rng rng(107);
    for (const std::size_t n : lengths()) {
      CAPTURE(n);
      const auto x = random_tensor(rng, n);
      const auto y = random_tensor(rng, n);
      const auto z = random_tensor(rng, n);
      const std::size_t chunk = std::min(n, kChunk);
      REQUIRE(fast.sumsq_chunk(x.data(), chunk) == reference.sumsq_chunk(x.data(), chunk));
      auto a = x;
      auto b = x;
      fast.scale(a.data(), n, 0.7F);
      reference.scale(b.data(), n, 0.7F);
      REQUIRE(same_bits(a, b));
      fast.axpy(-0.3F, y.data(), a.data(), n);
      reference.axpy(-0.3F, y.data(), b.data(), n);
      REQUIRE(same_bits(a, b));
      fast.subtract(a.data(), y.data(), a.data(), n);
      reference.subtract(b.data(), y.data(), b.data(), n);
      REQUIRE(same_bits(a, b));
      for (const bool nesterov : {true, false}) {
        auto momentum_a = y;
        auto momentum_b = y;
        fast.outer_step(0.4F, 0.9F, nesterov, z.data(), momentum_a.data(), a.data(), n);
        reference.outer_step(0.4F, 0.9F, nesterov, z.data(), momentum_b.data(), b.data(), n);
        REQUIRE(same_bits(momentum_a, momentum_b));
        // -0.0 and 0.0 compare equal but are different bytes: same_bits is the strict one.
        REQUIRE(same_bits(a, b));
      }
    }
  }
}

}  // namespace
}  // namespace archipelago::codec
