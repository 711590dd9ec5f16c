#include "common/wire/tape_file.h"

#include <fstream>

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::wire;
namespace tape = archipelago::diloco::tape;

namespace {

tape::Batch batch(std::int64_t from, std::size_t steps) {
  tape::Batch out{"us-east-0", Incarnation(2), from, {}};
  for (std::size_t i = 0; i < steps; ++i) {
    tape::Step step;
    step.runs = {{7, static_cast<std::uint32_t>(8 * i), 8}};
    step.schedule_step = GlobalStep(static_cast<std::int64_t>(i));
    step.budget = GlobalStep(1000);
    step.loss = 5.5 / (1.0 + static_cast<double>(i));
    out.events.emplace_back(step);
  }
  return out;
}

std::vector<tape::Record> one_of_each() {
  tape::Batch all{"eu-west-1", Incarnation(3), 0, {}};
  tape::Step scaled;
  scaled.runs = {{1, 250, 6}, {UINT64_MAX, 0, 2}};
  scaled.schedule_step = GlobalStep(INT64_MAX);
  scaled.rate_scale = 1.0 / 21;
  scaled.skipped = true;
  all.events = {tape::Start{"00ff", "eu-west", "ab", "cd", "libtorch 2 AVX512", 2},
                tape::Seed{UINT64_MAX},
                scaled,
                tape::Snapshot{GlobalStep(9), 3, 2, GlobalStep(-1)},
                tape::Apply{3, GlobalStep(9)},
                tape::Donate{"relay-1"},
                tape::Restore{"relay-1", "us-east-0", Incarnation(4), LocalStep(77)},
                tape::Fresh{},
                tape::Gap{12}};
  tape::Round round{GlobalStep(9), 3, {0.5F, 0.6F, true, false, "int4"}, {}};
  round.members = {{"eu-west-1", Incarnation(3), 2, 16384, 16}};
  return {tape::Opened{4, "{}"}, all, round, tape::Published{GlobalStep(9), 3, 0xfedcba9876543210U},
          tape::Final{GlobalStep(10)}};
}

std::filesystem::path write(const TempDir& dir, const char* name, int blocks) {
  const auto path = dir.path() / name;
  auto writer = TapeWriter::open(path, "run-1");
  REQUIRE(writer);
  for (int i = 0; i < blocks; ++i) {
    const std::vector<tape::Record> records{batch(20 * i, 20)};
    REQUIRE(writer->append(records));
  }
  return path;
}

void flip(const std::filesystem::path& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0x40));
}

}  // namespace

TEST_CASE("every tape record survives its bytes, and no prefix of one is taken for it") {
  for (const auto& record : one_of_each()) {
    const auto bytes = encode_tape_record(record);
    const auto back = decode_tape_record(bytes);
    REQUIRE(back);
    CHECK(*back == record);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      CHECK_FALSE(decode_tape_record(std::span(bytes).first(n)));
  }
  // A count beyond the bytes is refused before anything is allocated for it.
  auto bytes = encode_tape_record(batch(0, 1));
  bytes[bytes.size() - 4] = std::byte{0xff};
  CHECK_FALSE(decode_tape_record(bytes));
}

TEST_CASE("a tape is read back in order, a torn tail is cut at every length and writing goes on") {
  const TempDir dir;
  const auto path = write(dir, "t", 3);
  const auto whole = *read_file(path);
  const auto first = scan_tape(write(dir, "two", 2), {});
  REQUIRE(first);
  for (std::uint64_t size = first->end + 1; size < whole.size(); size += 7) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    const auto scan = scan_tape(path, {});
    REQUIRE(scan);
    CHECK(scan->blocks == 2);
    CHECK(scan->torn == size - scan->end);
  }
  std::vector<tape::Record> seen;
  const auto keep = [&](tape::Record record) -> Status {
    seen.push_back(std::move(record));
    return {};
  };
  auto writer = TapeWriter::open(path, "run-1", keep);
  REQUIRE(writer);
  CHECK(seen.size() == 2);
  REQUIRE(writer->append(one_of_each()));
  seen.clear();
  REQUIRE(scan_tape(path, keep));
  REQUIRE(seen.size() == 7);
  CHECK(seen[1] == tape::Record(batch(20, 20)));
  CHECK(std::vector<tape::Record>(seen.begin() + 2, seen.end()) == one_of_each());
}

TEST_CASE("damage and foreign blocks are errors that name the offset") {
  const TempDir dir;
  const auto path = write(dir, "t", 3);
  const auto whole = *read_file(path);
  const std::uint64_t begin = scan_tape(write(dir, "none", 0), {})->end;
  const std::uint64_t block = (whole.size() - begin) / 3;
  const std::uint64_t second = scan_tape(write(dir, "one", 1), {})->end;
  for (std::uint64_t at = second; at < second + block / 2; ++at) {
    flip(path, at);
    const auto scan = scan_tape(path, {});
    REQUIRE_FALSE(scan);
    CHECK(scan.error().kind == ErrorKind::kCorrupt);
    CHECK(scan.error().message.find("offset " + std::to_string(second)) != std::string::npos);
    flip(path, at);
  }
  flip(path, 20);
  CHECK(scan_tape(path, {}).error().message.find("offset 0") != std::string::npos);
  // The same records in another file are other bytes: a block cannot be moved between tapes.
  const auto other = write(dir, "other", 3);
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      << whole.substr(0, second) << read_file(other)->substr(second);
  CHECK(scan_tape(path, {}).error().message.find("offset " + std::to_string(second)) !=
        std::string::npos);
  std::ofstream(path, std::ios::trunc) << "{\"not\": \"a tape, but long enough to be one\"}";
  CHECK(scan_tape(path, {}).error().kind == ErrorKind::kUnsupported);
  CHECK(TapeWriter::open(other, "run-2").error().kind == ErrorKind::kConflict);
}

TEST_CASE("a learner step takes far less than 200 bytes of tape, even in blocks of one") {
  const TempDir dir;
  auto writer = TapeWriter::open(dir.path() / "t", "run-1");
  REQUIRE(writer);
  const std::uint64_t begin = writer->size();
  for (int i = 0; i < 100; ++i) {
    auto one = batch(3 * i, 1);
    one.events.emplace_back(tape::Snapshot{GlobalStep(1000 + i), i % 24, 1, GlobalStep(976 + i)});
    one.events.emplace_back(tape::Apply{i % 24, GlobalStep(998 + i)});
    REQUIRE(writer->append(std::vector<tape::Record>{one}));
  }
  CHECK((writer->size() - begin) / 100 < 100);
}
