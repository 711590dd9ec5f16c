// Any bytes as each JSON message: the first chooses the parser. What parses has one JSON form that
// parses to itself.
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/wire/messages_json.h"

namespace {

namespace wire = archipelago::wire;

template <class Parse>
void check(std::string_view text, Parse parse) {
  const auto message = parse(text);
  if (!message) return;
  const std::string once = wire::encode(*message);
  const auto again = parse(once);
  if (!again || wire::encode(*again) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch ((data[0] + 1) % 7) {  // '0' is the first
    case 0:
      check(text, wire::parse_hello);
      break;
    case 1:
      check(text, wire::parse_hello_reply);
      break;
    case 2:
      check(text, wire::parse_progress);
      break;
    case 3:
      check(text, wire::parse_progress_reply);
      break;
    case 4:
      check(text, wire::parse_status);
      break;
    case 5:
      check(text, wire::parse_state);
      break;
    default:
      check(text, wire::parse_unit_key);
  }
  return 0;
}
