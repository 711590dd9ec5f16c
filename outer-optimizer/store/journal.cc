#include "outer-optimizer/store/journal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fcntl.h>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "outer-optimizer/store/little_endian.h"

namespace archipelago::outer {
namespace {

constexpr std::uint64_t kFileMagic = 0x314e524a48435241ULL;  // "ARCHJRN1"
constexpr std::uint32_t kRecordMagic = 0x4a524543U;
constexpr std::size_t kFileHeader = 64;
constexpr std::size_t kRecordHeader = 40;
constexpr std::size_t kTrailer = 8;
constexpr std::size_t kPiece = 1U << 20;
constexpr std::uint64_t kGrowth =
    64U << 10;  // a file that outgrows its reservation grows in multiples of this

std::uint64_t padded(std::uint64_t n) { return (n + 7) / 8 * 8; }

struct RecordHeader {
  std::uint32_t type = 0;
  std::uint64_t sequence = 0;
  std::uint64_t head = 0;
  std::uint64_t tensor = 0;
  [[nodiscard]] std::uint64_t total() const {
    return padded(kRecordHeader + head + tensor) + kTrailer;
  }
};

std::uint64_t header_checksum(std::uint64_t id, std::span<const std::byte> bytes) {
  Checksum checksum;
  checksum.add(id);
  checksum.add(bytes);
  return checksum.value();
}

std::array<std::byte, kRecordHeader> encode_header(std::uint64_t id, const RecordHeader& header) {
  std::array<std::byte, kRecordHeader> bytes{};
  put(bytes, 0, kRecordMagic);
  put(bytes, 4, header.type);
  put(bytes, 8, header.sequence);
  put(bytes, 16, header.head);
  put(bytes, 24, header.tensor);
  put(bytes, 32, header_checksum(id, std::span(bytes).first(32)));
  return bytes;
}

// One journal file opened for reading.
class Reader {
 public:
  Reader(UniqueFd fd, std::string name, std::uint64_t size)
      : fd_(std::move(fd)), name_(std::move(name)), size_(size) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] std::uint64_t first_sequence() const { return first_sequence_; }

  // False: the file header is not whole (a crash while the file was being made, or damage).
  bool read_file_header(std::uint64_t generation) {
    std::array<std::byte, kFileHeader> bytes{};
    if (size_ < kFileHeader || !read_at(fd_.get(), bytes, 0)) return false;
    const std::span<const std::byte> view(bytes);
    if (get<std::uint64_t>(view, 0) != kFileMagic || get<std::uint64_t>(view, 8) != generation)
      return false;
    if (get<std::uint64_t>(view, 56) != checksum_of(view.first(56))) return false;
    first_sequence_ = get<std::uint64_t>(view, 16);
    id_ = get<std::uint64_t>(view, 24);
    return true;
  }

  [[nodiscard]] bool only_zeros_from(std::uint64_t at) const {
    std::vector<std::byte> piece(kPiece);
    while (at < size_) {
      const auto part = std::span(piece).first(std::min<std::uint64_t>(kPiece, size_ - at));
      if (!read_at(fd_.get(), part, at)) return false;
      if (std::any_of(part.begin(), part.end(), [](std::byte b) { return b != std::byte{0}; }))
        return false;
      at += part.size();
    }
    return true;
  }

  [[nodiscard]] std::optional<RecordHeader> header(std::uint64_t at) const {
    std::array<std::byte, kRecordHeader> bytes{};
    if (size_ < kRecordHeader + kTrailer || at > size_ - kRecordHeader - kTrailer)
      return std::nullopt;
    if (!read_at(fd_.get(), bytes, at)) return std::nullopt;
    return decode(bytes, at);
  }

  // The whole record checks out.
  [[nodiscard]] bool whole(std::uint64_t at, const RecordHeader& header) const {
    Checksum checksum;
    checksum.add(id_);
    std::vector<std::byte> piece(kPiece);
    const std::uint64_t end = at + header.total() - kTrailer;
    for (std::uint64_t from = at; from < end;) {
      const auto part = std::span(piece).first(std::min<std::uint64_t>(kPiece, end - from));
      if (!read_at(fd_.get(), part, from)) return false;
      checksum.add(part);
      from += part.size();
    }
    std::array<std::byte, kTrailer> trailer{};
    if (!read_at(fd_.get(), trailer, end)) return false;
    return get<std::uint64_t>(trailer, 0) == checksum.value();
  }

  // Where a later record begins, if there is one: then what is broken at `at` is damage and not a
  // torn tail.
  [[nodiscard]] std::optional<std::uint64_t> later_record(std::uint64_t at,
                                                          std::uint64_t sequence) const {
    std::vector<std::byte> piece(kPiece + kRecordHeader);
    for (std::uint64_t from = at + 8; from + kRecordHeader <= size_; from += kPiece) {
      const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), size_ - from));
      if (!read_at(fd_.get(), part, from)) return std::nullopt;
      for (std::size_t i = 0; i < kPiece && i + kRecordHeader <= part.size(); i += 8) {
        if (get<std::uint32_t>(part, i) != kRecordMagic) continue;
        const auto found = decode(part.subspan(i, kRecordHeader), from + i);
        if (found && found->sequence > sequence && whole(from + i, *found)) return from + i;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Result<JournalRecord> load(std::uint64_t at, const RecordHeader& header) const {
    JournalRecord record;
    record.type = static_cast<RecordType>(header.type);
    record.sequence = header.sequence;
    record.head.resize(header.head);
    ARCH_TRY_VOID(
        read_at(fd_.get(), std::as_writable_bytes(std::span(record.head)), at + kRecordHeader));
    record.tensor_bytes = header.tensor;
    const std::uint64_t begin = at + kRecordHeader + header.head;
    record.read_tensor = [this, begin, size = header.tensor](std::uint64_t first,
                                                             std::span<std::byte> out) -> Status {
      if (first > size || out.size() > size - first)
        return fail(ErrorKind::kInternal, "beyond the record's tensor");
      return read_at(fd_.get(), out, begin + first);
    };
    return record;
  }

 private:
  [[nodiscard]] std::optional<RecordHeader> decode(std::span<const std::byte> bytes,
                                                   std::uint64_t at) const {
    if (get<std::uint32_t>(bytes, 0) != kRecordMagic) return std::nullopt;
    if (get<std::uint64_t>(bytes, 32) != header_checksum(id_, bytes.first(32))) return std::nullopt;
    RecordHeader header{get<std::uint32_t>(bytes, 4), get<std::uint64_t>(bytes, 8),
                        get<std::uint64_t>(bytes, 16), get<std::uint64_t>(bytes, 24)};
    if (header.head > Journal::kMaxHead || header.tensor > size_ || at + header.total() > size_)
      return std::nullopt;
    return header;
  }

  UniqueFd fd_;
  std::string name_;
  std::uint64_t size_ = 0;
  std::uint64_t id_ = 0;
  std::uint64_t first_sequence_ = 0;
};

Result<Reader> open_reader(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("open " + path.string(), errno));
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) return fail(ErrorKind::kIo, path.string() + ": " + error.message());
  return Reader(std::move(fd), path.filename().string(), size);
}

struct ReplayState {
  std::uint64_t next_sequence = 1;
  bool damaged = false;   // nothing behind this is replayed
  std::uint64_t end = 0;  // of the newest file's whole records
  std::uint64_t id = 0;
  bool usable = false;  // the newest file can be appended to
};

Status replay_records(const Reader& file, ReplayState* state, JournalReplay* report,
                      const std::function<Status(const JournalRecord&)>& replay) {
  std::uint64_t at = kFileHeader;
  for (;;) {
    const auto header = file.header(at);
    if (!header || header->sequence != state->next_sequence || !file.whole(at, *header)) break;
    if (header->type < 1 || header->type > 3)
      return fail(ErrorKind::kUnsupported, file.name() + ": record of type " +
                                               std::to_string(header->type) + " at byte " +
                                               std::to_string(at) + "; this build knows 1 to 3");
    ARCH_TRY(const JournalRecord record, file.load(at, *header));
    if (auto done = replay(record); !done)
      return fail(done.error().with_context(file.name() + " at byte " + std::to_string(at)));
    ++report->records;
    ++state->next_sequence;
    at += header->total();
  }
  state->end = at;
  if (const auto later = file.later_record(at, state->next_sequence)) {
    state->damaged = true;
    report->problems.push_back(file.name() + " is damaged at byte " + std::to_string(at) +
                               " (record " + std::to_string(state->next_sequence) +
                               "); the next whole record is at byte " + std::to_string(*later));
  }
  return {};
}

Status replay_file(const std::filesystem::path& path, std::uint64_t generation, ReplayState* state,
                   JournalReplay* report,
                   const std::function<Status(const JournalRecord&)>& replay) {
  ARCH_TRY(Reader file, open_reader(path));
  state->usable = file.read_file_header(generation);
  if (!state->usable) {
    if (file.only_zeros_from(kFileHeader)) return {};  // made, and nothing was ever written to it
    state->damaged = true;
    report->problems.push_back(file.name() + ": the header is damaged");
    return {};
  }
  if (file.first_sequence() != state->next_sequence) {
    state->damaged = true;
    report->problems.push_back(file.name() + " begins with record " +
                               std::to_string(file.first_sequence()) + ", expected " +
                               std::to_string(state->next_sequence));
    return {};
  }
  // A generation that was begun behind damage continues from the record that was lost: the gap is
  // known and final.
  state->damaged = false;
  state->id = file.id();
  return replay_records(file, state, report, replay);
}

}  // namespace

std::filesystem::path Journal::file_path(const std::filesystem::path& folder,
                                         std::uint64_t generation) {
  return folder / ("journal-" + std::to_string(generation) + ".log");
}

std::vector<std::uint64_t> Journal::generations(const std::filesystem::path& folder) {
  std::vector<std::uint64_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kPrefix = "journal-";
    constexpr std::string_view kSuffix = ".log";
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    std::uint64_t generation = 0;
    const char* first = name.data() + kPrefix.size();
    const char* last = name.data() + name.size() - kSuffix.size();
    const auto [end, bad] = std::from_chars(first, last, generation);
    if (bad == std::errc{} && end == last) found.push_back(generation);
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<std::unique_ptr<Journal>> Journal::open(
    FileOps& ops, const std::filesystem::path& folder, const Start& from, std::uint64_t preallocate,
    const std::function<Status(const JournalRecord&)>& replay, JournalReplay* report) {
  ARCH_TRY_VOID(ops.make_folder(folder));
  ReplayState state;
  state.next_sequence = from.sequence;
  std::vector<std::uint64_t> files;
  for (const std::uint64_t generation : generations(folder))
    if (generation >= from.generation) files.push_back(generation);
  if (files.empty() && from.must_exist)
    report->problems.push_back(file_path("", from.generation).string() + " is missing");
  // Behind damage it goes on only where a newer generation takes up exactly there: replay_file()
  // checks that.
  for (const std::uint64_t generation : files)
    ARCH_TRY_VOID(replay_file(file_path(folder, generation), generation, &state, report, replay));
  report->next_sequence = state.next_sequence;

  std::unique_ptr<Journal> journal(new Journal(ops, folder, preallocate));
  journal->next_sequence_ = state.next_sequence;
  if (files.empty() || !state.usable || state.damaged) {
    // A newest file that never got a record is written over; a damaged one stays for whoever wants
    // to look at it.
    std::uint64_t next = from.generation;
    if (!files.empty()) next = state.damaged ? files.back() + 1 : files.back();
    ARCH_TRY_VOID(journal->create_file(next));
    return journal;
  }
  ARCH_TRY(journal->fd_, ops.open(file_path(folder, files.back())));
  journal->generation_ = files.back();
  journal->id_ = state.id;
  journal->end_ = state.end;
  // The torn tail goes, so that its bytes cannot lie behind a shorter record.
  ARCH_TRY_VOID(ops.truncate(journal->fd_.get(), state.end));
  journal->allocated_ = state.end;
  if (ops.preallocate(journal->fd_.get(), std::max(preallocate, state.end)))
    journal->allocated_ = std::max(preallocate, state.end);
  return journal;
}

Status Journal::create_file(std::uint64_t generation) {
  const std::filesystem::path path = file_path(folder_, generation);
  auto undo = [&](const Error& error) {
    static_cast<void>(ops_.remove_all(path));
    return fail(error.with_context(path.string()));
  };
  ARCH_TRY(UniqueFd fd, ops_.open(path));
  const std::uint64_t size = std::max<std::uint64_t>(preallocate_, kFileHeader);
  if (auto done = ops_.truncate(fd.get(), 0); !done) return undo(done.error());
  if (auto done = ops_.preallocate(fd.get(), size); !done) return undo(done.error());
  std::random_device random;
  const std::uint64_t id = (static_cast<std::uint64_t>(random()) << 32) | random();
  std::array<std::byte, kFileHeader> bytes{};
  put(bytes, 0, kFileMagic);
  put(bytes, 8, generation);
  put(bytes, 16, next_sequence_);
  put(bytes, 24, id);
  put(bytes, 56, checksum_of(std::span(bytes).first(56)));
  if (auto done = ops_.write_at(fd.get(), bytes, 0); !done) return undo(done.error());
  if (auto done = ops_.sync(fd.get()); !done) return undo(done.error());
  if (auto done = ops_.sync_folder(folder_); !done) return undo(done.error());
  fd_ = std::move(fd);
  generation_ = generation;
  id_ = id;
  end_ = kFileHeader;
  allocated_ = size;
  return {};
}

Status Journal::make_room(std::uint64_t bytes) {
  if (bytes <= allocated_ - end_) return {};
  const std::uint64_t size = (end_ + bytes + kGrowth - 1) / kGrowth * kGrowth;
  ARCH_TRY_VOID(ops_.preallocate(fd_.get(), size));
  allocated_ = size;
  return {};
}

Status Journal::append(RecordType type, std::string_view head, std::uint64_t tensor_bytes,
                       const TensorSource& tensor) {
  if (head.size() > kMaxHead)
    return fail(ErrorKind::kTooLarge,
                "journal record head of " + std::to_string(head.size()) + " bytes");
  const RecordHeader header{static_cast<std::uint32_t>(type), next_sequence_, head.size(),
                            tensor_bytes};
  const std::string where = file_path(folder_, generation_).string();
  if (auto room = make_room(header.total()); !room) return fail(room.error().with_context(where));

  Checksum checksum;
  checksum.add(id_);
  std::vector<std::byte> piece;
  std::uint64_t at = end_;
  auto flush = [&]() -> Status {
    auto done = ops_.write_at(fd_.get(), piece, at);
    if (!done) return fail(done.error().with_context(where));
    at += piece.size();
    piece.clear();
    return {};
  };
  auto add = [&](std::span<const std::byte> bytes) {
    checksum.add(bytes);
    piece.insert(piece.end(), bytes.begin(), bytes.end());
  };
  add(encode_header(id_, header));
  add(text_bytes(head));
  for (std::uint64_t first = 0; first < tensor_bytes;) {
    if (piece.size() >= kPiece) ARCH_TRY_VOID(flush());
    const std::size_t take = std::min<std::uint64_t>(kPiece, tensor_bytes - first);
    const std::size_t old = piece.size();
    piece.resize(old + take);
    tensor(first, std::span(piece).subspan(old));
    checksum.add(std::span(piece).subspan(old));
    first += take;
  }
  const std::array<std::byte, 8> zeros{};
  const std::uint64_t unpadded = kRecordHeader + head.size() + tensor_bytes;
  add(std::span(zeros).first(padded(unpadded) - unpadded));
  piece.resize(piece.size() + kTrailer);
  put(std::span(piece), piece.size() - kTrailer, checksum.value());
  ARCH_TRY_VOID(flush());
  if (auto done = ops_.sync(fd_.get()); !done) return fail(done.error().with_context(where));
  end_ = at;
  ++next_sequence_;
  return {};
}

Status Journal::rotate() {
  if (end_ == kFileHeader) return {};  // nothing in it: it can serve the next checkpoint as it is
  // The unused reservation goes first, so that the new file can have it; and comes back if that
  // fails, so that commits still have the room that was set aside for them.
  const std::uint64_t reserved = allocated_;
  ARCH_TRY_VOID(ops_.truncate(fd_.get(), end_));
  allocated_ = end_;
  auto created = create_file(generation_ + 1);
  if (!created && ops_.preallocate(fd_.get(), reserved)) allocated_ = reserved;
  return created;
}

Status Journal::free_below(FileOps& ops, const std::filesystem::path& folder,
                           std::uint64_t generation) {
  for (const std::uint64_t old : generations(folder))
    if (old < generation) ARCH_TRY_VOID(ops.remove_all(file_path(folder, old)));
  return ops.sync_folder(folder);
}

}  // namespace archipelago::outer
