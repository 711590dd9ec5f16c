// Records of the event tape to bytes and back: a kind byte, then fields in order. Integers are
// LEB128, signed ones zigzagged; floats are their bits; texts a length and bytes.
#include <bit>
#include <charconv>
#include <type_traits>

#include "common/wire/byte_io.h"
#include "common/wire/tape_file.h"

namespace archipelago::wire {
namespace {

namespace tape = diloco::tape;

constexpr std::size_t kMaxText = std::size_t{1} << 20;
constexpr std::size_t kMaxList = std::size_t{1} << 16;

class Writer {
 public:
  void u(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) put(out, static_cast<std::uint8_t>(value | 0x80));
    put(out, static_cast<std::uint8_t>(value));
  }
  void s(std::int64_t value) {
    u((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }
  void text(const std::string& value) {
    u(value.size());
    put_text(out, value);
  }
  std::vector<std::byte> out;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes), total_(bytes.size()) {}
  std::uint64_t u() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = bytes_.get<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    bad_ = true;
    return 0;
  }
  std::int64_t s() {
    const std::uint64_t value = u();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  std::int32_t s32() {
    const std::int64_t value = s();
    if (value < INT32_MIN || value > INT32_MAX) bad_ = true;
    return static_cast<std::int32_t>(value);
  }
  std::uint32_t u32() {
    const std::uint64_t value = u();
    if (value > UINT32_MAX) bad_ = true;
    return static_cast<std::uint32_t>(value);
  }
  std::string text() { return bytes_.get_text(bounded(kMaxText)); }
  double f64() { return std::bit_cast<double>(bytes_.get<std::uint64_t>()); }
  float f32() { return std::bit_cast<float>(bytes_.get<std::uint32_t>()); }
  std::uint8_t byte() { return bytes_.get<std::uint8_t>(); }
  std::size_t count() { return bounded(kMaxList); }
  [[nodiscard]] bool good() const { return bytes_.ok() && !bad_; }
  [[nodiscard]] bool done() const { return bytes_.left() == 0; }
  [[nodiscard]] std::size_t at() const { return total_ - bytes_.left(); }
  void refuse() { bad_ = true; }

 private:
  // A count that is not even a byte each long is a lie, told before anything is allocated for it.
  std::size_t bounded(std::size_t most) {
    const std::uint64_t value = u();
    if (value <= most && value <= bytes_.left()) return static_cast<std::size_t>(value);
    bad_ = true;
    return 0;
  }
  ByteReader bytes_;
  std::size_t total_;
  bool bad_ = false;
};

enum Kind : std::uint8_t {
  kBatch = 1,
  kOpened = 2,
  kRound = 3,
  kPublished = 4,
  kFinal = 5,
  kStart = 16,
  kSeed = 17,
  kStep = 18,
  kSnapshot = 19,
  kApply = 20,
  kDonate = 21,
  kRestore = 22,
  kFresh = 23,
  kGap = 24,
};

constexpr std::uint8_t kStepSkipped = 1, kStepScaled = 2;

struct EventWriter {
  Writer& w;
  void kind(Kind k) const { put(w.out, static_cast<std::uint8_t>(k)); }
  void operator()(const tape::Start& e) const {
    kind(kStart);
    for (const auto* text :
         {&e.session, &e.datacenter, &e.layout_digest, &e.dataset_digest, &e.kernels})
      w.text(*text);
    w.s(e.threads);
  }
  void operator()(const tape::Seed& e) const {
    kind(kSeed);
    w.u(e.init_seed);
  }
  void operator()(const tape::Step& e) const {
    kind(kStep);
    const bool scaled = e.rate_scale != 1.0;
    put(w.out,
        static_cast<std::uint8_t>((e.skipped ? kStepSkipped : 0) | (scaled ? kStepScaled : 0)));
    w.s(e.schedule_step.value);
    w.s(e.budget.value);
    if (scaled) put(w.out, std::bit_cast<std::uint64_t>(e.rate_scale));
    put(w.out, std::bit_cast<std::uint64_t>(e.loss));
    w.u(e.runs.size());
    for (const auto& run : e.runs) {
      w.u(run.block);
      w.u(run.first);
      w.u(run.count);
    }
  }
  void operator()(const tape::Snapshot& e) const {
    kind(kSnapshot);
    w.s(e.t.value);
    w.s(e.fragment);
    w.s(e.attempt);
    w.s(e.base.value);
  }
  void operator()(const tape::Apply& e) const {
    kind(kApply);
    w.s(e.fragment);
    w.s(e.version.value);
  }
  void operator()(const tape::Donate& e) const {
    kind(kDonate);
    w.text(e.id);
  }
  void operator()(const tape::Restore& e) const {
    kind(kRestore);
    w.text(e.id);
    w.text(e.donor);
    w.s(e.incarnation.value);
    w.s(e.local_step.value);
  }
  void operator()(const tape::Fresh&) const { kind(kFresh); }
  void operator()(const tape::Gap& e) const {
    kind(kGap);
    w.s(e.events);
  }
};

struct RecordWriter {
  Writer& w;
  void kind(Kind k) const { put(w.out, static_cast<std::uint8_t>(k)); }
  void operator()(const tape::Batch& r) const {
    kind(kBatch);
    w.text(r.unit);
    w.s(r.incarnation.value);
    w.s(r.from);
    w.u(r.events.size());
    for (const auto& event : r.events) std::visit(EventWriter{w}, event);
  }
  void operator()(const tape::Opened& r) const {
    kind(kOpened);
    w.s(r.epoch);
    w.text(r.spec);
  }
  void operator()(const tape::Round& r) const {
    kind(kRound);
    w.s(r.t.value);
    w.s(r.fragment);
    put(w.out, std::bit_cast<std::uint32_t>(r.rules.learning_rate));
    put(w.out, std::bit_cast<std::uint32_t>(r.rules.momentum));
    put(w.out, static_cast<std::uint8_t>((r.rules.nesterov ? 1 : 0) | (r.rules.radial ? 2 : 0)));
    w.text(r.rules.downlink);
    w.u(r.members.size());
    for (const auto& member : r.members) {
      w.text(member.unit);
      w.s(member.incarnation.value);
      w.s(member.attempt);
      w.s(member.tokens);
      w.s(member.steps);
    }
  }
  void operator()(const tape::Published& r) const {
    kind(kPublished);
    w.s(r.t.value);
    w.s(r.fragment);
    put(w.out, r.digest);
  }
  void operator()(const tape::Final& r) const {
    kind(kFinal);
    w.s(r.version.value);
  }
};

tape::Start read_start(Reader& r) {
  tape::Start e;
  for (auto* text : {&e.session, &e.datacenter, &e.layout_digest, &e.dataset_digest, &e.kernels})
    *text = r.text();
  e.threads = r.s32();
  return e;
}

tape::Step read_step(Reader& r) {
  tape::Step e;
  const std::uint8_t flags = r.byte();
  if (flags > (kStepSkipped | kStepScaled)) r.refuse();
  e.skipped = (flags & kStepSkipped) != 0;
  e.schedule_step = GlobalStep(r.s());
  e.budget = GlobalStep(r.s());
  if ((flags & kStepScaled) != 0) e.rate_scale = r.f64();
  e.loss = r.f64();
  const std::size_t runs = r.count();
  for (std::size_t i = 0; i < runs && r.good(); ++i) {
    tape::SequenceRun run;
    run.block = r.u();
    run.first = r.u32();
    run.count = r.u32();
    e.runs.push_back(run);
  }
  return e;
}

tape::Snapshot read_snapshot(Reader& r) {
  tape::Snapshot e;
  e.t = GlobalStep(r.s());
  e.fragment = r.s32();
  e.attempt = r.s32();
  e.base = GlobalStep(r.s());
  return e;
}

tape::LearnerEvent read_event(Reader& r) {
  switch (r.byte()) {
    case kStart:
      return read_start(r);
    case kSeed:
      return tape::Seed{r.u()};
    case kStep:
      return read_step(r);
    case kSnapshot:
      return read_snapshot(r);
    case kApply: {
      const std::int32_t fragment = r.s32();
      return tape::Apply{fragment, GlobalStep(r.s())};
    }
    case kDonate:
      return tape::Donate{r.text()};
    case kRestore: {
      tape::Restore e;
      e.id = r.text();
      e.donor = r.text();
      e.incarnation = Incarnation(r.s());
      e.local_step = LocalStep(r.s());
      return e;
    }
    case kFresh:
      return tape::Fresh{};
    case kGap:
      return tape::Gap{r.s()};
    default:
      r.refuse();
      return tape::Fresh{};
  }
}

tape::Batch read_batch(Reader& r) {
  tape::Batch batch;
  batch.unit = r.text();
  batch.incarnation = Incarnation(r.s());
  batch.from = r.s();
  const std::size_t events = r.count();
  for (std::size_t i = 0; i < events && r.good(); ++i) batch.events.push_back(read_event(r));
  return batch;
}

tape::Round read_round(Reader& r) {
  tape::Round round;
  round.t = GlobalStep(r.s());
  round.fragment = r.s32();
  round.rules.learning_rate = r.f32();
  round.rules.momentum = r.f32();
  const std::uint8_t flags = r.byte();
  if (flags > 3) r.refuse();
  round.rules.nesterov = (flags & 1) != 0;
  round.rules.radial = (flags & 2) != 0;
  round.rules.downlink = r.text();
  const std::size_t members = r.count();
  for (std::size_t i = 0; i < members && r.good(); ++i) {
    tape::Member member;
    member.unit = r.text();
    member.incarnation = Incarnation(r.s());
    member.attempt = r.s32();
    member.tokens = r.s();
    member.steps = r.s();
    round.members.push_back(std::move(member));
  }
  return round;
}

tape::Record read_record(Reader& r) {
  switch (r.byte()) {
    case kBatch:
      return read_batch(r);
    case kOpened: {
      tape::Opened opened;
      opened.epoch = r.s();
      opened.spec = r.text();
      return opened;
    }
    case kRound:
      return read_round(r);
    case kPublished: {
      tape::Published published;
      published.t = GlobalStep(r.s());
      published.fragment = r.s32();
      for (unsigned shift = 0; shift < 64; shift += 8)
        published.digest |= static_cast<std::uint64_t>(r.byte()) << shift;
      return published;
    }
    case kFinal:
      return tape::Final{GlobalStep(r.s())};
    default:
      r.refuse();
      return tape::Final{};
  }
}

}  // namespace

std::vector<std::byte> encode_tape_record(const tape::Record& record) {
  Writer writer;
  std::visit(RecordWriter{writer}, record);
  return std::move(writer.out);
}

Result<tape::Record> decode_tape_record(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  tape::Record record = read_record(reader);
  if (reader.good() && reader.done()) return record;
  return fail(ErrorKind::kCorrupt, "tape record: malformed at byte " + std::to_string(reader.at()) +
                                       " of " + std::to_string(bytes.size()));
}

std::string tape_header_text(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<std::size_t>(byte >> 4)]);
    text.push_back(kDigits[std::to_integer<std::size_t>(byte & std::byte{15})]);
  }
  return text;
}

Result<std::vector<std::byte>> parse_tape_header(std::string_view text) {
  if (text.size() % 2 != 0 || text.size() > 2 * kMaxTapeHeader)
    return fail(ErrorKind::kInvalid, "X-Archipelago-Tape: " + std::to_string(text.size()) +
                                         " digits given, an even number up to " +
                                         std::to_string(2 * kMaxTapeHeader) + " is allowed");
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    unsigned value = 0;
    const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc{} || end != begin + 2)
      return fail(ErrorKind::kInvalid,
                  "X-Archipelago-Tape: no hexadecimal digits at " + std::to_string(2 * i));
    bytes[i] = static_cast<std::byte>(value);
  }
  return bytes;
}

}  // namespace archipelago::wire
