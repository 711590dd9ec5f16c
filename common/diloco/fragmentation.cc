#include "common/diloco/fragmentation.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <string>
#include <utility>

namespace archipelago::diloco {

Result<Fragmentation> Fragmentation::balanced(const Layout& layout, std::int64_t fragments) {
  const auto& tensors = layout.tensors();
  if (fragments < 1)
    return fail(ErrorKind::kInvalid,
                "fragments is " + std::to_string(fragments) + "; allowed: 1 or more");
  if (std::cmp_greater(fragments, tensors.size()))
    return fail(ErrorKind::kInvalid,
                "the model has " + std::to_string(tensors.size()) + " tensors for " +
                    std::to_string(fragments) +
                    " fragments; fragments may be at most the number of tensors");
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tensors[a].elements != tensors[b].elements)
      return tensors[a].elements > tensors[b].elements;
    return tensors[a].name < tensors[b].name;
  });

  Fragmentation result;
  result.fragments_.resize(static_cast<std::size_t>(fragments));
  using Load = std::pair<std::int64_t, std::size_t>;  // (elements, fragment): the smallest load,
                                                      // then the lowest index
  std::priority_queue<Load, std::vector<Load>, std::greater<>> smallest;
  for (std::size_t p = 0; p < result.fragments_.size(); ++p) smallest.emplace(0, p);
  for (const std::size_t index : order) {
    auto [load, p] = smallest.top();
    smallest.pop();
    result.fragments_[p].tensors.push_back({index, 0, tensors[index].elements});
    smallest.emplace(load + tensors[index].elements, p);
  }
  for (Fragment& fragment : result.fragments_) {
    std::sort(fragment.tensors.begin(), fragment.tensors.end(),
              [](const FragmentTensor& a, const FragmentTensor& b) { return a.index < b.index; });
    for (FragmentTensor& t : fragment.tensors) {
      t.offset = fragment.elements;
      fragment.elements += t.elements;
    }
    result.max_elements_ = std::max(result.max_elements_, fragment.elements);
  }
  return result;
}

}  // namespace archipelago::diloco
