#pragma once
// Training and validation data: one file, memory-mapped; text as bytes (a token a byte) or
// little-endian u16 or u32 tokens. A file of n tokens has floor((n - 1) / context) sequences;
// sequence i is the context + 1 tokens from i·context on: inputs are the first `context`, targets
// the last, and neighbours share one token, so every token but the first is predicted exactly once.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "common/base/files.h"
#include "common/base/result.h"
#include "common/config/spec.h"

namespace archipelago::learner {

class TokenFile {
 public:
  // kNotFound, kIo or kInvalid (shorter than one sequence, odd size), in one line that names the
  // file.
  [[nodiscard]] static Result<TokenFile> open(const std::filesystem::path& path,
                                              config::DataFormat format,
                                              std::int64_t context_length, std::int64_t vocab_size);

  [[nodiscard]] std::uint64_t sequences() const { return sequences_; }
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  // out: context + 1 tokens. kInvalid when a token is not below the vocabulary size (the file is
  // read lazily, so only here), or the index is too high.
  [[nodiscard]] Status read(std::uint64_t sequence, std::span<std::int32_t> out) const;
  // Facts that don't depend on the path: format, tokens, context length and a checksum of first and
  // last MiB, as hex.
  [[nodiscard]] std::string digest() const;

 private:
  MappedFile file_;
  std::string name_;
  config::DataFormat format_ = config::DataFormat::kText;
  std::int64_t context_ = 0;
  std::int64_t vocab_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t sequences_ = 0;
};

}  // namespace archipelago::learner
