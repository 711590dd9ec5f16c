#include "common/wire/frame.h"

#include <algorithm>
#include <limits>
#include <xxhash.h>

#include "common/base/check.h"
#include "common/wire/byte_io.h"

namespace archipelago::wire {
namespace {

using codec::Codec;

constexpr std::string_view kMagic = "ARCF";
constexpr std::uint16_t kBlockElements = static_cast<std::uint16_t>(codec::kBlock);

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxUnitName)) out.push_back(c >= ' ' && c <= '~' ? c : '?');
  return out + "'";
}

bool is_unit_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kMaxUnitName &&
         std::all_of(text.begin(), text.end(), allowed);
}

tl::unexpected<Error> invalid(std::string_view field, const std::string& given,
                              std::string_view allowed) {
  return fail(ErrorKind::kInvalid, "frame header: " + std::string(field) + " is " + given +
                                       ", must be " + std::string(allowed));
}

tl::unexpected<Error> too_large(std::string_view field, std::uint64_t given, std::uint64_t limit) {
  return fail(ErrorKind::kTooLarge, "frame header: " + std::string(field) + " is " +
                                        std::to_string(given) + ", the limit is " +
                                        std::to_string(limit));
}

Status check_numbers(const FrameHeader& h) {
  const std::int32_t lowest = h.kind == FrameKind::kInnerState ? -1 : 0;
  if (h.fragment < lowest || h.fragment >= kMaxFragments) {
    return invalid("fragment", std::to_string(h.fragment),
                   "0 to " + std::to_string(kMaxFragments - 1));
  }
  if (h.t.value < 0) return invalid("t", std::to_string(h.t.value), "0 or more");
  if (h.base.value < -1) return invalid("base", std::to_string(h.base.value), "-1 or more");
  if (h.steps < 0) return invalid("steps", std::to_string(h.steps), "0 or more");
  if (h.tokens < 0) return invalid("tokens", std::to_string(h.tokens), "0 or more");
  if (h.local_step.value < 0)
    return invalid("local_step", std::to_string(h.local_step.value), "0 or more");
  if (h.attempt < 0) return invalid("attempt", std::to_string(h.attempt), "0 or more");
  const bool relative = h.kind == FrameKind::kUpload || h.kind == FrameKind::kDelta;
  if (relative && (h.base.value < 0 || h.base >= h.t)) {
    return invalid("base", std::to_string(h.base.value),
                   "0 or more and below t (" + std::to_string(h.t.value) + ")");
  }
  if (h.kind == FrameKind::kUpload && h.attempt < 1)
    return invalid("attempt", std::to_string(h.attempt), "1 or more");
  if (h.kind == FrameKind::kSeedKeyframe && h.t.value != 0) {
    return invalid("t", std::to_string(h.t.value), "0 in a seed keyframe");
  }
  return {};
}

Status check_names(const FrameHeader& h) {
  const bool downlink = h.kind == FrameKind::kDelta || h.kind == FrameKind::kKeyframe;
  if (h.unit.empty()) {
    if (!downlink)
      return invalid("unit", "empty", "named in " + std::string(to_string(h.kind)) + " frames");
    if (h.incarnation.value != 0)
      return invalid("incarnation", std::to_string(h.incarnation.value), "0 without a unit");
  } else {
    if (!is_unit_name(h.unit))
      return invalid("unit", quoted(h.unit), "1 to 63 of a-z A-Z 0-9 - _ .");
    if (h.incarnation.value < 1)
      return invalid("incarnation", std::to_string(h.incarnation.value), "1 or more");
  }
  for (const auto* list : {&h.members, &h.excluded}) {
    for (const std::string& name : *list) {
      if (!is_unit_name(name))
        return invalid("a member or excluded unit", quoted(name), "1 to 63 of a-z A-Z 0-9 - _ .");
    }
  }
  for (const ConsumedRange& range : h.consumed) {
    if (range.from > range.upto) {
      return invalid("a consumed range",
                     std::to_string(range.from) + ".." + std::to_string(range.upto), "in order");
    }
  }
  return {};
}

Status check_counts(const FrameHeader& h, const FrameLimits& limits) {
  if (h.consumed.size() > kMaxConsumedRanges)
    return too_large("consumed ranges", h.consumed.size(), kMaxConsumedRanges);
  if (h.members.size() > kMaxFrameUnits)
    return too_large("members", h.members.size(), kMaxFrameUnits);
  if (h.excluded.size() > kMaxFrameUnits)
    return too_large("excluded", h.excluded.size(), kMaxFrameUnits);
  const std::uint64_t max_payload = std::min(limits.max_payload, kMaxFramePayload);
  if (h.payload_bytes > max_payload)
    return too_large("payload bytes", h.payload_bytes, max_payload);
  return {};
}

std::size_t header_bytes_of(const FrameHeader& h) {
  std::size_t size =
      kFixedHeaderBytes + h.unit.size() + h.consumed.size() * kConsumedRangeBytes + kChecksumBytes;
  for (const std::string& name : h.members) size += 1 + name.size();
  for (const std::string& name : h.excluded) size += 1 + name.size();
  return size;
}

void put_names(std::vector<std::byte>& out, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    put(out, static_cast<std::uint8_t>(name.size()));
    put_text(out, name);
  }
}

void put_fixed(std::vector<std::byte>& out, const FrameHeader& h) {
  put_text(out, kMagic);
  put(out, kFrameVersion);
  put(out, static_cast<std::uint8_t>(h.kind));
  put(out, std::uint8_t{0});
  put(out, static_cast<std::uint32_t>(header_bytes_of(h)));
  put(out, std::uint32_t{0});
  put_bytes(out, h.run_id);
  put_bytes(out, h.layout_digest);
  put_bytes(out, h.session);
  put(out, h.incarnation.value);
  put(out, h.t.value);
  put(out, h.base.value);
  put(out, h.steps);
  put(out, h.tokens);
  put(out, h.local_step.value);
  put(out, h.payload_bytes);
  put(out, h.fragment);
  put(out, h.attempt);
  put(out, static_cast<std::uint8_t>(h.codec));
  put(out, static_cast<std::uint8_t>(h.unit.size()));
  put(out, kBlockElements);
  put(out, static_cast<std::uint16_t>(h.consumed.size()));
  put(out, static_cast<std::uint16_t>(h.members.size()));
  put(out, static_cast<std::uint16_t>(h.excluded.size()));
  put(out, std::uint16_t{0});
  put(out, std::uint32_t{0});
  ARCH_CHECK(out.size() == kFixedHeaderBytes, "fixed header of " << out.size());
}

struct Counts {
  std::size_t unit = 0;
  std::size_t consumed = 0;
  std::size_t members = 0;
  std::size_t excluded = 0;
};

Result<Counts> read_fixed(ByteReader& in, FrameHeader& h) {
  h.run_id = in.get_array<Bytes16>();
  h.layout_digest = in.get_array<Bytes32>();
  h.session = in.get_array<Bytes16>();
  h.incarnation.value = in.get<std::int64_t>();
  h.t.value = in.get<std::int64_t>();
  h.base.value = in.get<std::int64_t>();
  h.steps = in.get<std::int64_t>();
  h.tokens = in.get<std::int64_t>();
  h.local_step.value = in.get<std::int64_t>();
  h.payload_bytes = in.get<std::uint64_t>();
  h.fragment = in.get<std::int32_t>();
  h.attempt = in.get<std::int32_t>();
  const auto codec_byte = in.get<std::uint8_t>();
  Counts counts;
  counts.unit = in.get<std::uint8_t>();
  const auto block = in.get<std::uint16_t>();
  counts.consumed = in.get<std::uint16_t>();
  counts.members = in.get<std::uint16_t>();
  counts.excluded = in.get<std::uint16_t>();
  const bool spare_used = in.get<std::uint16_t>() != 0 || in.get<std::uint32_t>() != 0;
  ARCH_TRY(h.codec, codec::codec_from_byte(codec_byte));
  if (block != kBlockElements) {
    return fail(ErrorKind::kUnsupported, "frame header: codec blocks of " + std::to_string(block) +
                                             " elements, this build has " +
                                             std::to_string(kBlockElements));
  }
  if (spare_used) return fail(ErrorKind::kUnsupported, "frame header: spare fields are set");
  if (counts.unit > kMaxUnitName)
    return too_large("bytes of the unit's name", counts.unit, kMaxUnitName);
  if (counts.consumed > kMaxConsumedRanges)
    return too_large("consumed ranges", counts.consumed, kMaxConsumedRanges);
  if (counts.members > kMaxFrameUnits) return too_large("members", counts.members, kMaxFrameUnits);
  if (counts.excluded > kMaxFrameUnits)
    return too_large("excluded", counts.excluded, kMaxFrameUnits);
  return counts;
}

Status read_names(ByteReader& in, std::size_t count, std::vector<std::string>& names) {
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    const std::size_t size = in.get<std::uint8_t>();
    if (size > kMaxUnitName) return too_large("bytes of a unit's name", size, kMaxUnitName);
    names.push_back(in.get_text(size));
  }
  return {};
}

Status read_variable(ByteReader& in, const Counts& counts, FrameHeader& h) {
  h.unit = in.get_text(counts.unit);
  for (std::size_t i = 0; i < counts.consumed && in.ok(); ++i) {
    const auto block = in.get<std::uint64_t>();
    const auto from = in.get<std::uint32_t>();
    h.consumed.push_back({block, from, in.get<std::uint32_t>()});
  }
  ARCH_TRY_VOID(read_names(in, counts.members, h.members));
  ARCH_TRY_VOID(read_names(in, counts.excluded, h.excluded));
  if (!in.ok() || in.left() != 0) {
    return fail(ErrorKind::kCorrupt, "frame header: its lists do not fill it exactly");
  }
  return {};
}

Result<FrameKind> kind_from_byte(std::uint8_t byte) {
  if (byte >= 1 && byte <= 5) return static_cast<FrameKind>(byte);
  return fail(ErrorKind::kUnsupported,
              "frame kind " + std::to_string(int{byte}) + " is unknown to this build");
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

template <class Array>
bool hex_into(std::string_view hex, Array& out) {
  if (hex.size() != 2 * out.size()) return false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = hex_digit(hex[2 * i]);
    const int low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

template <class Array>
Result<Array> parse_hex(std::string_view hex) {
  Array out{};
  if (hex_into(hex, out)) return out;
  return fail(ErrorKind::kInvalid,
              quoted(hex) + " is not " + std::to_string(2 * out.size()) + " hex digits");
}

}  // namespace

std::string_view to_string(FrameKind kind) {
  switch (kind) {
    case FrameKind::kUpload:
      return "upload";
    case FrameKind::kDelta:
      return "delta";
    case FrameKind::kKeyframe:
      return "keyframe";
    case FrameKind::kSeedKeyframe:
      return "seed keyframe";
    case FrameKind::kInnerState:
      return "inner state";
  }
  return "unknown";
}

Result<Bytes16> run_id_bytes(std::string_view run_id) {
  if (run_id.empty() || run_id.size() > 255) {
    return fail(ErrorKind::kInvalid,
                "run id has " + std::to_string(run_id.size()) + " bytes, must have 1 to 255");
  }
  Bytes16 out{};
  const auto dash_at = [&](std::size_t i) { return run_id[i] == '-'; };
  if (run_id.size() == 36 && dash_at(8) && dash_at(13) && dash_at(18) && dash_at(23)) {
    std::string digits(run_id);
    std::erase(digits, '-');
    if (hex_into(digits, out)) return out;
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(run_id.data(), run_id.size()));
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), out.begin());
  return out;
}

Result<Bytes16> parse_hex16(std::string_view hex) { return parse_hex<Bytes16>(hex); }
Result<Bytes32> parse_hex32(std::string_view hex) { return parse_hex<Bytes32>(hex); }

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15U]);
  }
  return out;
}

Result<std::uint64_t> payload_size(Codec codec, std::span<const std::int64_t> tensor_elements) {
  std::uint64_t total = 0;
  for (const std::int64_t elements : tensor_elements) {
    if (elements < 0)
      return fail(ErrorKind::kInvalid, "a tensor of " + std::to_string(elements) + " elements");
    // Every codec takes less than 8 bytes an element and its scale, so this bound keeps the sum in
    // range.
    const auto count = static_cast<std::uint64_t>(elements);
    if (count > kMaxFramePayload) return too_large("elements of a tensor", count, kMaxFramePayload);
    total += codec::encoded_size(codec, count);
    if (total > kMaxFramePayload) return too_large("payload bytes", total, kMaxFramePayload);
  }
  return total;
}

Result<std::uint64_t> frame_size(const FrameHeader& header) {
  ARCH_TRY_VOID(check_counts(header, {}));
  return header_bytes_of(header) + header.payload_bytes + kChecksumBytes;
}

Result<std::vector<std::byte>> serialize_header(const FrameHeader& header) {
  ARCH_TRY_VOID(check_counts(header, {}));
  ARCH_TRY_VOID(check_numbers(header));
  ARCH_TRY_VOID(check_names(header));
  std::vector<std::byte> out;
  out.reserve(header_bytes_of(header));
  put_fixed(out, header);
  put_text(out, header.unit);
  for (const ConsumedRange& range : header.consumed) {
    put(out, range.block);
    put(out, range.from);
    put(out, range.upto);
  }
  put_names(out, header.members);
  put_names(out, header.excluded);
  put(out, hash_of(out));
  return out;
}

Result<std::size_t> header_size(std::span<const std::byte> prelude) {
  ByteReader in(prelude);
  const std::string magic = in.get_text(kMagic.size());
  const auto version = in.get<std::uint16_t>();
  const auto kind = in.get<std::uint8_t>();
  const auto spare = in.get<std::uint8_t>();
  const auto size = in.get<std::uint32_t>();
  const auto flags = in.get<std::uint32_t>();
  if (!in.ok())
    return fail(ErrorKind::kCorrupt,
                "frame header: cut off after " + std::to_string(prelude.size()) + " bytes");
  if (magic != kMagic)
    return fail(ErrorKind::kInvalid,
                "not a frame: it begins with " + quoted(magic) + ", not 'ARCF'");
  if (version != kFrameVersion) {
    return fail(ErrorKind::kUnsupported, "frame version " + std::to_string(version) +
                                             ", this build has " + std::to_string(kFrameVersion) +
                                             "; sender and receiver must be of one release");
  }
  ARCH_TRY_VOID(kind_from_byte(kind));
  if (spare != 0 || flags != 0)
    return fail(ErrorKind::kUnsupported,
                "frame header: flags are set that this build does not know");
  if (size > kMaxHeaderBytes) return too_large("header bytes", size, kMaxHeaderBytes);
  if (size < kFixedHeaderBytes + kChecksumBytes) {
    return fail(ErrorKind::kCorrupt, "frame header: claims " + std::to_string(size) +
                                         " bytes, it has at least " +
                                         std::to_string(kFixedHeaderBytes + kChecksumBytes));
  }
  return std::size_t{size};
}

Result<FrameHeader> parse_header(std::span<const std::byte> bytes, const FrameLimits& limits) {
  ARCH_TRY(const std::size_t size, header_size(bytes));
  if (bytes.size() != size) {
    return fail(ErrorKind::kCorrupt, "frame header: " + std::to_string(bytes.size()) +
                                         " bytes given, it claims " + std::to_string(size));
  }
  const auto body = bytes.first(size - kChecksumBytes);
  ByteReader checksum(bytes.last(kChecksumBytes));
  if (checksum.get<std::uint64_t>() != hash_of(body))
    return fail(ErrorKind::kCorrupt, "frame header: checksum differs");
  ByteReader in(body);
  FrameHeader header;
  const auto prelude = in.take(kPreludeBytes);
  ARCH_TRY(header.kind, kind_from_byte(std::to_integer<std::uint8_t>(prelude[6])));
  ARCH_TRY(const Counts counts, read_fixed(in, header));
  ARCH_TRY_VOID(read_variable(in, counts, header));
  ARCH_TRY_VOID(check_counts(header, limits));
  ARCH_TRY_VOID(check_numbers(header));
  ARCH_TRY_VOID(check_names(header));
  return header;
}

}  // namespace archipelago::wire
