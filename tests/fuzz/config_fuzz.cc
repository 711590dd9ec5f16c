// Any bytes as a DecoupledTraining and as a --set override: an answer, never an exception or a
// hang; and what is accepted survives the round trip through JSON.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/config/parse.h"

namespace {

using namespace archipelago::config;

void check_training(std::string_view text) {
  const auto training = parse_training(text);
  if (!training) {
    if (training.error().empty() || format_errors(training.error()).empty()) std::abort();
    return;
  }
  const auto again = parse_training(to_json(*training).dump());
  if (!again || !(*again == *training)) std::abort();
}

void check_set(std::string_view text) {
  nlohmann::json document{
      {"spec", {{"sync", {{"quorum", 1}}}, {"datacenters", {{{"name", "a"}}, {{"name", "b"}}}}}}};
  if (apply_set(document, text)) static_cast<void>(parse_training(document));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 1 << 16) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_training(text);
  check_set(text.substr(0, 256));
  return 0;
}
