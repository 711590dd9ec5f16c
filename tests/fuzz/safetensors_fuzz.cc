// Any bytes as the head of a safetensors file: what parses lies inside the file, without gap or
// overlap.
#include <cstdlib>
#include <span>

#include "common/wire/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = archipelago::wire::parse_safetensors_header(bytes, size);
  if (!header) return 0;
  if (header->data_begin > size) std::abort();
  std::uint64_t total = 0;
  for (const auto& tensor : header->tensors) {
    if (tensor.begin > tensor.end || tensor.end > size - header->data_begin) std::abort();
    total += tensor.end - tensor.begin;
  }
  if (total != size - header->data_begin) std::abort();
  return 0;
}
