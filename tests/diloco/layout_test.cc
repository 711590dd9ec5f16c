#include "common/diloco/layout.h"

#include <catch2/catch.hpp>

#include "common/diloco/fragmentation.h"

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

Tensor tensor(std::string name, std::vector<std::int64_t> shape,
              MergeClass merge_class = MergeClass::kOther) {
  Tensor t;
  t.name = std::move(name);
  t.shape = std::move(shape);
  t.merge_class = merge_class;
  return t;
}

Layout layout_of(std::vector<Tensor> tensors) {
  auto layout = Layout::create(std::move(tensors));
  REQUIRE(layout.has_value());
  return *layout;
}

}  // namespace

TEST_CASE("a layout counts elements and offsets") {
  const Layout layout = layout_of(
      {tensor("embed", {10, 4}, MergeClass::kEmbedding), tensor("scale", {}), tensor("w", {3, 5})});
  CHECK(layout.elements() == 56);
  CHECK(layout.tensors()[1].elements == 1);
  CHECK(layout.tensors()[2].offset == 41);
}

TEST_CASE("a layout survives its text form, and the digest is that of the text") {
  const Layout layout = layout_of({tensor("model.embed tokens", {256, 64}, MergeClass::kEmbedding),
                                   tensor("s", {}), tensor("w", {3})});
  const auto parsed = Layout::parse_text(layout.to_text());
  REQUIRE(parsed.has_value());
  CHECK(*parsed == layout);
  CHECK(parsed->digest() == layout.digest());
  // sha256sum of the text, computed with coreutils.
  const Layout small = layout_of({tensor("w", {2, 3})});
  CHECK(small.to_text() == "archipelago-layout 1\nother 2 2 3 w\n");
  CHECK(small.digest().hex() == "3cca1bd64147ab4cb5a34720d2ea18f18d6ca31eec9ae24e7c537e25a104e1c9");
  CHECK(parse_digest(small.digest().hex()).value() == small.digest());
  CHECK_FALSE(parse_digest("zz").has_value());
}

TEST_CASE("names, shapes and classes each change the digest") {
  const auto base = layout_of({tensor("a", {2, 3}), tensor("b", {4})}).digest();
  CHECK(layout_of({tensor("a", {3, 2}), tensor("b", {4})}).digest() != base);
  CHECK(layout_of({tensor("a", {2, 3}), tensor("c", {4})}).digest() != base);
  CHECK(layout_of({tensor("b", {4}), tensor("a", {2, 3})}).digest() != base);
  CHECK(layout_of({tensor("a", {2, 3}), tensor("b", {4}, MergeClass::kEmbedding)}).digest() !=
        base);
}

TEST_CASE("a layout beyond its limits is refused by name") {
  const std::int64_t big = 1LL << 32;
  auto message = [](std::vector<Tensor> tensors) {
    auto layout = Layout::create(std::move(tensors));
    REQUIRE_FALSE(layout.has_value());
    CHECK(layout.error().kind == ErrorKind::kInvalid);
    return layout.error().message;
  };
  CHECK(message({}).find("0 tensors") != std::string::npos);
  CHECK(message({tensor("w", {big, big})}).find("'w'") !=
        std::string::npos);  // wraps to exactly 0 in 64 bits
  CHECK(message({tensor("w", {(1LL << 62) + 1, 4})}).find("'w'") != std::string::npos);
  CHECK(message({tensor("w", {-1})}).find("dimension -1") != std::string::npos);
  CHECK(message({tensor("w", {0})}).find("dimension 0") != std::string::npos);
  CHECK(message({tensor("w", std::vector<std::int64_t>(9, 1))}).find("rank 9") !=
        std::string::npos);
  CHECK(message({tensor(std::string(256, 'x'), {1})}).find("256 bytes") != std::string::npos);
  CHECK(message({tensor("a\nb", {1})}).find("control character") != std::string::npos);
  CHECK(message({tensor("", {1})}).find("0 bytes") != std::string::npos);
  CHECK(message({tensor("w", {1}), tensor("w", {2})}).find("twice") != std::string::npos);
  CHECK(message({tensor("a", {1LL << 48}), tensor("b", {1})}).find("tensor 1") !=
        std::string::npos);
  CHECK(message(std::vector<Tensor>(4097, tensor("w", {1}))).find("4097 tensors") !=
        std::string::npos);
}

TEST_CASE("layout text that is not canonical is refused") {
  for (const std::string text :
       {"", "archipelago-layout 1\n", "archipelago-layout 2\nother 0 w\n",
        "archipelago-layout 1\nother 1 w\n", "archipelago-layout 1\nother 1 4 w",
        "archipelago-layout 1\nodd 1 4 w\n", "archipelago-layout 1\nother 9 1 1 1 1 1 1 1 1 1 w\n",
        "archipelago-layout 1\nother -1 w\n",
        "archipelago-layout 1\nother 1 99999999999999999999 w\n"}) {
    CAPTURE(text);
    CHECK_FALSE(Layout::parse_text(text).has_value());
  }
}

TEST_CASE("the first differing tensor is named") {
  const Layout a = layout_of({tensor("x", {2}), tensor("lm_head", {256, 64})});
  CHECK(first_difference(a, a).empty());
  CHECK(first_difference(a, layout_of({tensor("x", {2}), tensor("lm_head", {256, 32})})) ==
        "tensor 1: expected other lm_head [256, 64], got other lm_head [256, 32]");
  CHECK(first_difference(a, layout_of({tensor("x", {2})})) ==
        "tensor 1: expected other lm_head [256, 64], got no more tensors");
}

TEST_CASE("three billion parameters pass through layout and fragmentation in 64 bits") {
  std::vector<Tensor> tensors{tensor("embed", {128256, 3072}, MergeClass::kEmbedding)};
  for (int layer = 0; layer < 28; ++layer) {
    tensors.push_back(tensor("layer." + std::to_string(layer) + ".up", {3072, 8192}));
    tensors.push_back(tensor("layer." + std::to_string(layer) + ".gate", {3072, 8192}));
    tensors.push_back(tensor("layer." + std::to_string(layer) + ".down", {8192, 3072}));
    tensors.push_back(tensor("layer." + std::to_string(layer) + ".attention", {3072, 8192}));
  }
  const Layout layout = layout_of(tensors);
  CHECK(layout.elements() == 128256LL * 3072 + 28LL * 4 * 3072 * 8192);
  CHECK(layout.elements() > 3'000'000'000LL);
  const auto fragments = Fragmentation::balanced(layout, 24);
  REQUIRE(fragments.has_value());
  std::int64_t sum = 0;
  for (const auto& fragment : fragments->fragments()) sum += fragment.elements;
  CHECK(sum == layout.elements());
  CHECK(fragments->max_elements() == 128256LL * 3072);
}
