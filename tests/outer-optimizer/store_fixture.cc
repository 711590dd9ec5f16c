#include "tests/outer-optimizer/store_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "common/base/check.h"
#include "outer-optimizer/store/little_endian.h"

namespace archipelago::outer {
namespace fs = std::filesystem;

FastDir::FastDir() {
  std::error_code ignored;
  const fs::path memory = "/dev/shm";
  const fs::path parent = fs::is_directory(memory, ignored) ? memory : fs::temp_directory_path();
  std::string pattern = (parent / "archipelago-store-XXXXXX").string();
  ARCH_CHECK(::mkdtemp(pattern.data()) != nullptr, << pattern);
  path_ = pattern;
}
FastDir::~FastDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}
void FastDir::clear() const {
  for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
}

diloco::Layout make_layout(const std::vector<std::int64_t>& sizes) {
  std::vector<diloco::Tensor> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    diloco::Tensor t;
    t.name = i == 0 ? "embed" : "w" + std::to_string(i);
    t.shape = {sizes[i]};
    t.merge_class = i == 0 ? diloco::MergeClass::kEmbedding : diloco::MergeClass::kOther;
    tensors.push_back(t);
  }
  return diloco::Layout::create(std::move(tensors)).value();
}

std::vector<float> random_floats(Rng& rng, std::int64_t elements, double scale) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& v : values) v = static_cast<float>(scale * rng.normal());
  return values;
}

Upload encode_upload(const diloco::Fragment& fragment, std::span<const float> gradient,
                     codec::Codec codec) {
  Upload upload;
  upload.codec = codec;
  const auto offsets = payload_offsets(fragment, codec);
  upload.payload.resize(offsets.back());
  for (std::size_t i = 0; i < fragment.tensors.size(); ++i) {
    const auto& t = fragment.tensors[i];
    const auto part =
        gradient.subspan(static_cast<std::size_t>(t.offset), static_cast<std::size_t>(t.elements));
    const auto out = std::span(upload.payload).subspan(offsets[i], offsets[i + 1] - offsets[i]);
    ARCH_CHECK(codec::encode(codec, part, out).has_value());
  }
  PayloadValidator validator(fragment, codec);
  ARCH_CHECK(validator.advance(upload.payload).has_value() && validator.complete());
  upload.norm2 = validator.norm2();
  return upload;
}

Upload random_upload(const diloco::Fragment& fragment, Rng& rng, codec::Codec codec, double scale) {
  Upload upload = encode_upload(fragment, random_floats(rng, fragment.elements, scale), codec);
  upload.steps = 1 + static_cast<std::int64_t>(rng.below(30));
  upload.tokens = upload.steps * (100 + static_cast<std::int64_t>(rng.below(900)));
  return upload;
}

std::vector<float> decode_upload(const diloco::Fragment& fragment, const Upload& upload) {
  std::vector<float> values(static_cast<std::size_t>(fragment.elements));
  const auto offsets = payload_offsets(fragment, upload.codec);
  for (std::size_t i = 0; i < fragment.tensors.size(); ++i) {
    const auto& t = fragment.tensors[i];
    const auto out = std::span(values).subspan(static_cast<std::size_t>(t.offset),
                                               static_cast<std::size_t>(t.elements));
    const auto in =
        std::span<const std::byte>(upload.payload).subspan(offsets[i], offsets[i + 1] - offsets[i]);
    ARCH_CHECK(codec::decode(upload.codec, in, out).has_value());
  }
  return values;
}

void follow(const diloco::Fragment& fragment, const Frame& frame, std::vector<float>* base) {
  if (frame.keyframe() && frame.codec == codec::Codec::kFp32) {
    const auto values = frame.payload->floats();
    base->assign(values.begin(), values.end());
    return;
  }
  if (frame.keyframe()) base->assign(static_cast<std::size_t>(fragment.elements), 0.0F);
  const auto offsets = payload_offsets(fragment, frame.codec);
  ARCH_CHECK(frame.payload->size() == offsets.back());
  for (std::size_t i = 0; i < fragment.tensors.size(); ++i) {
    const auto& t = fragment.tensors[i];
    std::vector<float> delta(static_cast<std::size_t>(t.elements));
    const auto in = frame.payload->bytes().subspan(offsets[i], offsets[i + 1] - offsets[i]);
    ARCH_CHECK(codec::decode(frame.codec, in, delta).has_value());
    for (std::size_t k = 0; k < delta.size(); ++k)
      (*base)[static_cast<std::size_t>(t.offset) + k] += delta[k];
  }
}

std::uint64_t fingerprint(const FragmentStore& store) {
  Checksum checksum;
  for (std::int32_t i = 0; i < store.fragmentation().count(); ++i) {
    const FragmentId p(i);
    checksum.add(static_cast<std::uint64_t>(store.version(p).value));
    checksum.add(std::as_bytes(store.master(p)));
    checksum.add(std::as_bytes(store.momentum(p)));
    checksum.add(store.published(p)->bytes());
  }
  return checksum.value();
}

Status FaultyFiles::step() {
  if (spent.fetch_add(1) < budget) return {};
  return fail(ErrorKind::kIo, "power is off");
}
Result<UniqueFd> FaultyFiles::open(const fs::path& path) {
  ARCH_TRY_VOID(step());
  return FileOps::open(path);
}
Status FaultyFiles::write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  const std::int64_t before = spent.fetch_add(static_cast<std::int64_t>(bytes.size()));
  const std::int64_t left =
      std::clamp<std::int64_t>(budget - before, 0, static_cast<std::int64_t>(bytes.size()));
  ARCH_TRY_VOID(FileOps::write_at(fd, bytes.first(static_cast<std::size_t>(left)), offset));
  if (std::cmp_less(left, bytes.size())) return fail(ErrorKind::kIo, "power is off");
  return {};
}
Status FaultyFiles::preallocate(int fd, std::uint64_t size) {
  ARCH_TRY_VOID(step());
  if (full) return fail(ErrorKind::kNoSpace, "no space left");
  return FileOps::preallocate(fd, size);
}
Status FaultyFiles::truncate(int fd, std::uint64_t size) {
  ARCH_TRY_VOID(step());
  return FileOps::truncate(fd, size);
}
Status FaultyFiles::sync(int fd) {
  ARCH_TRY_VOID(step());
  return FileOps::sync(fd);
}
Status FaultyFiles::sync_folder(const fs::path& folder) {
  ARCH_TRY_VOID(step());
  return FileOps::sync_folder(folder);
}
Status FaultyFiles::rename(const fs::path& from, const fs::path& to) {
  ARCH_TRY_VOID(step());
  return FileOps::rename(from, to);
}
Status FaultyFiles::remove_all(const fs::path& path) {
  ARCH_TRY_VOID(step());
  return FileOps::remove_all(path);
}
Status FaultyFiles::make_folder(const fs::path& path) {
  ARCH_TRY_VOID(step());
  return FileOps::make_folder(path);
}

}  // namespace archipelago::outer
