// Frames that are wrong: each with its own kind of error, before anything is allocated for what
// they claim.
#include <limits>

#include <catch2/catch.hpp>

#include "common/base/rng.h"
#include "tests/wire/frame_fixtures.h"

namespace archipelago::wire {
namespace {
using namespace test;

struct Patch {
  const char* what;
  std::size_t offset;
  std::uint64_t value;
  std::size_t width;
  ErrorKind expected;
};

std::vector<std::byte> apply(const std::vector<std::byte>& header, const Patch& patch) {
  switch (patch.width) {
    case 1:
      return patched(header, patch.offset, static_cast<std::uint8_t>(patch.value));
    case 2:
      return patched(header, patch.offset, static_cast<std::uint16_t>(patch.value));
    case 4:
      return patched(header, patch.offset, static_cast<std::uint32_t>(patch.value));
    default:
      return patched(header, patch.offset, patch.value);
  }
}

constexpr std::uint64_t kMinusOne = ~std::uint64_t{0};

TEST_CASE(
    "W-05, W-06: each wrong field of a header with a right checksum has its own kind of error") {
  const auto good = *serialize_header(upload_header());
  REQUIRE(parse_header(good));
  const auto patch = GENERATE(values<Patch>({
      {"magic", 0, 'B', 1, ErrorKind::kInvalid},
      {"kind 0", 6, 0, 1, ErrorKind::kUnsupported},
      {"kind 6", 6, 6, 1, ErrorKind::kUnsupported},
      {"spare byte", 7, 1, 1, ErrorKind::kUnsupported},
      {"header of 4 GiB", 8, 0xffffffffU, 4, ErrorKind::kTooLarge},
      {"header of 0", 8, 0, 4, ErrorKind::kCorrupt},
      {"header shorter than its bytes", 8, 200, 4, ErrorKind::kCorrupt},
      {"flags", 12, 0x80000000U, 4, ErrorKind::kUnsupported},
      {"incarnation 0", 80, 0, 8, ErrorKind::kInvalid},
      {"incarnation < 0", 80, kMinusOne, 8, ErrorKind::kInvalid},
      {"t < 0", 88, kMinusOne, 8, ErrorKind::kInvalid},
      {"base < -1", 96, kMinusOne - 1, 8, ErrorKind::kInvalid},
      {"upload without base", 96, kMinusOne, 8, ErrorKind::kInvalid},
      {"base = t", 96, 1234567, 8, ErrorKind::kInvalid},
      {"steps < 0", 104, kMinusOne, 8, ErrorKind::kInvalid},
      {"tokens < 0", 112, std::uint64_t{1} << 63, 8, ErrorKind::kInvalid},
      {"local step < 0", 120, kMinusOne, 8, ErrorKind::kInvalid},
      {"payload 2^64-1", 128, kMinusOne, 8, ErrorKind::kTooLarge},
      {"payload just too large", 128, kMaxFramePayload + 1, 8, ErrorKind::kTooLarge},
      {"fragment -1", 136, 0xffffffffU, 4, ErrorKind::kInvalid},
      {"fragment 2^31-1", 136, 0x7fffffffU, 4, ErrorKind::kInvalid},
      {"attempt 0", 140, 0, 4, ErrorKind::kInvalid},
      {"attempt < 0", 140, 0x80000000U, 4, ErrorKind::kInvalid},
      {"unknown codec (F8_X)", 144, 4, 1, ErrorKind::kUnsupported},
      {"codec 255", 144, 255, 1, ErrorKind::kUnsupported},
      {"unit name of 64", 145, 64, 1, ErrorKind::kTooLarge},
      {"unit name empty", 145, 0, 1, ErrorKind::kCorrupt},
      {"unit name of 63, not there", 145, 63, 1, ErrorKind::kCorrupt},
      {"consumed 65535", 148, 65535, 2, ErrorKind::kTooLarge},
      {"consumed 3 of 2", 148, 3, 2, ErrorKind::kCorrupt},
      {"consumed 1 of 2", 148, 1, 2, ErrorKind::kCorrupt},
      {"members 65535", 150, 65535, 2, ErrorKind::kTooLarge},
      {"members 512, not there", 150, 512, 2, ErrorKind::kCorrupt},
      {"excluded 513", 152, 513, 2, ErrorKind::kTooLarge},
      {"spare", 154, 1, 2, ErrorKind::kUnsupported},
      {"spare", 156, 1, 4, ErrorKind::kUnsupported},
      {"unit name with a NUL", 160, 0, 1, ErrorKind::kInvalid},
      {"unit name with a slash", 161, '/', 1, ErrorKind::kInvalid},
      {"range backwards (begin > end)", 176, 0xffffffffU, 4, ErrorKind::kInvalid},
  }));
  CAPTURE(patch.what);
  const auto parsed = parse_header(apply(good, patch));
  REQUIRE_FALSE(parsed);
  CHECK(parsed.error().kind == patch.expected);
  CHECK_FALSE(parsed.error().message.empty());
}

TEST_CASE("D-34: another version or block size is unsupported, in words that name both") {
  const auto good = *serialize_header(upload_header());
  const auto version = parse_header(patched(good, 4, std::uint16_t{2}));
  REQUIRE_FALSE(version);
  CHECK(version.error().kind == ErrorKind::kUnsupported);
  CHECK(version.error().message.find("version 2, this build has 1") != std::string::npos);
  const auto block = parse_header(patched(good, 146, std::uint16_t{128}));
  REQUIRE_FALSE(block);
  CHECK(block.error().kind == ErrorKind::kUnsupported);
  CHECK(block.error().message.find("128 elements, this build has 256") != std::string::npos);
  // A future version is told from its first 16 bytes, whatever its checksum is.
  auto future = good;
  future[4] = std::byte{9};
  CHECK(header_size(std::span(future).first(kPreludeBytes)).error().kind ==
        ErrorKind::kUnsupported);
}

TEST_CASE("a flipped bit anywhere in a header is noticed") {
  const auto good = *serialize_header(delta_header());
  for (std::size_t i = 0; i < good.size() * 8; ++i) {
    auto bad = good;
    bad[i / 8] ^= static_cast<std::byte>(1U << (i % 8));
    if (parse_header(bad)) FAIL("bit " << i);
  }
}

TEST_CASE("every cut of a frame is corrupt, and so is every byte beyond it") {
  auto header = delta_header();
  header.payload_bytes = 64;
  const auto frame = *make_frame(header, payload_of(64));
  for (std::size_t size = 0; size < frame.size(); ++size) {
    const std::vector<std::byte> cut(frame.begin(),
                                     frame.begin() + static_cast<std::ptrdiff_t>(size));
    const auto read = read_in_pieces(cut, 13);
    if (read || read.error().kind != ErrorKind::kCorrupt) FAIL("cut at " << size);
  }
  const auto longer = read_in_pieces(concat(frame, {std::byte{0}}), 50);
  REQUIRE_FALSE(longer);
  CHECK(longer.error().kind == ErrorKind::kCorrupt);
}

TEST_CASE("a flipped bit in payload or trailer is corrupt at the end") {
  auto header = upload_header();
  header.payload_bytes = 300;
  const auto frame = *make_frame(header, payload_of(300));
  const std::size_t start = *header_size(frame);
  for (std::size_t i = start; i < frame.size(); i += 7) {
    auto bad = frame;
    bad[i] ^= std::byte{0x10};
    const auto read = read_in_pieces(bad, 90);
    if (read || read.error().kind != ErrorKind::kCorrupt) FAIL("byte " << i);
  }
}

TEST_CASE("a reader holds what arrived, not what is claimed, and the caller's limit counts") {
  auto header = upload_header();
  header.payload_bytes = kMaxFramePayload;  // a terabyte, of which nothing follows
  const auto bytes = *serialize_header(header);
  const auto read = read_in_pieces(bytes, 50);
  REQUIRE_FALSE(read);
  CHECK(read.error().kind == ErrorKind::kCorrupt);
  const auto limited = read_in_pieces(bytes, 50, {.max_payload = 4096});
  REQUIRE_FALSE(limited);
  CHECK(limited.error().kind == ErrorKind::kTooLarge);
  CHECK(limited.error().message.find("4096") != std::string::npos);
}

TEST_CASE("W-05: sizes that would wrap are refused before they are added") {
  const auto max = std::numeric_limits<std::int64_t>::max();
  for (const auto codec : {codec::Codec::kFp32, codec::Codec::kInt4}) {
    CHECK(payload_size(codec, std::vector<std::int64_t>{max, 2}).error().kind ==
          ErrorKind::kTooLarge);
    CHECK(payload_size(codec, std::vector<std::int64_t>{1LL << 62, 1LL << 62, 1LL << 62, 1LL << 62})
              .error()
              .kind == ErrorKind::kTooLarge);
    CHECK(payload_size(codec, std::vector<std::int64_t>{5, -1}).error().kind ==
          ErrorKind::kInvalid);
    CHECK(payload_size(codec, std::vector<std::int64_t>(1000, 1LL << 38)).error().kind ==
          ErrorKind::kTooLarge);
  }
}

TEST_CASE("serializing refuses what parsing would refuse") {
  const auto refused = [](auto change, ErrorKind kind) {
    auto header = upload_header();
    change(header);
    const auto bytes = serialize_header(header);
    REQUIRE_FALSE(bytes);
    CHECK(bytes.error().kind == kind);
  };
  refused([](FrameHeader& h) { h.unit = std::string(64, 'a'); }, ErrorKind::kInvalid);
  refused([](FrameHeader& h) { h.unit = std::string(1 << 20, 'a'); }, ErrorKind::kInvalid);
  refused([](FrameHeader& h) { h.unit.clear(); }, ErrorKind::kInvalid);
  refused([](FrameHeader& h) { h.members = {std::string(300, 'b')}; }, ErrorKind::kInvalid);
  refused([](FrameHeader& h) { h.members.assign(kMaxFrameUnits + 1, "m"); }, ErrorKind::kTooLarge);
  refused([](FrameHeader& h) { h.payload_bytes = kMaxFramePayload + 1; }, ErrorKind::kTooLarge);
  refused([](FrameHeader& h) { h.base = h.t; }, ErrorKind::kInvalid);
}

TEST_CASE("random bytes are never a frame and never a crash") {
  Rng rng(77);
  const auto good = *serialize_header(delta_header());
  for (int round = 0; round < 20000; ++round) {
    auto bad = good;
    const auto flips = 1 + rng.below(6);
    for (std::uint64_t i = 0; i < flips; ++i)
      bad[rng.below(bad.size())] = static_cast<std::byte>(rng.next());
    // With a right checksum too, so that the fields themselves are met.
    const auto sealed = patched(bad, 0, bad[0]);
    const auto parsed = parse_header(sealed);
    if (parsed) REQUIRE(*serialize_header(*parsed) == sealed);  // canonical: one header, one text
  }
}

}  // namespace
}  // namespace archipelago::wire
