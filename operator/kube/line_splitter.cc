#include "operator/kube/line_splitter.h"

namespace archipelago::op::kube {

bool LineSplitter::feed(std::string_view chunk,
                        const std::function<bool(std::string_view)>& on_line) {
  while (!chunk.empty()) {
    const std::size_t end = chunk.find('\n');
    const std::string_view piece = chunk.substr(0, end);
    chunk.remove_prefix(end == std::string_view::npos ? chunk.size() : end + 1);
    if (!skipping_ && partial_.size() + piece.size() > max_line_) {
      skipping_ = true;
      ++skipped_;
      partial_ = std::string();  // gives the memory back
    }
    if (end == std::string_view::npos) {
      if (!skipping_) partial_.append(piece);
      return true;
    }
    if (skipping_) {
      skipping_ = false;
      continue;
    }
    // Most lines come whole: no copy for them.
    std::string joined;
    std::string_view line = piece;
    if (!partial_.empty()) {
      joined = std::move(partial_);
      partial_.clear();
      joined.append(piece);
      line = joined;
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !on_line(line)) return false;
  }
  return true;
}

}  // namespace archipelago::op::kube
