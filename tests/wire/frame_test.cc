// Frames that are right: round trips, streaming, identifiers, sizes.
#include <catch2/catch.hpp>

#include "tests/wire/frame_fixtures.h"

namespace archipelago::wire {
namespace {
using namespace test;

TEST_CASE("headers of every kind survive a round trip") {
  for (const auto& header :
       {upload_header(), delta_header(), keyframe_header(), seed_header(), inner_state_header()}) {
    CAPTURE(to_string(header.kind));
    const auto bytes = serialize_header(header);
    REQUIRE(bytes);
    CHECK(*header_size(std::span(*bytes).first(kPreludeBytes)) == bytes->size());
    const auto parsed = parse_header(*bytes);
    REQUIRE(parsed);
    CHECK(*parsed == header);
  }
}

TEST_CASE("the largest header stays within its bound") {
  auto header = upload_header();
  header.unit = std::string(kMaxUnitName, 'u');
  header.consumed.assign(kMaxConsumedRanges, {~std::uint64_t{0}, 0, 256});
  header.members.assign(kMaxFrameUnits, std::string(kMaxUnitName, 'm'));
  header.excluded.assign(kMaxFrameUnits, std::string(kMaxUnitName, 'x'));
  const auto bytes = serialize_header(header);
  REQUIRE(bytes);
  CHECK(bytes->size() == kMaxHeaderBytes);
  CHECK(*parse_header(*bytes) == header);
  header.consumed.push_back({});
  CHECK(serialize_header(header).error().kind == ErrorKind::kTooLarge);
}

TEST_CASE("a frame can be read in pieces of any size") {
  const auto payload = payload_of(1000);
  auto header = delta_header();
  header.payload_bytes = payload.size();
  const auto frame = make_frame(header, payload);
  REQUIRE(frame);
  CHECK(frame->size() == *frame_size(header));
  for (const std::size_t piece : {1U, 2U, 7U, 15U, 16U, 17U, 160U, 300U, 1000U, 100000U}) {
    CAPTURE(piece);
    const auto read = read_in_pieces(*frame, piece);
    REQUIRE(read);
    CHECK(*read == payload);
  }
}

TEST_CASE("a writer's pieces are the frame") {
  const auto payload = payload_of(5000);
  auto header = upload_header();
  header.payload_bytes = payload.size();
  auto writer = FrameWriter::create(header);
  REQUIRE(writer);
  std::vector<std::byte> frame(writer->header_bytes().begin(), writer->header_bytes().end());
  CHECK(writer->trailer().error().kind == ErrorKind::kInvalid);  // payload is missing
  for (std::size_t at = 0; at < payload.size(); at += 777) {
    const auto piece =
        std::span(payload).subspan(at, std::min<std::size_t>(777, payload.size() - at));
    REQUIRE(writer->add_payload(piece));
    frame.insert(frame.end(), piece.begin(), piece.end());
  }
  CHECK(writer->add_payload(std::span(payload).first(1)).error().kind == ErrorKind::kTooLarge);
  const auto trailer = writer->trailer();
  REQUIRE(trailer);
  frame.insert(frame.end(), trailer->begin(), trailer->end());
  CHECK(frame == *make_frame(header, payload));
}

TEST_CASE("the header sink can refuse before any payload is taken") {
  auto header = upload_header();
  header.payload_bytes = 100;
  const auto frame = make_frame(header, payload_of(100));
  REQUIRE(frame);
  bool payload_seen = false;
  FrameReader reader(
      {}, [](const FrameHeader&) -> Status { return fail(ErrorKind::kConflict, "stale base"); },
      [&](std::span<const std::byte>) -> Status {
        payload_seen = true;
        return {};
      });
  CHECK(reader.feed(*frame).error().kind == ErrorKind::kConflict);
  CHECK(reader.feed(*frame).error().kind == ErrorKind::kConflict);  // the first error is final
  CHECK(reader.finish().error().kind == ErrorKind::kConflict);
  CHECK_FALSE(payload_seen);
  CHECK_FALSE(reader.complete());
}

TEST_CASE("a payload sink's error ends the frame") {
  auto header = upload_header();
  header.payload_bytes = 100;
  const auto frame = make_frame(header, payload_of(100));
  FrameReader reader({}, nullptr, [](std::span<const std::byte>) -> Status {
    return fail(ErrorKind::kNoSpace, "disk is full");
  });
  CHECK(reader.feed(*frame).error().kind == ErrorKind::kNoSpace);
  CHECK_FALSE(reader.complete());
}

TEST_CASE("an empty payload is a frame too") {
  const auto frame = make_frame(keyframe_header(), {});
  REQUIRE(frame);
  CHECK(read_in_pieces(*frame, 5)->empty());
}

TEST_CASE("run ids keep a UUID's bytes and hash other text") {
  const auto uuid = run_id_bytes("00112233-4455-6677-8899-aAbBcCdDeEfF");
  REQUIRE(uuid);
  CHECK(to_hex(*uuid) == "00112233445566778899aabbccddeeff");
  const auto local = run_id_bytes("quickstart");
  REQUIRE(local);
  CHECK(*local == *run_id_bytes("quickstart"));
  CHECK(*local != *run_id_bytes("quickstart2"));
  CHECK(run_id_bytes("").error().kind == ErrorKind::kInvalid);
  CHECK(run_id_bytes(std::string(256, 'x')).error().kind == ErrorKind::kInvalid);
}

TEST_CASE("hex identifiers round-trip and refuse anything else") {
  const std::string session = "000102030405060708090a0b0c0d0eff";
  CHECK(to_hex(*parse_hex16(session)) == session);
  CHECK(to_hex(*parse_hex32(session + session)) == session + session);
  CHECK(parse_hex16(session + "00").error().kind == ErrorKind::kInvalid);
  CHECK(parse_hex16("g00102030405060708090a0b0c0d0eff").error().kind == ErrorKind::kInvalid);
  CHECK(parse_hex32("").error().kind == ErrorKind::kInvalid);
}

TEST_CASE("payload sizes add up tensor by tensor, blocks restarting at each") {
  const std::vector<std::int64_t> tensors{256, 257, 0, 1};
  CHECK(*payload_size(codec::Codec::kInt8, tensors) == 260 + 265 + 0 + 5);
  CHECK(*payload_size(codec::Codec::kFp32, tensors) == 4 * 514);
  CHECK(*payload_size(codec::Codec::kFp32, {}) == 0);
}

}  // namespace
}  // namespace archipelago::wire
