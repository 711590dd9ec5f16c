// Any bytes as a layout's text: what parses is the same layout again from its canonical text.
#include <cstdlib>
#include <string_view>

#include "common/diloco/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto layout = archipelago::diloco::Layout::parse_text(text);
  if (!layout) return 0;
  const auto again = archipelago::diloco::Layout::parse_text(layout->to_text());
  if (!again || !(*again == *layout) || again->digest() != layout->digest()) std::abort();
  return 0;
}
