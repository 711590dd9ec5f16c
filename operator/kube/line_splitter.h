#pragma once
// Lines out of a stream of chunks: a line may come in many pieces, a piece may have many lines.
// Lines end in \n or \r\n; empty ones are skipped; one beyond the limit is skipped whole, so that
// the stream goes on after it.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace archipelago::op::kube {

class LineSplitter {
 public:
  explicit LineSplitter(std::size_t max_line = std::size_t{8} << 20) : max_line_(max_line) {}

  // Calls on_line for each whole line; false from it ends the feeding and is returned.
  [[nodiscard]] bool feed(std::string_view chunk,
                          const std::function<bool(std::string_view)>& on_line);
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }  // lines beyond the limit
  [[nodiscard]] std::size_t buffered() const { return partial_.size(); }

 private:
  const std::size_t max_line_;
  std::string partial_;
  bool skipping_ = false;  // inside a line beyond the limit
  std::uint64_t skipped_ = 0;
};

}  // namespace archipelago::op::kube
