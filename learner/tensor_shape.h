#pragma once
// A named tensor of the model and where it lies in the learner's flat parameter buffer.
#include <cstdint>
#include <string>
#include <vector>

namespace archipelago::learner {

struct TensorShape {
  std::string name;
  std::vector<std::int64_t> shape;
  bool embedding = false;   // merge class of protocol.md §5
  bool decays = true;       // AdamW's decay: not on norms, not on embeddings
  double init_std = 0;      // normal(0, std); 0: all init_value
  std::int64_t offset = 0;  // of its first element in the flat buffer
  std::int64_t elements = 0;
  bool hidden_matrix = false;  // Muon's, where that is the inner optimizer; the others are AdamW's
  float init_value = 1;        // where init_std is 0: norms 1, biases 0
};

// A piece of a tensor, or all of it: its place in the flat buffer.
struct TensorRange {
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  bool operator==(const TensorRange&) const = default;
};

[[nodiscard]] inline std::int64_t total_elements(const std::vector<TensorShape>& shapes) {
  return shapes.empty() ? 0 : shapes.back().offset + shapes.back().elements;
}

}  // namespace archipelago::learner
