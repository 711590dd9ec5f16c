#pragma once
// A run's weights as a model folder (protocol.md §9): model.safetensors with the tensors' own
// names, and the assets (config.json, tokenizer) as the first learner brought them.
#include <filesystem>

#include "common/base/result.h"
#include "common/diloco/layout.h"
#include "outer-optimizer/store/checkpoint.h"
#include "outer-optimizer/store/fragment_store.h"

namespace archipelago::outer {

// The published copy of every fragment. The folder is made if missing; files are replaced durably.
[[nodiscard]] Status export_model(const std::filesystem::path& folder, const diloco::Layout& layout,
                                  const FragmentStore& fragments, const Assets& assets);

}  // namespace archipelago::outer
