#pragma once
// Inner optimizer state on its way from a donor to a newcomer (protocol.md §6): the donor's bytes
// are spooled to a file under the data folder and served from there, so a slow newcomer holds no
// memory and may fetch again. Thread-safe.
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/result.h"
#include "common/http/server.h"

namespace archipelago::outer {

class RelaySpool {
 public:
  static constexpr std::size_t kMaxRelays = 64;
  [[nodiscard]] static bool is_left_behind(const std::string& id) {
    return id.starts_with("left-");
  }

  // Relays do not outlive a process; what a learner left behind ("left-...", the newest) does.
  [[nodiscard]] static Result<std::unique_ptr<RelaySpool>> open(std::filesystem::path folder);

  // Reads the whole body; a complete one under the same id stays. kUnavailable: kMaxRelays are
  // there.
  [[nodiscard]] Status put(const std::string& id, http::BodyReader& body);
  // Waits up to `wait` for it to be complete. kNotFound: not (yet) here.
  [[nodiscard]] Result<http::SharedBytes> get(const std::string& id, Duration wait);
  // Older than `age`: gone. Called now and then.
  void expire(Duration age);
  void stop();                              // waiting gets end
  [[nodiscard]] std::string left_behind();  // its id; empty: nothing

 private:
  struct Entry {
    bool complete = false;
    TimePoint since;
  };
  explicit RelaySpool(std::filesystem::path folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::filesystem::path path_of(const std::string& id) const {
    return folder_ / (id + ".state");
  }
  [[nodiscard]] Status receive(const std::string& id, http::BodyReader& body);
  void forget_older(const std::string& left_id);  // mutex_ held

  std::filesystem::path folder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry>
      entries_;  // ids are names that the server checked; at most kMaxRelays
  bool stopping_ = false;
};

}  // namespace archipelago::outer
