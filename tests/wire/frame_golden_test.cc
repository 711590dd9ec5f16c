// Bytes that never change under one version number: tests/golden/wire, written only with
// ARCHIPELAGO_UPDATE_GOLDENS=1.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <catch2/catch.hpp>

#include "common/base/rng.h"
#include "tests/wire/frame_fixtures.h"

namespace archipelago::wire {
namespace {
using namespace test;

struct Golden {
  const char* name;
  FrameHeader header;
};

std::vector<Golden> goldens() {
  return {{"upload_int4", upload_header()},
          {"delta_int8", delta_header()},
          {"keyframe_bf16", keyframe_header()},
          {"seed_fp32", seed_header()},
          {"inner_state_bf16", inner_state_header()}};
}

// Two tensors: one of a whole and a partial block, one tiny. Only exactly representable arithmetic,
// so that every compiler makes the same floats.
std::vector<std::vector<float>> tensors() {
  Rng rng(2024);
  std::vector<float> large(300);
  for (float& x : large)
    x = static_cast<float>(static_cast<std::int64_t>(rng.below(2001)) - 1000) / 1024.0F;
  return {large, {0.0F, -0.0F, 1.5F, -3.0F, 0x1p-130F}};
}

std::vector<std::byte> payload(codec::Codec codec) {
  std::vector<std::byte> out;
  for (const auto& tensor : tensors()) {
    std::vector<std::byte> bytes(codec::encoded_size(codec, tensor.size()));
    REQUIRE(codec::encode(codec, tensor, bytes));
    out = concat(out, bytes);
  }
  return out;
}

std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  for (const std::byte byte : bytes) out.put(std::to_integer<char>(byte));
}

TEST_CASE("frames of version 1 have their golden bytes") {
  const char* update = std::getenv("ARCHIPELAGO_UPDATE_GOLDENS");
  for (auto& [name, header] : goldens()) {
    const auto body = payload(header.codec);
    FrameHeader full = header;
    full.payload_bytes = body.size();
    const auto frame = make_frame(full, body);
    REQUIRE(frame);
    const auto path = std::filesystem::path(ARCHIPELAGO_SOURCE_DIR) / "tests/golden/wire" /
                      (std::string(name) + ".bin");
    CAPTURE(path.string());
    if (update != nullptr && std::string_view(update) == "1") write_bytes(path, *frame);
    const auto golden = read_bytes(path);
    REQUIRE_FALSE(golden.empty());
    REQUIRE(*frame == golden);
    // And what an old peer sent is still understood.
    const std::size_t size = *header_size(golden);
    CHECK(*parse_header(std::span(golden).first(size)) == full);
    CHECK(*read_in_pieces(golden, 64) == body);
  }
}

TEST_CASE("the fields of an upload lie where docs/wire-format.md says") {
  auto header = upload_header();
  header.payload_bytes = 0x1122334455;
  const auto bytes = *serialize_header(header);
  const auto byte_at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  CHECK(byte_at(0) == 'A');
  CHECK(byte_at(4) == 1);
  CHECK(byte_at(6) == 1);      // upload
  CHECK(byte_at(16) == 0x10);  // run id
  CHECK(byte_at(32) == 0x80);  // layout digest
  CHECK(byte_at(64) == 0x40);  // session
  CHECK(byte_at(80) == 3);     // incarnation
  CHECK(byte_at(88) == (1234567 & 0xff));
  CHECK(byte_at(96) == (1234543 & 0xff));
  CHECK(byte_at(104) == 24);  // steps
  CHECK(byte_at(112) == (98304 & 0xff));
  CHECK(byte_at(114) == 1);
  CHECK(byte_at(120) == (4242 & 0xff));
  CHECK(byte_at(128) == 0x55);  // payload bytes
  CHECK(byte_at(132) == 0x11);
  CHECK(byte_at(136) == 7);    // fragment
  CHECK(byte_at(140) == 2);    // attempt
  CHECK(byte_at(144) == 3);    // int4
  CHECK(byte_at(145) == 8);    // length of the unit's name
  CHECK(byte_at(147) == 1);    // block of 256
  CHECK(byte_at(148) == 2);    // consumed ranges
  CHECK(byte_at(160) == 'i');  // island-0
  CHECK(byte_at(168) == 11);   // first block
  CHECK(bytes.size() == 160 + 8 + 2 * 16 + 8);
}

}  // namespace
}  // namespace archipelago::wire
