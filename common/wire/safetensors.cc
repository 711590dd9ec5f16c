#include "common/wire/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

namespace archipelago::wire {
namespace {

using nlohmann::json;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kMaxElements = 1ULL << 48;  // no product of checked dimensions overflows

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian and copied as they are");

std::uint64_t item_bytes(SafeDtype dtype) { return dtype == SafeDtype::kF32 ? 4 : 2; }

const char* dtype_name(SafeDtype dtype) {
  switch (dtype) {
    case SafeDtype::kF32:
      return "F32";
    case SafeDtype::kBf16:
      return "BF16";
    case SafeDtype::kF16:
      return "F16";
  }
  return "F32";
}

Error corrupt(const std::string& what) {
  return Error{ErrorKind::kCorrupt, "safetensors: " + what};
}

Result<std::uint64_t> element_count(const std::string& name,
                                    const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return fail(corrupt("tensor '" + name + "' has a negative dimension"));
    if (dim != 0 && count > kMaxElements / static_cast<std::uint64_t>(dim))
      return fail(corrupt("tensor '" + name + "' has too many elements"));
    count *= static_cast<std::uint64_t>(dim);
  }
  return count;
}

Result<SafeDtype> parse_dtype(const std::string& name, const json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text == "F32") return SafeDtype::kF32;
  if (text == "BF16") return SafeDtype::kBf16;
  if (text == "F16") return SafeDtype::kF16;
  return fail(ErrorKind::kUnsupported,
              "safetensors: tensor '" + name + "' has dtype " + text + ", allowed: F32, BF16, F16");
}

Result<SafeTensor> parse_entry(const std::string& name, const json& value,
                               std::uint64_t data_bytes) {
  SafeTensor tensor;
  tensor.name = name;
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    return fail(corrupt("tensor '" + name + "' lacks dtype, shape or data_offsets"));
  ARCH_TRY(tensor.dtype, parse_dtype(name, value["dtype"]));
  if (!value["shape"].is_array() || value["shape"].size() > 16)
    return fail(corrupt("tensor '" + name + "': shape must be a list of at most 16 numbers"));
  for (const json& dim : value["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() > kMaxElements)
      return fail(corrupt("tensor '" + name + "': shape has " + dim.dump()));
    tensor.shape.push_back(dim.get<std::int64_t>());
  }
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    return fail(corrupt("tensor '" + name + "': data_offsets must be two numbers"));
  tensor.begin = offsets[0].get<std::uint64_t>();
  tensor.end = offsets[1].get<std::uint64_t>();
  std::uint64_t count = 0;
  ARCH_TRY(count, element_count(name, tensor.shape));
  if (tensor.begin > tensor.end || tensor.end > data_bytes ||
      tensor.end - tensor.begin != count * item_bytes(tensor.dtype))
    return fail(corrupt("tensor '" + name + "': data_offsets don't fit its shape or the file"));
  return tensor;
}

// The ranges must tile the data part: no overlap, no hole (what the reference reader demands, too).
Status check_tiling(std::vector<SafeTensor> tensors, std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.begin != at)
      return fail(corrupt("tensor '" + tensor.name + "' overlaps another or leaves a hole"));
    at = tensor.end;
  }
  if (at != data_bytes)
    return fail(corrupt("bytes after the last tensor, or the file is cut short"));
  return {};
}

float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fU;
  const std::uint32_t mantissa = h & 0x3ffU;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1.0p-24F;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t bits = exponent == 31 ? 0x7f800000U | (mantissa << 13)
                                            : ((exponent + 112U) << 23) | (mantissa << 13);
  return std::bit_cast<float>(sign | bits);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

Result<std::string> make_header(std::span<const SafeTensorView> tensors,
                                const std::map<std::string, std::string>& metadata,
                                SafeDtype dtype) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const SafeTensorView& tensor : tensors) {
    std::uint64_t count = 0;
    ARCH_TRY(count, element_count(tensor.name, tensor.shape));
    std::size_t given = tensor.values.size();
    for (const auto& piece : tensor.more) given += piece.size();
    if (count != given)
      return fail(ErrorKind::kInvalid, "safetensors: tensor '" + tensor.name + "' has " +
                                           std::to_string(given) + " values for a shape of " +
                                           std::to_string(count));
    if (tensor.name == "__metadata__" || header.contains(tensor.name))
      return fail(ErrorKind::kInvalid, "safetensors: tensor name '" + tensor.name + "' is taken");
    const std::uint64_t end = at + count * item_bytes(dtype);
    header[tensor.name] = {
        {"dtype", dtype_name(dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data part starts aligned
  return text;
}

Status write_values(int fd, std::span<const float> values, SafeDtype dtype) {
  if (dtype == SafeDtype::kF32) return write_all(fd, std::as_bytes(values));
  std::vector<std::uint16_t> piece;
  constexpr std::size_t kPiece = 1 << 18;
  for (std::size_t at = 0; at < values.size(); at += kPiece) {
    const auto part = values.subspan(at, std::min(kPiece, values.size() - at));
    piece.resize(part.size());
    std::transform(part.begin(), part.end(), piece.begin(), to_bf16);
    ARCH_TRY_VOID(write_all(fd, std::as_bytes(std::span(piece))));
  }
  return {};
}

}  // namespace

Result<SafeHeader> parse_safetensors_header(std::span<const std::byte> head,
                                            std::uint64_t file_bytes) {
  if (head.size() < 8) return fail(corrupt("shorter than its 8-byte length"));
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), 8);
  if (length > kMaxHeaderBytes || length > file_bytes - 8 || length > head.size() - 8)
    return fail(corrupt("header length " + std::to_string(length) + " exceeds the file or 100 MB"));
  const auto* text = reinterpret_cast<const char*>(head.data()) + 8;
  const json root = json::parse(text, text + length, nullptr, false);
  if (!root.is_object()) return fail(corrupt("header is not a JSON object"));
  SafeHeader header;
  header.data_begin = 8 + length;
  const std::uint64_t data_bytes = file_bytes - header.data_begin;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return fail(corrupt("__metadata__ is not an object"));
      for (const auto& [key, entry] : value.items())
        if (entry.is_string()) header.metadata[key] = entry.get<std::string>();
      continue;
    }
    SafeTensor tensor;
    ARCH_TRY(tensor, parse_entry(name, value, data_bytes));
    header.tensors.push_back(std::move(tensor));
  }
  ARCH_TRY_VOID(check_tiling(header.tensors, data_bytes));
  return header;
}

Result<std::string> safetensors_head(std::span<const SafeTensorView> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     SafeDtype dtype) {
  ARCH_TRY(const std::string header, make_header(tensors, metadata, dtype));
  const std::uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header;
}

Status write_safetensors(const std::filesystem::path& path, std::span<const SafeTensorView> tensors,
                         const std::map<std::string, std::string>& metadata, SafeDtype dtype) {
  if (dtype == SafeDtype::kF16)
    return fail(ErrorKind::kUnsupported, "safetensors: F16 is read, not written");
  ARCH_TRY(const std::string head, safetensors_head(tensors, metadata, dtype));
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return fail(errno_error("create " + temporary.string(), errno));
  ARCH_TRY_VOID(write_all(fd.get(), std::as_bytes(std::span(head))));
  for (const SafeTensorView& tensor : tensors) {
    ARCH_TRY_VOID(write_values(fd.get(), tensor.values, dtype));
    for (const auto& piece : tensor.more) ARCH_TRY_VOID(write_values(fd.get(), piece, dtype));
  }
  if (::fsync(fd.get()) != 0) return fail(errno_error("fsync " + temporary.string(), errno));
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return fail(errno_error("rename to " + path.string(), errno));
  return fsync_folder(path.parent_path().empty() ? "." : path.parent_path());
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile out;
  ARCH_TRY(out.file_, MappedFile::open(path));
  auto header = parse_safetensors_header(out.file_.bytes(), out.file_.bytes().size());
  if (!header) return fail(header.error().with_context(path.string()));
  out.header_ = std::move(*header);
  return out;
}

const SafeTensor* SafetensorsFile::find(std::string_view name) const {
  for (const SafeTensor& tensor : header_.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

Status SafetensorsFile::read(const SafeTensor& tensor, std::span<float> out) const {
  const auto bytes =
      file_.bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
  if (out.size() * item_bytes(tensor.dtype) != bytes.size())
    return fail(ErrorKind::kInvalid, "safetensors: tensor '" + tensor.name + "' has " +
                                         std::to_string(bytes.size() / item_bytes(tensor.dtype)) +
                                         " elements, the buffer " + std::to_string(out.size()));
  if (tensor.dtype == SafeDtype::kF32) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return {};
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t item = 0;
    std::memcpy(&item, bytes.data() + 2 * i, 2);
    out[i] = tensor.dtype == SafeDtype::kBf16
                 ? std::bit_cast<float>(static_cast<std::uint32_t>(item) << 16)
                 : half_to_float(item);
  }
  return {};
}

Result<std::vector<float>> SafetensorsFile::read(std::string_view name) const {
  const SafeTensor* tensor = find(name);
  if (tensor == nullptr)
    return fail(ErrorKind::kNotFound, "safetensors: no tensor '" + std::string(name) + "'");
  std::vector<float> out((tensor->end - tensor->begin) / item_bytes(tensor->dtype));
  ARCH_TRY_VOID(read(*tensor, out));
  return out;
}

}  // namespace archipelago::wire
