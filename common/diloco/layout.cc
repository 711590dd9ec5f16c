#include "common/diloco/layout.h"

#include <charconv>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include <openssl/evp.h>

#include "common/base/check.h"

namespace archipelago::diloco {
namespace {

constexpr std::string_view kHeader = "archipelago-layout 1";

LayoutDigest sha256(std::string_view text) {
  LayoutDigest digest;
  unsigned length = 0;
  const int ok =
      EVP_Digest(text.data(), text.size(), digest.bytes.data(), &length, EVP_sha256(), nullptr);
  ARCH_CHECK(ok == 1 && length == digest.bytes.size(), << "SHA-256 failed");
  return digest;
}

bool printable(std::string_view name) {
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7f) return false;
  }
  return true;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string tensor_text(const Tensor& t) {
  return std::string(to_string(t.merge_class)) + " " + t.name + " " + shape_text(t.shape);
}

Result<std::int64_t> count_elements(const Tensor& t) {
  if (t.shape.size() > kMaxRank)
    return fail(ErrorKind::kInvalid, "rank " + std::to_string(t.shape.size()) +
                                         "; allowed: at most " + std::to_string(kMaxRank));
  std::int64_t elements = 1;
  for (const std::int64_t dim : t.shape) {
    if (dim < 1)
      return fail(ErrorKind::kInvalid, "dimension " + std::to_string(dim) + "; allowed: 1 or more");
    if (__builtin_mul_overflow(elements, dim, &elements) || elements > kMaxElements)
      return fail(ErrorKind::kInvalid, "shape " + shape_text(t.shape) + " has more than " +
                                           std::to_string(kMaxElements) + " elements");
  }
  return elements;
}

Status check_name(const Tensor& t) {
  if (t.name.empty() || t.name.size() > kMaxTensorName)
    return fail(ErrorKind::kInvalid, "name of " + std::to_string(t.name.size()) +
                                         " bytes; allowed: 1 to " + std::to_string(kMaxTensorName));
  if (!printable(t.name)) return fail(ErrorKind::kInvalid, "name has a control character");
  return {};
}

// Reads a decimal up to the next space and steps over that space.
bool take_number(std::string_view* line, std::int64_t* out) {
  const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), *out);
  const auto used = static_cast<std::size_t>(end - line->data());
  if (error != std::errc{} || used == line->size() || (*line)[used] != ' ') return false;
  line->remove_prefix(used + 1);
  return true;
}

bool parse_line(std::string_view line, Tensor* out) {
  for (const MergeClass merge_class : {MergeClass::kOther, MergeClass::kEmbedding}) {
    const std::string prefix = std::string(to_string(merge_class)) + " ";
    if (!line.starts_with(prefix)) continue;
    line.remove_prefix(prefix.size());
    out->merge_class = merge_class;
    std::int64_t rank = 0;
    if (!take_number(&line, &rank) || rank < 0 || rank > static_cast<std::int64_t>(kMaxRank))
      return false;
    out->shape.resize(static_cast<std::size_t>(rank));
    for (auto& dim : out->shape)
      if (!take_number(&line, &dim)) return false;
    out->name = line;
    return true;
  }
  return false;
}

}  // namespace

std::string_view to_string(MergeClass merge_class) {
  switch (merge_class) {
    case MergeClass::kOther:
      return "other";
    case MergeClass::kEmbedding:
      return "embedding";
  }
  return "?";
}

std::string LayoutDigest::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t b : bytes) {
    text += kDigits[b >> 4];
    text += kDigits[b & 15];
  }
  return text;
}

Result<LayoutDigest> parse_digest(std::string_view hex) {
  LayoutDigest digest;
  if (hex.size() != 2 * digest.bytes.size())
    return fail(ErrorKind::kInvalid,
                "digest of " + std::to_string(hex.size()) + " characters; expected 64");
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) {
    const char* first = hex.data() + 2 * i;
    const auto [end, error] = std::from_chars(first, first + 2, digest.bytes[i], 16);
    if (error != std::errc{} || end != first + 2)
      return fail(ErrorKind::kInvalid, "digest is not hexadecimal");
  }
  if (digest.hex() != hex) return fail(ErrorKind::kInvalid, "digest is not lower-case hexadecimal");
  return digest;
}

Result<Layout> Layout::create(std::vector<Tensor> tensors) {
  if (tensors.empty() || tensors.size() > kMaxTensors)
    return fail(ErrorKind::kInvalid, "layout has " + std::to_string(tensors.size()) +
                                         " tensors; allowed: 1 to " + std::to_string(kMaxTensors));
  Layout layout;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Tensor& t = tensors[i];
    const std::string where = "tensor " + std::to_string(i);
    if (auto ok = check_name(t); !ok) return fail(ok.error().with_context(where));
    auto elements = count_elements(t);
    if (!elements) return fail(elements.error().with_context(where + " '" + t.name + "'"));
    if (!names.insert(t.name).second)
      return fail(ErrorKind::kInvalid, where + " '" + t.name + "': the name occurs twice");
    t.elements = *elements;
    t.offset = layout.elements_;
    layout.elements_ += t.elements;  // both at most 2^48
    if (layout.elements_ > kMaxElements)
      return fail(ErrorKind::kInvalid,
                  "layout has more than " + std::to_string(kMaxElements) + " elements at " + where);
  }
  layout.tensors_ = std::move(tensors);
  layout.digest_ = sha256(layout.to_text());
  return layout;
}

std::string Layout::to_text() const {
  std::ostringstream out;
  out << kHeader << '\n';
  for (const Tensor& t : tensors_) {
    out << to_string(t.merge_class) << ' ' << t.shape.size() << ' ';
    for (const std::int64_t dim : t.shape) out << dim << ' ';
    out << t.name << '\n';
  }
  return out.str();
}

Result<Layout> Layout::parse_text(std::string_view text) {
  std::vector<Tensor> tensors;
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos)
      return fail(ErrorKind::kInvalid, "layout: last line is not complete");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (first) {
      if (line != kHeader)
        return fail(ErrorKind::kUnsupported, "layout does not start with 'archipelago-layout 1'");
      first = false;
      continue;
    }
    if (tensors.size() == kMaxTensors)
      return fail(ErrorKind::kInvalid,
                  "layout has more than " + std::to_string(kMaxTensors) + " tensors");
    Tensor t;
    if (!parse_line(line, &t))
      return fail(ErrorKind::kInvalid,
                  "layout: line of tensor " + std::to_string(tensors.size()) + " is malformed");
    tensors.push_back(std::move(t));
  }
  return create(std::move(tensors));
}

std::string first_difference(const Layout& expected, const Layout& got) {
  const auto& a = expected.tensors();
  const auto& b = got.tensors();
  for (std::size_t i = 0; i < a.size() || i < b.size(); ++i) {
    if (i < a.size() && i < b.size() && a[i] == b[i]) continue;
    return "tensor " + std::to_string(i) + ": expected " +
           (i < a.size() ? tensor_text(a[i]) : "no more tensors") + ", got " +
           (i < b.size() ? tensor_text(b[i]) : "no more tensors");
  }
  return {};
}

}  // namespace archipelago::diloco
