#pragma once
// A run's weights as a model folder (protocol.md §9): model.safetensors with the tensors' own
// names, and the assets (config.json, tokenizer) as the first learner brought them.
#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/diloco/layout.h"
#include "outer-optimizer/store/checkpoint.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::outer {

// The pieces of each tensor, in order (one but where a tensor is cut), out of whole fragments.
struct TensorPiece {
  std::size_t fragment = 0;
  std::span<const float> values;
};
[[nodiscard]] std::vector<std::vector<TensorPiece>> tensor_pieces(
    const diloco::Layout& layout, const diloco::Fragmentation& fragmentation,
    std::span<const std::span<const float>> fragments);

// The published copy of every fragment. The folder is made if missing; files are replaced durably.
[[nodiscard]] Status export_model(const std::filesystem::path& folder, const diloco::Layout& layout,
                                  const FragmentStore& fragments, const Assets& assets);

}  // namespace archipelago::outer
