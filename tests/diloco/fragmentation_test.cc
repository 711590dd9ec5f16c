// The fragmentation schemes (algorithm.md §1.5): every element once, whole rows, the bounds.
#include "common/diloco/fragmentation.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include "common/base/rng.h"

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

Tensor tensor(const std::string& name, std::vector<std::int64_t> shape) {
  Tensor t;
  t.name = name;
  t.shape = std::move(shape);
  return t;
}

// A decoder's tensors: embedding, then `layers` times two matrices and a norm, then a norm.
Layout decoder(std::int64_t vocab, std::int64_t hidden, std::int64_t inner, int layers) {
  std::vector<Tensor> tensors{tensor("model.embed_tokens.weight", {vocab, hidden})};
  tensors[0].merge_class = MergeClass::kEmbedding;
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    tensors.push_back(tensor(layer + "up", {inner, hidden}));
    tensors.push_back(tensor(layer + "down", {hidden, inner}));
    tensors.push_back(tensor(layer + "norm", {hidden}));
  }
  tensors.push_back(tensor("model.norm.weight", {hidden}));
  return Layout::create(std::move(tensors)).value();
}

Layout random_layout(Rng& rng) {
  std::vector<Tensor> tensors;
  const std::size_t count = 3 + rng.below(12);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::int64_t> shape;
    for (std::uint64_t d = rng.below(4); d > 0; --d)  // scalars too
      shape.push_back(1 + static_cast<std::int64_t>(rng.below(i == 0 ? 60 : 12)));
    const bool layer = i > 0 && (i == 1 || rng.chance(0.7));
    tensors.push_back(
        tensor((layer ? "layers." + std::to_string(i / 3) + ".t" : "t") + std::to_string(i),
               std::move(shape)));
  }
  return Layout::create(std::move(tensors)).value();
}

std::int64_t row_of(const Tensor& t) { return t.shape.empty() ? 1 : t.elements / t.shape[0]; }

void check_cover(const Layout& layout, const Fragmentation& cut) {
  std::map<std::size_t, std::map<std::int64_t, std::int64_t>> parts;  // tensor: begin -> elements
  std::int64_t largest = 0;
  for (const Fragment& fragment : cut.fragments()) {
    CHECK_FALSE(fragment.tensors.empty());
    std::int64_t offset = 0;
    std::size_t last = 0;
    for (const FragmentTensor& part : fragment.tensors) {
      CHECK(part.offset == offset);
      CHECK((offset == 0 || part.index > last));  // layout order, a tensor once
      CHECK(part.elements > 0);
      last = part.index;
      offset += part.elements;
      const Tensor& whole = layout.tensors()[part.index];
      CHECK(part.begin % row_of(whole) == 0);
      CHECK(part.elements % row_of(whole) == 0);
      CHECK(parts[part.index].emplace(part.begin, part.elements).second);
    }
    CHECK(fragment.elements == offset);
    largest = std::max(largest, offset);
  }
  CHECK(cut.max_elements() == largest);
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    std::int64_t upto = 0;
    for (const auto& [begin, elements] : parts[i]) {
      CHECK(begin == upto);
      upto += elements;
    }
    CHECK(upto == layout.tensors()[i].elements);
  }
}

std::vector<std::string> names_of(const Layout& layout, const Fragment& fragment) {
  std::vector<std::string> out;
  for (const auto& part : fragment.tensors) out.push_back(layout.tensors()[part.index].name);
  return out;
}

}  // namespace

TEST_CASE("every scheme covers every element exactly once, in whole rows, or refuses") {
  const auto scheme = GENERATE(FragmentScheme::kBalanced, FragmentScheme::kLayer,
                               FragmentScheme::kTensor, FragmentScheme::kSplit);
  CAPTURE(to_string(scheme));
  int made = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const Layout layout = random_layout(rng);
    const auto fragments = 1 + static_cast<std::int64_t>(rng.below(20));
    const auto cut = Fragmentation::create(layout, fragments, scheme);
    if (!cut) {
      CHECK(cut.error().kind == ErrorKind::kInvalid);
      CHECK(fragments > 1);
      continue;
    }
    ++made;
    CHECK(cut->count() == fragments);
    check_cover(layout, *cut);
    CHECK(*cut == Fragmentation::create(layout, fragments, scheme).value());
  }
  CHECK(made > 30);
}

TEST_CASE("split: the largest fragment is N/P and a row, or what balancing whole tensors makes") {
  int cut_some = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const Layout layout = random_layout(rng);
    const auto fragments = 1 + static_cast<std::int64_t>(rng.below(20));
    const auto cut = Fragmentation::create(layout, fragments, FragmentScheme::kSplit);
    if (!cut) continue;
    const std::int64_t share = (layout.elements() + fragments - 1) / fragments;
    std::vector<Tensor> whole;
    std::int64_t row = 0;
    for (const Tensor& t : layout.tensors()) {
      if (t.elements > share) {
        row = std::max(row, row_of(t));
        continue;
      }
      whole.push_back(tensor(t.name, t.shape));
    }
    cut_some += row > 0 ? 1 : 0;
    std::int64_t balanced = 0;
    if (!whole.empty()) {
      const auto n = std::min<std::int64_t>(fragments, static_cast<std::int64_t>(whole.size()));
      balanced =
          Fragmentation::balanced(Layout::create(std::move(whole)).value(), n)->max_elements();
    }
    // The level is a whole number of elements above the share of what is left to fill.
    CHECK(cut->max_elements() <= std::max(balanced, share) + row + 1);
  }
  CHECK(cut_some > 50);
}

TEST_CASE("split removes the burst of a large tied embedding") {
  const Layout layout = decoder(32768, 256, 688, 12);
  const std::int64_t share = layout.elements() / 24;
  const auto balanced = Fragmentation::balanced(layout, 24).value();
  const auto split = Fragmentation::create(layout, 24, FragmentScheme::kSplit).value();
  CHECK(balanced.max_elements() == 32768 * 256);
  CHECK(balanced.max_elements() > 15 * share);
  CHECK(split.max_elements() <= share + 256 + 1);
  for (const Fragment& fragment : split.fragments()) CHECK(fragment.elements >= share - 256 - 24);
}

TEST_CASE("split takes more fragments than there are tensors, balanced does not") {
  const Layout layout = decoder(64, 16, 32, 1);  // 5 tensors
  CHECK_FALSE(Fragmentation::balanced(layout, 24));
  const auto cut = Fragmentation::create(layout, 24, FragmentScheme::kSplit);
  REQUIRE(cut);
  check_cover(layout, *cut);
  // Not a row for each.
  const auto refused = Fragmentation::create(decoder(4, 16, 2, 1), 24, FragmentScheme::kSplit);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("rows are too long") != std::string::npos);
}

TEST_CASE("layer and tensor put what is no layer's first and the rest by turns") {
  const Layout layout = decoder(64, 16, 32, 3);
  const auto layers = Fragmentation::create(layout, 3, FragmentScheme::kLayer).value();
  CHECK(names_of(layout, layers[FragmentId(0)]) ==
        std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"});
  CHECK(names_of(layout, layers[FragmentId(1)]) ==
        std::vector<std::string>{"model.layers.0.up", "model.layers.0.down", "model.layers.0.norm",
                                 "model.layers.2.up", "model.layers.2.down",
                                 "model.layers.2.norm"});
  const auto tensors = Fragmentation::create(layout, 5, FragmentScheme::kTensor).value();
  CHECK(names_of(layout, tensors[FragmentId(0)]).size() == 2);
  CHECK(
      names_of(layout, tensors[FragmentId(1)]) ==
      std::vector<std::string>{"model.layers.0.up", "model.layers.1.down", "model.layers.2.norm"});
  CHECK(Fragmentation::create(layout, 4, FragmentScheme::kLayer).has_value());
  const auto most = Fragmentation::create(layout, 5, FragmentScheme::kLayer);
  REQUIRE_FALSE(most);
  CHECK(most.error().message.find("the model has 3 layers") != std::string::npos);
  CHECK(Fragmentation::create(layout, 10, FragmentScheme::kTensor).has_value());
  CHECK_FALSE(Fragmentation::create(layout, 11, FragmentScheme::kTensor));
  CHECK(Fragmentation::create(layout, 1, FragmentScheme::kLayer)->max_elements() ==
        layout.elements());
}

TEST_CASE("a scheme's name comes back, another is refused") {
  for (const char* name : {"balanced", "layer", "tensor", "split"})
    CHECK(to_string(parse_scheme(name).value()) == name);
  CHECK_FALSE(parse_scheme("random"));
}
