#include "outer-optimizer/store/export.h"

#include <memory>
#include <system_error>
#include <vector>

#include "common/base/files.h"
#include "common/wire/safetensors.h"
#include "outer-optimizer/store/store.h"

namespace archipelago::outer {
namespace fs = std::filesystem;

Status export_model(const fs::path& folder, const diloco::Layout& layout,
                    const FragmentStore& fragments, const Assets& assets) {
  ARCH_TRY_VOID(check_assets(assets));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return fail(errno_error("create " + folder.string(), error.value()));
  const auto& tensors = layout.tensors();
  std::vector<wire::SafeTensorView> views(tensors.size());
  std::vector<SharedBuffer> keep;  // what the views look into
  for (std::int32_t i = 0; i < fragments.fragmentation().count(); ++i) {
    const FragmentId p(i);
    keep.push_back(fragments.published(p));
    for (const auto& part : fragments.fragmentation()[p].tensors) {
      const auto values = keep.back()->floats().subspan(static_cast<std::size_t>(part.offset),
                                                        static_cast<std::size_t>(part.elements));
      views[part.index] = {tensors[part.index].name, tensors[part.index].shape, values};
    }
  }
  ARCH_TRY_VOID(wire::write_safetensors(folder / "model.safetensors", views));
  for (const auto& [name, content] : assets)
    ARCH_TRY_VOID(write_file_durably(folder / name, content));
  return {};
}

Status export_checkpoint(const fs::path& run_folder, GlobalStep step, const fs::path& out) {
  const fs::path checkpoints = run_folder / "checkpoints";
  ARCH_TRY(const CheckpointInfo info, read_checkpoint_info(checkpoints, step));
  ARCH_TRY(const auto fragmentation, diloco::Fragmentation::balanced(info.layout, info.fragments));
  ARCH_TRY(const auto fragments, FragmentStore::create(info.layout, fragmentation, 1));
  ARCH_TRY_VOID(read_checkpoint_tensors(checkpoints, info, *fragments));
  return export_model(out, info.layout, *fragments, info.assets);
}

}  // namespace archipelago::outer
