#include "common/base/files.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "common/base/check.h"

namespace archipelago {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}
UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}
MappedFile::~MappedFile() {
  if (data_ != nullptr && size_ > 0) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const int err = errno;
    Error error = errno_error("open " + path.string(), err);
    if (err == ENOENT) error.kind = ErrorKind::kNotFound;
    return fail(error);
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail(errno_error("stat " + path.string(), errno));
  MappedFile file;
  file.size_ = static_cast<std::size_t>(info.st_size);
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    file.size_ = 0;
    return fail(errno_error("mmap " + path.string(), errno));
  }
  file.data_ = static_cast<const std::byte*>(data);
  return file;
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "archipelago-XXXXXX").string();
  ARCH_CHECK(::mkdtemp(pattern.data()) != nullptr, << "mkdtemp " << pattern);
  path_ = pattern;
}
TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const int err = errno;
    Error error = errno_error("open " + path.string(), err);
    if (err == ENOENT) error.kind = ErrorKind::kNotFound;
    return fail(error);
  }
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(errno_error("read " + path.string(), errno));
    if (got == 0) return content;
    if (content.size() + static_cast<std::size_t>(got) > max_bytes)
      return fail(ErrorKind::kTooLarge,
                  path.string() + " is larger than " + std::to_string(max_bytes) + " bytes");
    content.append(buffer, static_cast<std::size_t>(got));
  }
}

Status write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail(errno_error("write", errno));
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Status fsync_folder(const std::filesystem::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0)
    return fail(errno_error("fsync " + folder.string(), errno));
  return {};
}

Status write_file_durably(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  auto abandon = [&](Error error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    return fail(error.with_context(path.string()));
  };
  {
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd.valid()) return abandon(errno_error("open", errno));
    if (auto done = write_all(fd.get(), std::as_bytes(std::span(content))); !done)
      return abandon(done.error());
    if (::fsync(fd.get()) != 0) return abandon(errno_error("fsync", errno));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return abandon(errno_error("rename", errno));
  return fsync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

}  // namespace archipelago
