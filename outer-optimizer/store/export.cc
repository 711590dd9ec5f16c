#include "outer-optimizer/store/export.h"

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/files.h"
#include "common/wire/safetensors.h"
#include "outer-optimizer/store/store.h"

namespace archipelago::outer {
namespace fs = std::filesystem;

std::vector<std::vector<TensorPiece>> tensor_pieces(
    const diloco::Layout& layout, const diloco::Fragmentation& fragmentation,
    std::span<const std::span<const float>> fragments) {
  std::vector<std::vector<std::pair<std::int64_t, TensorPiece>>> found(layout.tensors().size());
  for (std::size_t p = 0; p < fragments.size(); ++p)
    for (const auto& part : fragmentation.fragments()[p].tensors)
      found[part.index].emplace_back(
          part.begin,
          TensorPiece{p, fragments[p].subspan(static_cast<std::size_t>(part.offset),
                                              static_cast<std::size_t>(part.elements))});
  std::vector<std::vector<TensorPiece>> out;
  for (auto& pieces : found) {
    std::sort(pieces.begin(), pieces.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    out.emplace_back();
    for (auto& [begin, piece] : pieces) out.back().push_back(piece);
  }
  return out;
}

Status export_model(const fs::path& folder, const diloco::Layout& layout,
                    const FragmentStore& fragments, const Assets& assets) {
  ARCH_TRY_VOID(check_assets(assets));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return fail(errno_error("create " + folder.string(), error.value()));
  std::vector<std::span<const float>> published;
  std::vector<SharedBuffer> keep;  // what these look into
  for (std::int32_t i = 0; i < fragments.fragmentation().count(); ++i) {
    keep.push_back(fragments.published(FragmentId(i)));
    published.push_back(keep.back()->floats());
  }
  const auto& tensors = layout.tensors();
  const auto pieces = tensor_pieces(layout, fragments.fragmentation(), published);
  std::vector<wire::SafeTensorView> views(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    views[i] = {tensors[i].name, tensors[i].shape, pieces[i].front().values};
    for (std::size_t k = 1; k < pieces[i].size(); ++k) views[i].more.push_back(pieces[i][k].values);
  }
  ARCH_TRY_VOID(wire::write_safetensors(folder / "model.safetensors", views));
  for (const auto& [name, content] : assets)
    ARCH_TRY_VOID(write_file_durably(folder / name, content));
  return {};
}

Status export_checkpoint(const fs::path& run_folder, GlobalStep step, const fs::path& out) {
  const fs::path checkpoints = run_folder / "checkpoints";
  ARCH_TRY(const CheckpointInfo info, read_checkpoint_info(checkpoints, step));
  ARCH_TRY(const auto fragmentation,
           diloco::Fragmentation::create(info.layout, info.fragments, info.scheme));
  ARCH_TRY(const auto fragments,
           FragmentStore::create(info.layout, fragmentation, 1, info.published_bf16));
  ARCH_TRY_VOID(read_checkpoint_tensors(checkpoints, info, *fragments));
  return export_model(out, info.layout, *fragments, info.assets);
}

}  // namespace archipelago::outer
