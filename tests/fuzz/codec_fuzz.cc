// Any bytes as an encoded tensor: what is accepted decodes to finite elements, alike by all three
// readers.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/codec/kernels.h"

namespace {

using namespace archipelago::codec;

// The most elements of which `bytes` bytes are an encoding, or nothing when there is no such
// number.
bool elements_of(Codec codec, std::size_t bytes, std::size_t& elements) {
  for (std::size_t n = 0; n <= 2 * bytes; ++n) {
    if (encoded_size(codec, n) == bytes) {
      elements = n;
      return true;
    }
  }
  return false;
}

void check_decode(Codec codec, std::span<const std::byte> bytes, std::size_t n) {
  std::vector<float> out(n);
  const bool valid = decode(codec, bytes, out).has_value();
  const auto norm2 = validate_norm2(codec, bytes, n);
  if (norm2.has_value() != valid) std::abort();
  std::vector<float> range(n);
  decode_range(codec, bytes, n, 0, range);
  decode_accumulate_range(codec, bytes, n, 0, 0.5F, range);
  if (!valid) return;
  if (!all_finite(out) || *norm2 != sumsq(out)) std::abort();
  std::vector<std::byte> again(bytes.size());
  if (!encode(codec, out, again)) std::abort();
}

// The bytes as floats: encode refuses exactly the non-finite ones, and reads back what it wrote.
void check_encode(Codec codec, std::span<const std::byte> bytes) {
  std::vector<float> in(bytes.size() / sizeof(float));
  if (!in.empty()) std::memcpy(in.data(), bytes.data(), in.size() * sizeof(float));
  std::vector<std::byte> out(encoded_size(codec, in.size()));
  const bool encoded = encode(codec, in, out).has_value();
  if (encoded != all_finite(in)) std::abort();
  std::vector<float> back(in.size());
  if (encoded && !decode(codec, out, back)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 1 << 14) return 0;
  const auto codec = static_cast<Codec>(data[0] % 4);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  std::size_t n = 0;
  if (elements_of(codec, bytes.size(), n)) check_decode(codec, bytes, n);
  check_encode(codec, bytes);
  return 0;
}
