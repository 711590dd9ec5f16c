#pragma once
// What the store's tests share: a small model, made-up uploads, a disk that fails on request.
#include <atomic>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/files.h"
#include "common/base/rng.h"
#include "common/codec/codec.h"
#include "common/diloco/fragmentation.h"
#include "common/diloco/layout.h"
#include "outer-optimizer/store/file_ops.h"
#include "outer-optimizer/store/fragment_store.h"
#include "outer-optimizer/store/payload.h"

namespace archipelago::outer {

// A folder in memory where the machine has one: thousands of syncs a second.
class FastDir {
 public:
  FastDir();
  ~FastDir();
  FastDir(const FastDir&) = delete;
  FastDir& operator=(const FastDir&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void clear() const;

 private:
  std::filesystem::path path_;
};

// "embed" is the embedding, "w<i>" the others, sizes as given.
[[nodiscard]] diloco::Layout make_layout(const std::vector<std::int64_t>& sizes);
[[nodiscard]] std::vector<float> random_floats(Rng& rng, std::int64_t elements, double scale);

struct Upload {
  std::vector<std::byte> payload;
  std::vector<double> norm2;
  codec::Codec codec = codec::Codec::kInt4;
  std::int64_t tokens = 4096;
  std::int64_t steps = 4;
  [[nodiscard]] MergeInput input() const { return {payload, codec, tokens, steps, norm2}; }
};
[[nodiscard]] Upload encode_upload(const diloco::Fragment& fragment,
                                   std::span<const float> gradient, codec::Codec codec);
[[nodiscard]] Upload random_upload(const diloco::Fragment& fragment, Rng& rng, codec::Codec codec,
                                   double scale = 1e-2);
[[nodiscard]] std::vector<float> decode_upload(const diloco::Fragment& fragment,
                                               const Upload& upload);

// A learner's copy of one fragment, moved on by frames as the learner's daemon does it.
void follow(const diloco::Fragment& fragment, const Frame& frame, std::vector<float>* base);

// xxh3 over master, momentum, published and version of every fragment.
[[nodiscard]] std::uint64_t fingerprint(const FragmentStore& store);

// Loses power after `budget` units: a byte written is one unit, so is every other operation. From
// then on nothing reaches the disk. Or: no space, for as long as `full` says.
class FaultyFiles final : public FileOps {
 public:
  std::atomic<std::int64_t> budget{INT64_MAX};
  std::atomic<std::int64_t> spent{0};
  std::atomic<bool> full{false};

  Result<UniqueFd> open(const std::filesystem::path& path) override;
  Status write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) override;
  Status preallocate(int fd, std::uint64_t size) override;
  Status truncate(int fd, std::uint64_t size) override;
  Status sync(int fd) override;
  Status sync_folder(const std::filesystem::path& folder) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status remove_all(const std::filesystem::path& path) override;
  Status make_folder(const std::filesystem::path& path) override;

 private:
  [[nodiscard]] Status step();
};

}  // namespace archipelago::outer
