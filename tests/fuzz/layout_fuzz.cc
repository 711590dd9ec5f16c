// Any bytes as a layout's text: what parses has the same text again.
#include <cstdlib>
#include <string_view>

#include "common/diloco/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto layout = archipelago::diloco::Layout::parse_text(text);
  if (layout && layout->to_text() != text) std::abort();
  return 0;
}
