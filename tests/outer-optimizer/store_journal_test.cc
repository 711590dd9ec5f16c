#include <fstream>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "outer-optimizer/store/journal.h"
#include "tests/outer-optimizer/store_fixture.h"

using namespace archipelago;
using namespace archipelago::outer;
namespace fs = std::filesystem;

namespace {

struct Seen {
  RecordType type;
  std::string head;
  std::string tensor;
  bool operator==(const Seen&) const = default;
};

struct Opened {
  std::unique_ptr<Journal> journal;
  std::vector<Seen> records;
  JournalReplay report;
};

Opened open_journal(FileOps& ops, const fs::path& folder, std::uint64_t preallocate = 4096) {
  Opened result;
  auto journal = Journal::open(
      ops, folder, {}, preallocate,
      [&](const JournalRecord& record) -> Status {
        Seen seen{record.type, record.head, std::string(record.tensor_bytes, '?')};
        ARCH_TRY_VOID(record.read_tensor(0, std::as_writable_bytes(std::span(seen.tensor))));
        result.records.push_back(seen);
        return {};
      },
      &result.report);
  REQUIRE(journal.has_value());
  result.journal = std::move(*journal);
  return result;
}

Status append(Journal& journal, const Seen& record) {
  return journal.append(record.type, record.head, record.tensor.size(),
                        [&](std::uint64_t first, std::span<std::byte> out) {
                          std::memcpy(out.data(), record.tensor.data() + first, out.size());
                        });
}

std::vector<Seen> sample_records() {
  return {{RecordType::kState, "identities", ""},
          {RecordType::kCommit, "t=1", std::string(200, 'g')},
          {RecordType::kState, "", ""},
          {RecordType::kCommit, "t=2 and members", std::string(33, 'h')},
          {RecordType::kFinal, "done", ""}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
}

}  // namespace

TEST_CASE("what was appended is replayed, also after several restarts and generations") {
  FastDir dir;
  FileOps ops;
  std::vector<Seen> written;
  for (int round = 0; round < 4; ++round) {
    Opened opened = open_journal(ops, dir.path());
    REQUIRE(opened.records == written);
    CHECK(opened.report.problems.empty());
    for (const Seen& record : sample_records()) {
      REQUIRE(append(*opened.journal, record).has_value());
      written.push_back(record);
    }
    if (round == 2) REQUIRE(opened.journal->rotate().has_value());
  }
  CHECK(Journal::generations(dir.path()) == std::vector<std::uint64_t>{1, 2});
  REQUIRE(Journal::free_below(ops, dir.path(), 2).has_value());
  CHECK(Journal::generations(dir.path()) == std::vector<std::uint64_t>{2});
}

TEST_CASE("a record larger than a piece, at any alignment, comes back whole") {
  FastDir dir;
  FileOps ops;
  const Seen large{RecordType::kCommit, "odd head.", std::string((3U << 20) + 4, 'x')};
  {
    Opened opened = open_journal(ops, dir.path());
    REQUIRE(append(*opened.journal, large).has_value());
  }
  CHECK(open_journal(ops, dir.path()).records == std::vector<Seen>{large});
}

TEST_CASE(
    "cut off at every byte: the whole records before the cut are there, and it goes on from them") {
  FastDir dir;
  FileOps ops;
  std::vector<std::uint64_t> ends;
  {
    Opened opened = open_journal(ops, dir.path());
    for (const Seen& record : sample_records()) {
      REQUIRE(append(*opened.journal, record).has_value());
      ends.push_back(opened.journal->used_bytes());
    }
  }
  const fs::path file = Journal::file_path(dir.path(), 1);
  const std::string whole = read_file(file).value();
  const auto records = sample_records();
  for (std::size_t cut = 0; cut <= ends.back() + 8; ++cut) {
    for (const bool zeros :
         {false, true}) {  // the file ends there, or its preallocated rest is zeros
      CAPTURE(cut, zeros);
      std::string torn = whole.substr(0, cut);
      if (zeros) torn.resize(whole.size(), '\0');
      write_bytes(file, torn);
      const std::size_t expected = static_cast<std::size_t>(
          std::count_if(ends.begin(), ends.end(), [&](std::uint64_t end) { return end <= cut; }));
      Opened opened = open_journal(ops, dir.path());
      REQUIRE(opened.records ==
              std::vector<Seen>(records.begin(),
                                records.begin() + static_cast<std::ptrdiff_t>(expected)));
      REQUIRE(opened.report.problems.empty());
      const Seen more{RecordType::kState, "more", ""};
      REQUIRE(append(*opened.journal, more).has_value());
      opened.journal.reset();
      Opened again = open_journal(ops, dir.path());
      REQUIRE(again.records.size() == expected + 1);
      REQUIRE(again.records.back() == more);
    }
  }
}

TEST_CASE("a flipped bit with whole records behind it is named, and what lies before it is kept") {
  FastDir dir;
  FileOps ops;
  std::vector<std::uint64_t> begins;
  {
    Opened opened = open_journal(ops, dir.path());
    for (const Seen& record : sample_records()) {
      begins.push_back(opened.journal->used_bytes());
      REQUIRE(append(*opened.journal, record).has_value());
    }
  }
  const fs::path file = Journal::file_path(dir.path(), 1);
  const std::string whole = read_file(file).value();
  for (std::size_t at = 0; at < begins[4]; ++at) {
    CAPTURE(at);
    dir.clear();
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    write_bytes(file, damaged);
    const auto before = static_cast<std::size_t>(
        std::count_if(begins.begin(), begins.end(), [&](auto b) { return b <= at; }));
    Opened opened = open_journal(ops, dir.path());
    REQUIRE(opened.records.size() == (before == 0 ? 0 : before - 1));
    REQUIRE(opened.report.problems.size() == 1);
    CHECK(opened.report.problems[0].find("journal-1.log") != std::string::npos);
    // It goes on in a new file, and the next start continues from there although the damage is
    // still in the old one.
    REQUIRE(append(*opened.journal, {RecordType::kState, "after", ""}).has_value());
    const std::size_t kept = opened.records.size();
    opened.journal.reset();
    Opened again = open_journal(ops, dir.path());
    REQUIRE(again.records.size() == kept + 1);
    CHECK(again.records.back().head == "after");
    CHECK(again.report.problems.size() == 1);
  }
}

TEST_CASE("bytes of an older file never pass for records") {
  FastDir dir;
  FileOps ops;
  std::uint64_t end = 0;
  {
    Opened opened = open_journal(ops, dir.path());
    for (const Seen& record : sample_records())
      REQUIRE(append(*opened.journal, record).has_value());
    end = opened.journal->used_bytes();
  }
  const std::string old = read_file(Journal::file_path(dir.path(), 1)).value();
  dir.clear();
  { Opened fresh = open_journal(ops, dir.path()); }
  const fs::path file = Journal::file_path(dir.path(), 1);
  std::string bytes = read_file(file).value();
  std::copy(old.begin() + 64, old.begin() + static_cast<std::ptrdiff_t>(end), bytes.begin() + 64);
  write_bytes(file, bytes);
  CHECK(open_journal(ops, dir.path()).records.empty());
}

TEST_CASE("no space: the append fails, nothing changes, and it succeeds when there is room again") {
  FastDir dir;
  FaultyFiles ops;
  Opened opened = open_journal(ops, dir.path(), 4096);
  const Seen small{RecordType::kState, "small", ""};
  const Seen large{RecordType::kCommit, "large", std::string(100'000, 'x')};
  REQUIRE(append(*opened.journal, small).has_value());
  ops.full = true;
  REQUIRE(append(*opened.journal, small).has_value());  // within the reservation
  for (int i = 0; i < 3; ++i) {
    const Status refused = append(*opened.journal, large);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().kind == ErrorKind::kNoSpace);
  }
  const Status rotated = opened.journal->rotate();
  REQUIRE_FALSE(rotated.has_value());
  CHECK(rotated.error().kind == ErrorKind::kNoSpace);
  ops.full = false;
  REQUIRE(append(*opened.journal, large).has_value());
  REQUIRE(opened.journal->rotate().has_value());
  REQUIRE(append(*opened.journal, small).has_value());
  opened.journal.reset();
  Opened again = open_journal(ops, dir.path());
  CHECK(again.records == std::vector<Seen>{small, small, large, small});
  CHECK(again.report.problems.empty());
}
