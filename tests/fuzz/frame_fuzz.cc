// Any bytes into the frame parsers; what parses must serialize to the same bytes.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>
#include <xxhash.h>

#include "common/wire/frame.h"

namespace {

using namespace archipelago::wire;

void check_header(std::span<const std::byte> bytes) {
  const auto size = header_size(bytes);
  if (!size || *size > bytes.size()) return;
  const auto parsed = parse_header(bytes.first(*size));
  if (!parsed) return;
  const auto again = serialize_header(*parsed);
  if (!again || !std::equal(again->begin(), again->end(), bytes.begin())) std::abort();
}

void stream(std::span<const std::byte> bytes) {
  std::uint64_t seen = 0;
  FrameReader reader({.max_payload = 1 << 20}, nullptr,
                     [&seen](std::span<const std::byte> piece) -> archipelago::Status {
                       seen += piece.size();
                       return {};
                     });
  for (std::size_t piece = 1; !bytes.empty(); piece = piece * 3 % 1021) {
    const auto next = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(next.size());
    if (!reader.feed(next)) break;
  }
  const bool finished = reader.finish().has_value();
  if (finished != reader.complete() || (finished && seen != reader.header()->payload_bytes))
    std::abort();
}

// The same bytes with right checksums, or no mutation would get past them.
std::vector<std::byte> sealed(std::span<const std::byte> bytes) {
  std::vector<std::byte> out(bytes.begin(), bytes.end());
  const auto size = header_size(out);
  if (!size || *size > out.size()) return out;
  const std::uint64_t header_hash = XXH3_64bits(out.data(), *size - kChecksumBytes);
  std::memcpy(out.data() + *size - kChecksumBytes, &header_hash, kChecksumBytes);
  if (out.size() < *size + kChecksumBytes) return out;
  const std::uint64_t payload_hash =
      XXH3_64bits(out.data() + *size, out.size() - *size - kChecksumBytes);
  std::memcpy(out.data() + out.size() - kChecksumBytes, &payload_hash, kChecksumBytes);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  check_header(bytes);
  stream(bytes);
  const auto right = sealed(bytes);
  check_header(right);
  stream(right);
  return 0;
}
