#include "outer-optimizer/store/file_ops.h"

#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace archipelago::outer {
namespace {

Result<off_t> to_offset(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
    return fail(ErrorKind::kTooLarge, "file offset " + std::to_string(value));
  return static_cast<off_t>(value);
}

}  // namespace

Result<UniqueFd> FileOps::open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return fail(errno_error("open " + path.string(), errno));
  return fd;
}

Status FileOps::write_at(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  ARCH_TRY(off_t at, to_offset(offset));
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), at);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail(errno_error("write", errno));
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    at += put;
  }
  return {};
}

Status FileOps::preallocate(int fd, std::uint64_t size) {
  ARCH_TRY(const off_t length, to_offset(size));
  const int error = ::posix_fallocate(fd, 0, length);
  if (error != 0) return fail(errno_error("reserve " + std::to_string(size) + " bytes", error));
  return {};
}

Status FileOps::truncate(int fd, std::uint64_t size) {
  ARCH_TRY(const off_t length, to_offset(size));
  if (::ftruncate(fd, length) != 0) return fail(errno_error("truncate", errno));
  return {};
}

Status FileOps::sync(int fd) {
  if (::fdatasync(fd) != 0) return fail(errno_error("fdatasync", errno));
  return {};
}

Status FileOps::sync_folder(const std::filesystem::path& folder) { return fsync_folder(folder); }

Status FileOps::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    return fail(errno_error("rename " + from.string() + " to " + to.string(), errno));
  return {};
}

Status FileOps::remove_all(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return fail(ErrorKind::kIo, "remove " + path.string() + ": " + error.message());
  return {};
}

Status FileOps::make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return fail(errno_error("create " + path.string(), error.value()));
  return {};
}

Status read_at(int fd, std::span<std::byte> out, std::uint64_t offset) {
  ARCH_TRY(off_t at, to_offset(offset));
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(errno_error("read", errno));
    if (got == 0) return fail(ErrorKind::kCorrupt, "file ends early");
    out = out.subspan(static_cast<std::size_t>(got));
    at += got;
  }
  return {};
}

}  // namespace archipelago::outer
