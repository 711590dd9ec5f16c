#pragma once
// The handful of file operations that durability rests on, as a port: tests cut the power after any
// byte of any write and fill the disk (protocol.md §2.8).
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "common/base/files.h"
#include "common/base/result.h"

namespace archipelago::outer {

class FileOps {
 public:
  virtual ~FileOps() = default;
  // Read-write, created if missing.
  [[nodiscard]] virtual Result<UniqueFd> open(const std::filesystem::path& path);
  [[nodiscard]] virtual Status write_at(int fd, std::span<const std::byte> bytes,
                                        std::uint64_t offset);
  // Reserves the blocks of [0, size) and makes the file that long; kNoSpace when they are not
  // there.
  [[nodiscard]] virtual Status preallocate(int fd, std::uint64_t size);
  [[nodiscard]] virtual Status truncate(int fd, std::uint64_t size);
  [[nodiscard]] virtual Status sync(int fd);
  [[nodiscard]] virtual Status sync_folder(const std::filesystem::path& folder);
  [[nodiscard]] virtual Status rename(const std::filesystem::path& from,
                                      const std::filesystem::path& to);
  [[nodiscard]] virtual Status remove_all(const std::filesystem::path& path);
  [[nodiscard]] virtual Status make_folder(const std::filesystem::path& path);
};

// Reads are never injected: recovery sees what is on the disk.
[[nodiscard]] Status read_at(int fd, std::span<std::byte> out, std::uint64_t offset);

}  // namespace archipelago::outer
