#include "common/wire/tape_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "common/wire/byte_io.h"

namespace archipelago::wire {
namespace {

namespace tape = diloco::tape;

// File: magic, version u32, size of the header u32, id u64, run id (length u16 and bytes), xxh3 of
// all before. Block: magic u32, raw bytes u32, stored bytes u32 (top bit: zstd), low half of the
// xxh3 of these 12 u32, xxh3 of the stored bytes u64; both seeded with id + offset of the block.
// Raw bytes: for each record a length u32 and the record.
constexpr std::string_view kMagic = "ARCHTAPE";
constexpr std::uint32_t kBlockMagic = 0x31425054;  // "TPB1"
constexpr std::uint32_t kCompressed = 1U << 31;
constexpr std::size_t kFixedHeader = 26;  // up to the run id
constexpr std::size_t kBlockHeader = 24;
constexpr int kLevel = 3;

std::uint64_t hash(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Error damage(const std::filesystem::path& path, std::uint64_t offset, const std::string& what) {
  return {ErrorKind::kCorrupt,
          path.string() + ": damaged at offset " + std::to_string(offset) + ": " + what};
}

std::vector<std::byte> file_header(const std::string& run_id, std::uint64_t id) {
  std::vector<std::byte> out;
  put_text(out, kMagic);
  put(out, kTapeVersion);
  put(out, static_cast<std::uint32_t>(kFixedHeader + run_id.size() + 8));
  put(out, id);
  put(out, static_cast<std::uint16_t>(run_id.size()));
  put_text(out, run_id);
  put(out, hash(out, 0));
  return out;
}

Status read_file_header(const std::filesystem::path& path, std::span<const std::byte> bytes,
                        TapeScan* scan) {
  ByteReader reader(bytes);
  if (reader.get_text(kMagic.size()) != kMagic)
    return fail(ErrorKind::kUnsupported, path.string() + ": not an event tape (offset 0)");
  const auto version = reader.get<std::uint32_t>();
  if (version != kTapeVersion)
    return fail(ErrorKind::kUnsupported,
                path.string() + ": tape of version " + std::to_string(version) +
                    " (offset 8), allowed: " + std::to_string(kTapeVersion));
  const std::size_t size = reader.get<std::uint32_t>();
  scan->id = reader.get<std::uint64_t>();
  const std::size_t name = reader.get<std::uint16_t>();
  scan->run_id = reader.get_text(std::min<std::size_t>(name, 255));
  const auto checksum = reader.get<std::uint64_t>();
  if (!reader.ok() || size != kFixedHeader + name + 8 || hash(bytes.first(size - 8), 0) != checksum)
    return fail(damage(path, 0, "the header's checksum differs"));
  scan->end = size;
  return {};
}

struct BlockHead {
  std::size_t raw = 0;
  std::size_t stored = 0;
  bool compressed = false;
  std::uint64_t checksum = 0;
};

Result<BlockHead> read_block_head(const std::filesystem::path& path,
                                  std::span<const std::byte> bytes, std::uint64_t id,
                                  std::uint64_t offset) {
  ByteReader reader(bytes);
  const auto magic = reader.get<std::uint32_t>();
  BlockHead head;
  head.raw = reader.get<std::uint32_t>();
  const auto stored = reader.get<std::uint32_t>();
  head.stored = stored & ~kCompressed;
  head.compressed = (stored & kCompressed) != 0;
  const auto check = reader.get<std::uint32_t>();
  head.checksum = reader.get<std::uint64_t>();
  if (magic != kBlockMagic ||
      check != static_cast<std::uint32_t>(hash(bytes.first(12), id + offset)))
    return fail(damage(path, offset, "no block of this tape begins here"));
  if (head.raw > kMaxTapeBlock || head.stored > kMaxTapeBlock)
    return fail(damage(path, offset,
                       "a block of " + std::to_string(head.raw) + " bytes, allowed " +
                           std::to_string(kMaxTapeBlock)));
  return head;
}

// The raw bytes of a block whose checksum holds.
Result<std::vector<std::byte>> unpack(const std::filesystem::path& path, const BlockHead& head,
                                      std::span<const std::byte> stored, std::uint64_t offset) {
  std::vector<std::byte> raw(head.raw);
  if (!head.compressed) {
    if (head.raw != head.stored) return fail(damage(path, offset, "sizes differ"));
    std::copy(stored.begin(), stored.end(), raw.begin());
    return raw;
  }
  const std::size_t n = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(n) != 0 || n != raw.size())
    return fail(damage(path, offset, "zstd cannot read the block"));
  return raw;
}

Status read_records(const std::filesystem::path& path, std::span<const std::byte> raw,
                    std::uint64_t offset, const std::function<Status(tape::Record)>& each,
                    TapeScan* scan) {
  ByteReader reader(raw);
  while (reader.left() > 0) {
    const std::size_t size = reader.get<std::uint32_t>();
    const auto bytes = reader.take(size);
    if (!reader.ok()) return fail(damage(path, offset, "a record runs past its block"));
    auto record = decode_tape_record(bytes);
    if (!record) return fail(damage(path, offset, record.error().message));
    ++scan->records;
    if (each) ARCH_TRY_VOID(each(std::move(*record)));
  }
  return {};
}

}  // namespace

Result<TapeScan> scan_tape(const std::filesystem::path& path,
                           const std::function<Status(tape::Record)>& each) {
  ARCH_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  TapeScan scan;
  ARCH_TRY_VOID(read_file_header(path, bytes, &scan));
  while (scan.end < bytes.size()) {
    const auto rest = bytes.subspan(scan.end);
    scan.torn = rest.size();
    if (rest.size() < kBlockHeader) break;
    ARCH_TRY(const BlockHead head, read_block_head(path, rest, scan.id, scan.end));
    if (rest.size() < kBlockHeader + head.stored) break;
    const auto stored = rest.subspan(kBlockHeader, head.stored);
    if (hash(stored, scan.id + scan.end) != head.checksum)
      return fail(damage(path, scan.end, "the block's checksum differs"));
    ARCH_TRY(const auto raw, unpack(path, head, stored, scan.end));
    ARCH_TRY_VOID(read_records(path, raw, scan.end, each, &scan));
    scan.end += kBlockHeader + head.stored;
    scan.torn = 0;
    ++scan.blocks;
  }
  return scan;
}

Result<TapeWriter> TapeWriter::open(const std::filesystem::path& path, const std::string& run_id,
                                    const std::function<Status(tape::Record)>& each) {
  if (run_id.size() > 255) return fail(ErrorKind::kInvalid, "run id: longer than 255 bytes");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return fail(errno_error("open " + path.string(), errno));
  const off_t size = ::lseek(fd.get(), 0, SEEK_END);
  TapeWriter writer(std::move(fd));
  // A header that was torn by a kill is written anew: nothing can be behind it.
  if (size < static_cast<off_t>(kFixedHeader + run_id.size() + 8)) {
    std::random_device device;
    writer.id_ = (static_cast<std::uint64_t>(device()) << 32) | device();
    const auto header = file_header(run_id, writer.id_);
    if (::ftruncate(writer.fd_.get(), 0) != 0 || ::lseek(writer.fd_.get(), 0, SEEK_SET) != 0)
      return fail(errno_error("truncate " + path.string(), errno));
    ARCH_TRY_VOID(write_all(writer.fd_.get(), header));
    writer.end_ = header.size();
    return writer;
  }
  ARCH_TRY(const TapeScan scan, scan_tape(path, each));
  if (scan.run_id != run_id)
    return fail(ErrorKind::kConflict,
                path.string() + ": tape of run " + scan.run_id + ", this is run " + run_id);
  writer.id_ = scan.id;
  writer.end_ = scan.end;
  const auto end = static_cast<off_t>(scan.end);
  if (::ftruncate(writer.fd_.get(), end) != 0 || ::lseek(writer.fd_.get(), end, SEEK_SET) != end)
    return fail(errno_error("truncate " + path.string(), errno));
  return writer;
}

Status TapeWriter::append(std::span<const tape::Record> records) {
  std::vector<std::byte> raw;
  for (const auto& record : records) {
    const auto bytes = encode_tape_record(record);
    put(raw, static_cast<std::uint32_t>(bytes.size()));
    raw.insert(raw.end(), bytes.begin(), bytes.end());
  }
  if (raw.size() > kMaxTapeBlock)
    return fail(ErrorKind::kTooLarge, "tape block of " + std::to_string(raw.size()) +
                                          " bytes, allowed " + std::to_string(kMaxTapeBlock));
  std::vector<std::byte> packed(ZSTD_compressBound(raw.size()));
  const std::size_t n = ZSTD_compress(packed.data(), packed.size(), raw.data(), raw.size(), kLevel);
  const bool smaller = ZSTD_isError(n) == 0 && n < raw.size();
  packed.resize(smaller ? n : 0);
  const auto& stored = smaller ? packed : raw;
  std::vector<std::byte> block;
  put(block, kBlockMagic);
  put(block, static_cast<std::uint32_t>(raw.size()));
  put(block, static_cast<std::uint32_t>(stored.size()) | (smaller ? kCompressed : 0U));
  put(block, static_cast<std::uint32_t>(hash(block, id_ + end_)));
  put(block, hash(stored, id_ + end_));
  block.insert(block.end(), stored.begin(), stored.end());
  if (Status written = write_all(fd_.get(), block); !written) {
    const auto end = static_cast<off_t>(end_);
    if (::ftruncate(fd_.get(), end) != 0 || ::lseek(fd_.get(), end, SEEK_SET) != end)
      return fail(written.error().with_context("tape: its end is torn"));
    return written;
  }
  end_ += block.size();
  return {};
}

}  // namespace archipelago::wire
