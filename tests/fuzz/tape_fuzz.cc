// Any bytes as a record of the event tape and as its header line; what parses must survive being
// written again.
#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "common/wire/tape_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace archipelago::wire;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto record = decode_tape_record(bytes)) {
    // Bytes, not values: a loss may be NaN. Integers have longer forms, so the first may differ.
    const auto once = encode_tape_record(*record);
    const auto again = decode_tape_record(once);
    if (!again || encode_tape_record(*again) != once) std::abort();
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto line = parse_tape_header(text))
    if (tape_header_text(*line).size() != size) std::abort();
  if (size <= kMaxTapeHeader) {
    const auto line = parse_tape_header(tape_header_text(bytes));
    if (!line || !std::equal(line->begin(), line->end(), bytes.begin(), bytes.end())) std::abort();
  }
  return 0;
}
