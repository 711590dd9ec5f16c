#pragma once
// safetensors files (8-byte little-endian header length, JSON header, then the tensors' bytes), the
// form in which models enter and leave: readable by Hugging Face without renaming. Reads F32, BF16
// and F16, always into fp32; writes F32 or BF16. Bounds: header at most 100 MB, as the reference
// implementation has it; offsets must tile the data exactly.
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/files.h"
#include "common/base/result.h"

namespace archipelago::wire {

enum class SafeDtype { kF32, kBf16, kF16 };

struct SafeTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major; empty = scalar
  SafeDtype dtype = SafeDtype::kF32;
  std::uint64_t begin = 0;  // byte range within the data part
  std::uint64_t end = 0;
};

struct SafeHeader {
  std::vector<SafeTensor> tensors;  // by name, as the JSON object orders them
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // where the data part starts in the file
};

// `head`: the file's first bytes, at least 8 + header length of them; `file_bytes`: the size of the
// whole file.
[[nodiscard]] Result<SafeHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                          std::uint64_t file_bytes);

struct SafeTensorView {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  // product(shape) elements with those of `more`, borrowed
  std::vector<std::span<const float>> more = {};  // where the tensor lies in pieces: the others
};

// What stands before the tensors' bytes, in the given order: length and header.
[[nodiscard]] Result<std::string> safetensors_head(
    std::span<const SafeTensorView> tensors,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
    SafeDtype dtype = SafeDtype::kF32);

// Writes PATH durably (temporary file, fsync, rename). Tensors keep the given order; names must be
// unique.
[[nodiscard]] Status write_safetensors(
    const std::filesystem::path& path, std::span<const SafeTensorView> tensors,
    const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
    SafeDtype dtype = SafeDtype::kF32);

class SafetensorsFile {
 public:
  [[nodiscard]] static Result<SafetensorsFile> open(const std::filesystem::path& path);
  [[nodiscard]] const std::vector<SafeTensor>& tensors() const { return header_.tensors; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const {
    return header_.metadata;
  }
  [[nodiscard]] const SafeTensor* find(std::string_view name) const;
  // Into `out`, whose size must be the tensor's element count.
  [[nodiscard]] Status read(const SafeTensor& tensor, std::span<float> out) const;
  [[nodiscard]] Result<std::vector<float>> read(std::string_view name) const;

 private:
  MappedFile file_;
  SafeHeader header_;
};

}  // namespace archipelago::wire
