// Runs a fuzz target without a fuzzer: every file of the given folders as it is, then mutations of
// it that are the same on every machine. A finding is a crash, an abort or a sanitizer's report.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using archipelago::Rng;
using Bytes = std::vector<std::uint8_t>;

constexpr int kMutationsPerFile = 3000;
constexpr std::array<std::uint64_t, 9> kInteresting{
    0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0x80000000, 0xffffffff, ~std::uint64_t{0}};

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void run(const Bytes& bytes) {
  // A copy of exactly this size, so that a sanitizer sees one byte too many.
  const Bytes exact(bytes);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void mutate_once(Rng& rng, Bytes& bytes, const std::vector<Bytes>& all) {
  const std::size_t at = bytes.empty() ? 0 : rng.below(bytes.size());
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  switch (rng.below(6)) {
    case 0:
      if (!bytes.empty()) bytes[at] ^= static_cast<std::uint8_t>(1U << rng.below(8));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<std::uint8_t>(rng.next());
      break;
    case 2:
      bytes.resize(at);
      break;
    case 3:
      bytes.insert(begin, 1 + rng.below(16), static_cast<std::uint8_t>(rng.next()));
      break;
    case 4: {  // an integer at the edge of its range
      const std::uint64_t value = kInteresting[rng.below(kInteresting.size())];
      const std::size_t width = std::size_t{1} << rng.below(4);
      for (std::size_t i = 0; i < width && at + i < bytes.size(); ++i) {
        bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
      }
      break;
    }
    default: {  // the rest of another input
      const Bytes& other = all[rng.below(all.size())];
      if (other.empty()) break;
      const auto from = static_cast<std::ptrdiff_t>(rng.below(other.size()));
      bytes.resize(at);
      bytes.insert(bytes.end(), other.begin() + from, other.end());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  if (paths.empty()) {
    std::fprintf(stderr, "no inputs: give folders of them\n");
    return 1;
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> inputs;
  for (const auto& path : paths) inputs.push_back(read_file(path));
  run({});
  Rng rng(0x5eed);
  for (const Bytes& input : inputs) {
    run(input);
    for (int i = 0; i < kMutationsPerFile; ++i) {
      Bytes mutated = input;
      for (std::uint64_t n = 1 + rng.below(5); n > 0; --n) mutate_once(rng, mutated, inputs);
      run(mutated);
    }
  }
  std::printf("%zu inputs, %d mutations of each\n", inputs.size(), kMutationsPerFile);
  return 0;
}
