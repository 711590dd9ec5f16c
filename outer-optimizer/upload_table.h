#pragma once
// Complete uploads of open rounds, encoded as they came, and the memory that they and those in
// flight take (protocol.md §3: bounded, all-or-nothing). Thread-safe.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/result.h"
#include "common/codec/codec.h"
#include "common/diloco/messages.h"
#include "outer-optimizer/store/buffer.h"

namespace archipelago::outer {

struct StoredUpload {
  Buffer payload;
  codec::Codec codec = codec::Codec::kInt4;
  std::vector<double> norm2;  // of each tensor
  diloco::Counters counters;
  std::uint64_t bytes = 0;  // of the whole frame, for the books
};
using UploadPtr = std::shared_ptr<const StoredUpload>;

// Memory of one upload, given back by its owner's end, whatever that end is.
class UploadBudget;
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept : budget_(other.budget_), bytes_(other.bytes_) {
    other.budget_ = nullptr;
  }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

 private:
  friend class UploadBudget;
  Reservation(UploadBudget* budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {}
  UploadBudget* budget_ = nullptr;
  std::uint64_t bytes_ = 0;
};

class UploadBudget {
 public:
  void set_limit(std::uint64_t bytes);
  // kUnavailable (429) when the limit would be passed.
  [[nodiscard]] Result<Reservation> take(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t used() const;

 private:
  friend class Reservation;
  void give(std::uint64_t bytes);
  mutable std::mutex mutex_;
  std::uint64_t limit_ = 0;
  std::uint64_t used_ = 0;
};

class UploadTable {
 public:
  [[nodiscard]] UploadBudget& budget() { return budget_; }
  // The first complete one under a key stays.
  void put(const diloco::UploadKey& key, StoredUpload upload, Reservation memory);
  [[nodiscard]] UploadPtr find(const diloco::UploadKey& key) const;  // null: not here
  void drop(const diloco::UploadKey& key);
  [[nodiscard]] std::size_t size() const;

 private:
  struct Held {
    StoredUpload upload;
    Reservation memory;
  };
  using Order = std::tuple<std::int64_t, std::string, std::int64_t, std::string, std::int32_t>;
  static Order order(const diloco::UploadKey& key);

  UploadBudget budget_;
  mutable std::mutex mutex_;
  std::map<Order, std::shared_ptr<const Held>> held_;  // bounded by the budget
};

}  // namespace archipelago::outer
