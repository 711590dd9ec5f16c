#include "learner/data.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <xxhash.h>

namespace archipelago::learner {
namespace {

std::uint64_t token_bytes(config::DataFormat format) {
  switch (format) {
    case config::DataFormat::kText:
      return 1;
    case config::DataFormat::kTokensU16:
      return 2;
    case config::DataFormat::kTokensU32:
      return 4;
  }
  return 1;
}

std::int64_t token_at(const std::byte* data, config::DataFormat format, std::uint64_t i) {
  if (format == config::DataFormat::kText) return std::to_integer<std::int64_t>(data[i]);
  if (format == config::DataFormat::kTokensU16) {
    std::uint16_t token = 0;
    std::memcpy(&token, data + 2 * i, 2);
    return token;
  }
  std::uint32_t token = 0;
  std::memcpy(&token, data + 4 * i, 4);
  return token;
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::filesystem::path& path, config::DataFormat format,
                                  std::int64_t context_length, std::int64_t vocab_size) {
  TokenFile out;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return fail(ErrorKind::kNotFound, "data file " + path.string() + " does not exist");
  if (!std::filesystem::is_regular_file(path, ignored))
    return fail(ErrorKind::kInvalid, "data file " + path.string() + " is not a regular file");
  auto file = MappedFile::open(path);
  if (!file) return fail(file.error().with_context("data file"));
  out.file_ = std::move(*file);
  out.name_ = path.string();
  out.format_ = format;
  out.context_ = context_length;
  out.vocab_ = vocab_size;
  const std::uint64_t size = out.file_.bytes().size();
  if (size % token_bytes(format) != 0)
    return fail(ErrorKind::kInvalid, "data file " + out.name_ + " has " + std::to_string(size) +
                                         " bytes, not a multiple of " +
                                         std::to_string(token_bytes(format)));
  out.tokens_ = size / token_bytes(format);
  const auto context = static_cast<std::uint64_t>(context_length);
  if (out.tokens_ < context + 1)
    return fail(ErrorKind::kInvalid,
                "data file " + out.name_ + " has " + std::to_string(out.tokens_) +
                    " tokens, shorter than one sequence of " + std::to_string(context + 1));
  out.sequences_ = (out.tokens_ - 1) / context;
  return out;
}

Status TokenFile::read(std::uint64_t sequence, std::span<std::int32_t> out) const {
  const auto context = static_cast<std::uint64_t>(context_);
  if (sequence >= sequences_ || out.size() != context + 1)
    return fail(ErrorKind::kInvalid, "data file " + name_ + " has " + std::to_string(sequences_) +
                                         " sequences of " + std::to_string(context) +
                                         ", asked for number " + std::to_string(sequence));
  const std::byte* data = file_.bytes().data();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t token = token_at(data, format_, sequence * context + i);
    if (token >= vocab_)
      return fail(ErrorKind::kInvalid,
                  "data file " + name_ + ": token " + std::to_string(token) + " at position " +
                      std::to_string(sequence * context + i) + " is not below model.vocabSize " +
                      std::to_string(vocab_));
    out[i] = static_cast<std::int32_t>(token);
  }
  return {};
}

std::string TokenFile::digest() const {
  constexpr std::size_t kEdge = std::size_t{1} << 20;
  const auto bytes = file_.bytes();
  const auto head = bytes.first(std::min(kEdge, bytes.size()));
  const auto tail = bytes.last(std::min(kEdge, bytes.size()));
  const std::array<std::uint64_t, 5> facts = {
      static_cast<std::uint64_t>(format_), tokens_, static_cast<std::uint64_t>(context_),
      XXH3_64bits(head.data(), head.size()), XXH3_64bits(tail.data(), tail.size())};
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(facts.data(), sizeof facts)));
  return text.data();
}

}  // namespace archipelago::learner
