#include "outer-optimizer/relay.h"

#include <cerrno>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace archipelago::outer {

Result<std::unique_ptr<RelaySpool>> RelaySpool::open(std::filesystem::path folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorKind::kIo, "folder " + folder.string() + ": " + error.message());
  std::string left;
  std::filesystem::file_time_type newest;
  std::vector<std::filesystem::path> others;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto time = entry.last_write_time(error);
    const bool state = entry.path().extension() == ".state" && entry.is_regular_file(error);
    const std::string id = entry.path().stem().string();
    if (state && is_left_behind(id) && !id.ends_with(".part") && (left.empty() || time > newest)) {
      if (!left.empty()) others.push_back(folder / (left + ".state"));
      left = id;
      newest = time;
    } else {
      others.push_back(entry.path());
    }
  }
  for (const auto& path : others) std::filesystem::remove_all(path, error);
  std::unique_ptr<RelaySpool> out(new RelaySpool(std::move(folder)));
  if (!left.empty()) out->entries_[left] = {true, SystemClock().now()};
  return out;
}

std::string RelaySpool::left_behind() {
  std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_)
    if (entry.complete && is_left_behind(id)) return id;
  return "";
}

void RelaySpool::forget_older(const std::string& left_id) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!is_left_behind(it->first) || it->first == left_id || !it->second.complete) {
      ++it;
      continue;
    }
    std::error_code error;
    std::filesystem::remove(path_of(it->first), error);  // who reads it has it mapped
    it = entries_.erase(it);
  }
}

Status RelaySpool::put(const std::string& id, http::BodyReader& body) {
  {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find(id);
    if (it != entries_.end() && it->second.complete) return {};
    if (it != entries_.end())
      return fail(ErrorKind::kConflict, "relay " + id + " is being sent by another request");
    if (entries_.size() >= kMaxRelays) return fail(ErrorKind::kUnavailable, "too many relays");
    entries_[id] = {false, SystemClock().now()};
  }
  Status received = receive(id, body);
  std::error_code error;
  if (received) {
    std::filesystem::rename(path_of(id + ".part"), path_of(id), error);
    if (error) received = fail(ErrorKind::kIo, "relay " + id + ": " + error.message());
  }
  if (!received) std::filesystem::remove(path_of(id + ".part"), error);
  std::lock_guard lock(mutex_);
  if (received) {
    entries_[id] = {true, SystemClock().now()};
    if (is_left_behind(id)) forget_older(id);
  } else {
    entries_.erase(id);
  }
  changed_.notify_all();
  return received;
}

Status RelaySpool::receive(const std::string& id, http::BodyReader& body) {
  const std::filesystem::path path = path_of(id + ".part");
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return fail(errno_error("open " + path.string(), errno));
  std::vector<std::byte> piece(std::size_t{1} << 20);
  while (body.remaining() > 0) {
    ARCH_TRY(const std::size_t n, body.read(piece));
    ARCH_TRY_VOID(write_all(fd.get(), std::span<const std::byte>(piece).first(n)));
  }
  if (is_left_behind(id) && ::fsync(fd.get()) != 0)
    return fail(errno_error("fsync " + path.string(), errno));
  return {};
}

Result<http::SharedBytes> RelaySpool::get(const std::string& id, Duration wait) {
  {
    std::unique_lock lock(mutex_);
    const auto complete = [&] {
      const auto it = entries_.find(id);
      return stopping_ || (it != entries_.end() && it->second.complete);
    };
    if (!changed_.wait_for(lock, wait, complete) || stopping_) {
      return fail(ErrorKind::kNotFound, "relay " + id + " has no complete state yet");
    }
  }
  ARCH_TRY(auto mapped, MappedFile::open(path_of(id)));
  auto owner = std::make_shared<const MappedFile>(std::move(mapped));
  const auto bytes = owner->bytes();
  return http::SharedBytes{std::move(owner), bytes};
}

void RelaySpool::expire(Duration age) {
  const TimePoint limit = SystemClock().now() - age;
  std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!it->second.complete || it->second.since > limit || is_left_behind(it->first)) {
      ++it;
      continue;
    }
    std::error_code error;
    std::filesystem::remove(path_of(it->first), error);
    it = entries_.erase(it);
  }
}

void RelaySpool::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

}  // namespace archipelago::outer
