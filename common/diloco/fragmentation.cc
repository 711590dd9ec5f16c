#include "common/diloco/fragmentation.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <string>
#include <utility>

namespace archipelago::diloco {
namespace {

using Fragments = std::vector<Fragment>;
using Tensors = std::vector<Tensor>;

constexpr std::array<std::pair<FragmentScheme, std::string_view>, 4> kSchemes{
    {{FragmentScheme::kBalanced, "balanced"},
     {FragmentScheme::kLayer, "layer"},
     {FragmentScheme::kTensor, "tensor"},
     {FragmentScheme::kSplit, "split"}}};

std::vector<std::size_t> by_size(const Tensors& tensors, const std::vector<std::size_t>& which) {
  std::vector<std::size_t> order = which;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (tensors[a].elements != tensors[b].elements)
      return tensors[a].elements > tensors[b].elements;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

void put_balanced(const Tensors& tensors, const std::vector<std::size_t>& which, Fragments& out) {
  using Load = std::pair<std::int64_t, std::size_t>;  // (elements, fragment): the smallest load,
                                                      // then the lowest index
  std::priority_queue<Load, std::vector<Load>, std::greater<>> smallest;
  for (std::size_t p = 0; p < out.size(); ++p) smallest.emplace(0, p);
  for (const std::size_t index : by_size(tensors, which)) {
    auto [load, p] = smallest.top();
    smallest.pop();
    out[p].tensors.push_back({index, 0, tensors[index].elements, 0});
    smallest.emplace(load + tensors[index].elements, p);
  }
}

// The number between dots that makes a tensor a layer's.
std::optional<std::int64_t> layer_of(std::string_view name) {
  while (!name.empty()) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const bool digits =
        !part.empty() && part.size() <= 9 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (digits) return std::stoll(std::string(part));
    name.remove_prefix(dot == std::string_view::npos ? name.size() : dot + 1);
  }
  return std::nullopt;
}

// kLayer and kTensor: fragment 0 for what is no layer's, the others by turns.
void put_strided(const Tensors& tensors, bool whole_layers, Fragments& out) {
  if (out.size() == 1) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      out[0].tensors.push_back({i, 0, tensors[i].elements, 0});
    return;
  }
  std::map<std::int64_t, std::size_t> layers;  // number -> its place among them
  for (const Tensor& tensor : tensors)
    if (const auto layer = layer_of(tensor.name)) layers.emplace(*layer, 0);
  std::size_t place = 0;
  for (auto& [number, at] : layers) at = place++;
  std::size_t turn = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto layer = layer_of(tensors[i].name);
    std::size_t p = 0;
    if (layer) p = 1 + (whole_layers ? layers[*layer] : turn++) % (out.size() - 1);
    out[p].tensors.push_back({i, 0, tensors[i].elements, 0});
  }
}

// How much each fragment takes of `more` elements, so that all come as near to one level as the
// fuller ones allow.
std::vector<std::int64_t> room_in(const Fragments& fragments, std::int64_t more) {
  std::vector<std::int64_t> loads;
  for (const Fragment& fragment : fragments) {
    std::int64_t load = 0;
    for (const FragmentTensor& part : fragment.tensors) load += part.elements;
    loads.push_back(load);
  }
  std::vector<std::int64_t> sorted = loads;
  std::sort(sorted.begin(), sorted.end());
  std::int64_t level = 0;
  std::int64_t below = more;  // and the loads of those that are filled up
  for (std::size_t k = 0; k < sorted.size(); ++k) {
    below += sorted[k];
    const auto filled = static_cast<std::int64_t>(k + 1);
    level = (below + filled - 1) / filled;
    if (k + 1 == sorted.size() || level <= sorted[k + 1]) break;
  }
  for (std::int64_t& load : loads) load = std::max<std::int64_t>(0, level - load);
  return loads;
}

// The large tensors end to end, cut where a fragment is full, at the row below.
void fill_with_rows(const Tensors& tensors, const std::vector<std::size_t>& large, Fragments& out) {
  std::int64_t total = 0;
  for (const std::size_t index : large) total += tensors[index].elements;
  const std::vector<std::int64_t> room = room_in(out, total);
  std::size_t p = 0;
  std::int64_t upto = room[0];  // where fragment p is full, in elements of all large tensors
  std::int64_t first = 0;       // of the present tensor
  for (const std::size_t index : large) {
    const Tensor& tensor = tensors[index];
    const std::int64_t row = tensor.shape.empty() ? 1 : tensor.elements / tensor.shape[0];
    std::int64_t done = 0;
    while (done < tensor.elements) {
      std::int64_t end = tensor.elements;
      if (p + 1 < out.size() && upto - first < tensor.elements) end = (upto - first) / row * row;
      if (end > done) out[p].tensors.push_back({index, 0, end - done, done});
      done = std::max(done, end);
      if (done < tensor.elements) upto += room[++p];
    }
    first += tensor.elements;
  }
}

void put_split(const Tensors& tensors, std::int64_t all, Fragments& out) {
  const auto count = static_cast<std::int64_t>(out.size());
  std::vector<std::size_t> large, whole;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool above = tensors[i].elements > all / count + (all % count != 0 ? 1 : 0);
    (above ? large : whole).push_back(i);
  }
  put_balanced(tensors, whole, out);
  if (!large.empty()) fill_with_rows(tensors, by_size(tensors, large), out);
}

std::string too_many(const Layout& layout, std::int64_t fragments, FragmentScheme scheme) {
  const std::string given =
      std::to_string(fragments) + " fragments of scheme " + std::string(to_string(scheme)) + ": ";
  std::int64_t layer_tensors = 0;
  std::map<std::int64_t, bool> layers;
  for (const Tensor& tensor : layout.tensors())
    if (const auto layer = layer_of(tensor.name)) {
      ++layer_tensors;
      layers[*layer] = true;
    }
  switch (scheme) {
    case FragmentScheme::kBalanced:
      break;
    case FragmentScheme::kLayer:
      return given + "the model has " + std::to_string(layers.size()) +
             " layers and one fragment is for the tensors of none";
    case FragmentScheme::kTensor:
      return given + "the model has " + std::to_string(layer_tensors) +
             " tensors in layers and one fragment is for the tensors of none";
    case FragmentScheme::kSplit:
      return given + "the model's rows are too long to be shared out";
  }
  return "the model has " + std::to_string(layout.tensors().size()) + " tensors for " +
         std::to_string(fragments) + " fragments; fragments may be at most the number of tensors";
}

}  // namespace

std::string_view to_string(FragmentScheme scheme) {
  for (const auto& [value, name] : kSchemes)
    if (value == scheme) return name;
  return "?";
}

Result<FragmentScheme> parse_scheme(std::string_view name) {
  for (const auto& [value, known] : kSchemes)
    if (known == name) return value;
  return fail(ErrorKind::kInvalid,
              "fragmentation '" + std::string(name) + "'; allowed: balanced, layer, tensor, split");
}

Result<Fragmentation> Fragmentation::create(const Layout& layout, std::int64_t fragments,
                                            FragmentScheme scheme) {
  const Tensors& tensors = layout.tensors();
  if (fragments < 1)
    return fail(ErrorKind::kInvalid,
                "fragments is " + std::to_string(fragments) + "; allowed: 1 or more");
  if (fragments > layout.elements())
    return fail(ErrorKind::kInvalid, too_many(layout, fragments, scheme));
  Fragmentation result;
  result.fragments_.resize(static_cast<std::size_t>(fragments));
  std::vector<std::size_t> all(tensors.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  switch (scheme) {
    case FragmentScheme::kBalanced:
      put_balanced(tensors, all, result.fragments_);
      break;
    case FragmentScheme::kLayer:
    case FragmentScheme::kTensor:
      put_strided(tensors, scheme == FragmentScheme::kLayer, result.fragments_);
      break;
    case FragmentScheme::kSplit:
      put_split(tensors, layout.elements(), result.fragments_);
      break;
  }
  for (Fragment& fragment : result.fragments_) {
    if (fragment.tensors.empty())
      return fail(ErrorKind::kInvalid, too_many(layout, fragments, scheme));
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
