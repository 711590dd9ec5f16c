// sync.published: bf16, sync.embeddingMerge: rda and cut tensors, in the store.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "common/codec/bf16_grid.h"
#include "common/diloco/merge.h"
#include "common/diloco/weights.h"
#include "common/wire/safetensors.h"
#include "outer-optimizer/store/store.h"
#include "tests/outer-optimizer/store_fixture.h"

using namespace archipelago;
using namespace archipelago::outer;
using codec::Codec;
using diloco::FragmentScheme;

namespace {

struct Model {
  diloco::Layout layout;
  diloco::Fragmentation fragmentation;
  std::unique_ptr<FragmentStore> store;
};

Model make_model(const std::vector<std::int64_t>& sizes, std::int64_t fragments, bool bf16,
                 FragmentScheme scheme = FragmentScheme::kBalanced) {
  Model model;
  model.layout = make_layout(sizes);
  model.fragmentation = diloco::Fragmentation::create(model.layout, fragments, scheme).value();
  model.store = FragmentStore::create(model.layout, model.fragmentation, 2, bf16).value();
  Rng rng(5);
  for (std::int32_t p = 0; p < model.fragmentation.count(); ++p) {
    const auto values = random_floats(rng, model.fragmentation[FragmentId(p)].elements, 0.5);
    REQUIRE(model.store->set(FragmentId(p), GlobalStep(0), values, {}, {}).has_value());
  }
  return model;
}

OuterRules rules(Codec downlink) { return {{1.0F, 0.0F, true}, true, downlink}; }

void merge(Model& model, FragmentId p, GlobalStep t, const Upload& upload, Codec downlink) {
  REQUIRE(model.store->prepare(p, std::vector<MergeInput>{upload.input()}, true).value());
  model.store->apply(p, t, rules(downlink), true, {});
}

bool on_grid(std::span<const float> values) {
  std::vector<float> rounded(values.begin(), values.end());
  codec::round_to_bf16(rounded);
  return std::equal(values.begin(), values.end(), rounded.begin());
}

StoreOptions options_for(const std::filesystem::path& folder) {
  StoreOptions options;
  options.folder = folder;
  options.run_id = "run";
  options.fragments = 6;
  options.interval = 6;
  options.scheme = FragmentScheme::kSplit;
  options.published_bf16 = true;
  return options;
}

std::unique_ptr<Store> open(const StoreOptions& options) {
  auto store = Store::open(options, [](std::string_view) {});
  if (!store) FAIL(store.error().describe());
  return std::move(*store);
}

}  // namespace

TEST_CASE("rounding to bf16 is what its codec does") {
  Rng rng(1);
  std::vector<float> values = random_floats(rng, 5000, 3.0);
  values.push_back(0.0F);
  values.push_back(-0.0F);
  values.push_back(1.00390625F);  // half way between two: to the even one
  values.push_back(1.01171875F);
  values.push_back(1e-40F);
  std::vector<std::byte> encoded(codec::encoded_size(Codec::kBf16, values.size()));
  REQUIRE(codec::encode(Codec::kBf16, values, encoded));
  std::vector<float> decoded(values.size());
  REQUIRE(codec::decode(Codec::kBf16, encoded, decoded));
  codec::round_to_bf16(values);
  CHECK(values == decoded);
}

TEST_CASE("published in bf16: all learners hold the same bytes, a keyframe is half as large") {
  const Codec downlink = GENERATE(Codec::kFp32, Codec::kBf16, Codec::kInt8, Codec::kInt4);
  CAPTURE(codec::name(downlink));
  Model model = make_model({700, 1, 4097, 256, 31}, 2, true);
  Rng rng(21);
  struct Learner {
    GlobalStep have[2] = {GlobalStep(-1), GlobalStep(-1)};
    std::vector<float> base[2];
  };
  std::vector<Learner> learners(3);
  for (std::int64_t t = 1; t <= 30; ++t) {
    const FragmentId p(static_cast<std::int32_t>(t % 2));
    merge(model, p, GlobalStep(t), random_upload(model.fragmentation[p], rng, Codec::kInt4),
          downlink);
    for (std::size_t l = 0; l < learners.size(); ++l) {
      if (l > 0 && rng.chance(l == 1 ? 0.5 : 0.9)) continue;
      for (std::int32_t q = 0; q < 2; ++q) {
        const FragmentId id(q);
        while (const auto frame = model.store->frame(id, learners[l].have[q])) {
          if (frame->keyframe()) {
            CHECK(frame->codec == Codec::kBf16);
            CHECK(frame->payload->size() == payload_bytes(model.fragmentation[id], Codec::kBf16));
          }
          follow(model.fragmentation[id], *frame, &learners[l].base[q]);
          codec::round_to_bf16(learners[l].base[q]);  // as the learner's exchange does
          learners[l].have[q] = frame->version;
        }
        const auto published = model.store->published(id);
        REQUIRE(std::equal(learners[l].base[q].begin(), learners[l].base[q].end(),
                           published->floats().begin(), published->floats().end()));
        REQUIRE(on_grid(published->floats()));
      }
    }
  }
  model.store->publish_masters(GlobalStep(31));
  for (std::int32_t q = 0; q < 2; ++q) {
    const auto last = model.store->published(FragmentId(q));
    REQUIRE(on_grid(last->floats()));
    for (std::size_t i = 0; i < last->floats().size(); ++i)
      REQUIRE(std::fabs(last->floats()[i] - model.store->master(FragmentId(q))[i]) <=
              0x1p-8F * std::fabs(last->floats()[i]));
  }
}

// What neither the codec nor bf16 can say in one round stays in the master and goes later.
TEST_CASE("published in bf16: an element moving a tenth of a bf16 step a round arrives") {
  const Codec downlink = GENERATE(Codec::kFp32, Codec::kInt4);
  CAPTURE(codec::name(downlink));
  Model model = make_model({1, 256}, 1, true);
  const FragmentId p(0);
  const std::vector<float> ones(257, 1.0F);
  REQUIRE(model.store->set(p, GlobalStep(0), ones, {}, {}).has_value());
  const float bf16_step = 0x1p-7F;  // between 1 and 2
  std::vector<float> gradient(257, 0.0F);
  for (int t = 1; t <= 200; ++t) {
    gradient[1] = t % 2 == 0 ? 1.0F : -1.0F;  // the block's scale: an int4 quantum of 0.14
    gradient[100] = -0.1F * bf16_step;
    merge(model, p, GlobalStep(t), encode_upload(model.fragmentation[p], gradient, Codec::kFp32),
          downlink);
  }
  const float moved = model.store->published(p)->floats()[100] - 1.0F;
  const float expected = 200 * 0.1F * bf16_step;  // 0.156
  const float held_back = downlink == Codec::kFp32 ? bf16_step : 1.1F / 7.0F / 2.0F + bf16_step;
  CHECK(std::fabs(model.store->master(p)[100] - 1.0F - expected) < 1e-4F);
  CHECK(std::fabs(moved - expected) <= held_back);
  CHECK(moved > 0);
}

TEST_CASE("embeddings take the merge that they are given, the others theirs") {
  const bool other = GENERATE(true, false);
  const bool embedding = GENERATE(true, false);
  CAPTURE(other, embedding);
  Model model = make_model({600, 500}, 1, false);
  const FragmentId p(0);
  const diloco::Fragment& fragment = model.fragmentation[p];
  Rng rng(3);
  std::vector<Upload> uploads;
  std::vector<MergeInput> inputs;
  std::vector<double> weights;
  for (int m = 0; m < 3; ++m) uploads.push_back(random_upload(fragment, rng, Codec::kFp32));
  for (const Upload& upload : uploads) {
    inputs.push_back(upload.input());
    weights.push_back(diloco::contribution_weight(upload.tokens, upload.steps));
  }
  REQUIRE(model.store->prepare(p, inputs, {other, embedding}).value());
  std::vector<float> gradient(1100);
  model.store->gradient(0, gradient);
  for (const auto& part : fragment.tensors) {
    std::vector<std::vector<double>> members;
    for (const Upload& upload : uploads) {
      const auto all = decode_upload(fragment, upload);
      members.emplace_back(all.begin() + part.offset, all.begin() + part.offset + part.elements);
    }
    const bool is_embedding =
        model.layout.tensors()[part.index].merge_class == diloco::MergeClass::kEmbedding;
    const auto expected = (is_embedding ? embedding : other) ? diloco::merge_rda(members, weights)
                                                             : diloco::merge_mean(members, weights);
    for (std::size_t i = 0; i < expected.size(); ++i)
      REQUIRE(static_cast<double>(gradient[static_cast<std::size_t>(part.offset) + i]) ==
              Approx(expected[i]).margin(1e-7));
  }
}

TEST_CASE("a run whose tensors are cut recovers, exports whole tensors, and keeps its scheme") {
  const FastDir dir;
  StoreOptions options = options_for(dir.path());
  const diloco::Layout layout = make_layout({3000, 40, 50, 60});  // 6 fragments, 4 tensors
  std::vector<float> model(static_cast<std::size_t>(layout.elements()));
  {
    auto store = open(options);
    REQUIRE(store->set_layout(layout, {{"config.json", "{}"}}).has_value());
    Rng rng(2);
    std::size_t parts = 0;
    for (std::int32_t p = 0; p < 6; ++p) {
      const auto& fragment = store->fragmentation()[FragmentId(p)];
      parts += fragment.tensors.size();
      const auto values = random_floats(rng, fragment.elements, 0.5);
      REQUIRE(store->seed_fragment(FragmentId(p), GlobalStep(0), values).has_value());
    }
    CHECK(parts > layout.tensors().size());  // the large one is cut
    REQUIRE(store->commit_seed(GlobalStep(0), "s").has_value());
    for (std::int64_t t = 1; t <= 9; ++t) {
      const FragmentId p(static_cast<std::int32_t>(t % 6));
      const Upload upload = random_upload(store->fragmentation()[p], rng, Codec::kInt4);
      REQUIRE(store->merge_and_commit({GlobalStep(t), p, {upload.input()}, "", "s"}).has_value());
    }
    for (std::int32_t p = 0; p < 6; ++p) {
      const auto published = store->fragments()->published(FragmentId(p));
      for (const auto& part : store->fragmentation()[FragmentId(p)].tensors)
        std::copy_n(published->floats().data() + part.offset, part.elements,
                    model.data() + layout.tensors()[part.index].offset + part.begin);
    }
  }
  {
    auto again = open(options);  // checkpoint of step 0 and nine journal records
    CHECK(again->recovery().records >= 9);
    REQUIRE(again->export_model(dir.path() / "model").has_value());
  }
  const auto file = wire::SafetensorsFile::open(dir.path() / "model" / "model.safetensors").value();
  for (const auto& tensor : layout.tensors()) {
    const auto values = file.read(tensor.name).value();
    CHECK(std::equal(values.begin(), values.end(), model.data() + tensor.offset));
  }
  options.scheme = FragmentScheme::kBalanced;
  options.fragments = 6;
  const auto other = Store::open(options, [](std::string_view) {});
  REQUIRE_FALSE(other);
  CHECK(other.error().kind == ErrorKind::kInvalid);
  CHECK(other.error().message.find("was cut by fragmentation split, the run asks for balanced") !=
        std::string::npos);
  options = options_for(dir.path());
  options.published_bf16 = false;
  const auto format = Store::open(options, [](std::string_view) {});
  REQUIRE_FALSE(format);
  CHECK(format.error().message.find("was published in bf16, the run asks for fp32") !=
        std::string::npos);
}
