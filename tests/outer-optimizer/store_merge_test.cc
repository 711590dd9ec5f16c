#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include <catch2/catch.hpp>

#include "common/diloco/merge.h"
#include "common/diloco/weights.h"
#include "outer-optimizer/store/little_endian.h"
#include "tests/outer-optimizer/store_fixture.h"

using namespace archipelago;
using namespace archipelago::outer;
using codec::Codec;

namespace {

// Sizes around every edge: one element, a block, a chunk, and one beyond each.
const std::vector<std::int64_t> kSizes{700, 1, 256, 257, 4096, 4097, 20000, 31};

struct Model {
  diloco::Layout layout;
  diloco::Fragmentation fragmentation;
  std::unique_ptr<FragmentStore> store;
};

Model make_model(const std::vector<std::int64_t>& sizes, std::int64_t fragments, int threads,
                 std::uint64_t seed = 5) {
  Model model;
  model.layout = make_layout(sizes);
  model.fragmentation = diloco::Fragmentation::balanced(model.layout, fragments).value();
  model.store = FragmentStore::create(model.layout, model.fragmentation, threads).value();
  Rng rng(seed);
  for (std::int32_t p = 0; p < model.fragmentation.count(); ++p) {
    const auto values = random_floats(rng, model.fragmentation[FragmentId(p)].elements, 0.5);
    REQUIRE(model.store->set(FragmentId(p), GlobalStep(0), values, {}, {}).has_value());
  }
  return model;
}

std::vector<MergeInput> inputs(const std::vector<Upload>& uploads) {
  std::vector<MergeInput> result;
  for (const auto& upload : uploads) result.push_back(upload.input());
  return result;
}

OuterRules rules(Codec downlink, float lr = 0.7F, float mu = 0.9F) {
  return {{lr, mu, true}, true, downlink};
}

}  // namespace

TEST_CASE("the merge kernel follows the reference formulas") {
  const bool radial = GENERATE(true, false);
  const Codec uplink = GENERATE(Codec::kFp32, Codec::kBf16, Codec::kInt8, Codec::kInt4);
  CAPTURE(radial, codec::name(uplink));
  Model model = make_model(kSizes, 2, 2);
  Rng rng(17);
  for (std::int32_t i = 0; i < 2; ++i) {
    const FragmentId p(i);
    const diloco::Fragment& fragment = model.fragmentation[p];
    std::vector<Upload> uploads;
    for (int m = 0; m < 3; ++m)
      uploads.push_back(random_upload(fragment, rng, uplink, 1e-2 * (m + 1)));
    const std::vector<float> before(model.store->master(p).begin(), model.store->master(p).end());
    REQUIRE(model.store->prepare(p, inputs(uploads), radial).value());
    std::vector<float> gradient(before.size());
    model.store->gradient(0, gradient);
    model.store->apply(p, GlobalStep(1 + i), rules(Codec::kFp32), true, {});

    std::vector<double> weights;
    std::vector<std::vector<float>> decoded;
    for (const auto& upload : uploads) {
      weights.push_back(diloco::contribution_weight(upload.tokens, upload.steps));
      decoded.push_back(decode_upload(fragment, upload));
    }
    for (const auto& t : fragment.tensors) {
      std::vector<std::vector<double>> members;
      for (const auto& d : decoded)
        members.emplace_back(d.begin() + t.offset, d.begin() + t.offset + t.elements);
      const bool rda =
          radial && model.layout.tensors()[t.index].merge_class == diloco::MergeClass::kOther;
      const auto expected =
          rda ? diloco::merge_rda(members, weights) : diloco::merge_mean(members, weights);
      double norm = 0;
      double difference = 0;
      for (std::int64_t k = 0; k < t.elements; ++k) {
        const auto at = static_cast<std::size_t>(t.offset + k);
        const double e = expected[static_cast<std::size_t>(k)];
        norm += e * e;
        difference += (gradient[at] - e) * (gradient[at] - e);
        const auto state = diloco::outer_sgd({before[at], 0.0F}, gradient[at], 0.7F, 0.9F, true);
        REQUIRE(model.store->master(p)[at] == state.master);
        REQUIRE(model.store->momentum(p)[at] == state.momentum);
      }
      // fp32: three products, two sums, one scaling, coefficients rounded once: below 16 units of
      // 2^-24.
      CHECK(std::sqrt(difference) <= 16 * 0x1p-24 * std::sqrt(norm));
    }
  }
}

TEST_CASE("merge and publication do not depend on the number of threads") {
  std::vector<std::uint64_t> prints;
  for (const int threads : {1, 2, 3, 5}) {
    Model model = make_model(kSizes, 2, threads);
    Rng rng(3);
    for (std::int64_t t = 1; t <= 6; ++t) {
      const FragmentId p(static_cast<std::int32_t>(t % 2));
      std::vector<Upload> uploads;
      for (int m = 0; m < 4; ++m)
        uploads.push_back(random_upload(model.fragmentation[p], rng, Codec::kInt4));
      REQUIRE(model.store->prepare(p, inputs(uploads), true).value());
      model.store->apply(p, GlobalStep(t), rules(Codec::kInt4), true, {});
    }
    prints.push_back(fingerprint(*model.store));
  }
  for (const auto print : prints) CHECK(print == prints[0]);
}

TEST_CASE(
    "one contributor, learning rate 1, no momentum: master becomes exactly base minus its upload") {
  const bool radial = GENERATE(true, false);
  Model model = make_model({600, 300, 9}, 1, 1);
  const FragmentId p(0);
  Rng rng(1);
  const Upload upload = random_upload(model.fragmentation[p], rng, Codec::kInt8);
  const std::vector<float> before(model.store->master(p).begin(), model.store->master(p).end());
  const auto gradient = decode_upload(model.fragmentation[p], upload);
  REQUIRE(model.store->prepare(p, inputs({upload}), radial).value());
  model.store->apply(p, GlobalStep(1), rules(Codec::kInt4, 1.0F, 0.0F), true, {});
  for (std::size_t i = 0; i < before.size(); ++i)
    REQUIRE(model.store->master(p)[i] == before[i] - gradient[i]);
}

TEST_CASE("a member without weight changes no bit, nobody with weight changes no parameter") {
  Rng rng(8);
  Model with = make_model(kSizes, 1, 2);
  Model without = make_model(kSizes, 1, 2);
  const FragmentId p(0);
  std::vector<Upload> uploads;
  for (int m = 0; m < 3; ++m)
    uploads.push_back(random_upload(with.fragmentation[p], rng, Codec::kInt4));
  uploads[1].tokens = GENERATE(0, -7, std::numeric_limits<std::int64_t>::max());
  REQUIRE(with.store->prepare(p, inputs(uploads), true).value());
  with.store->apply(p, GlobalStep(1), rules(Codec::kInt4), true, {});
  REQUIRE(without.store->prepare(p, inputs({uploads[0], uploads[2]}), true).value());
  without.store->apply(p, GlobalStep(1), rules(Codec::kInt4), true, {});
  CHECK(fingerprint(*with.store) == fingerprint(*without.store));

  for (auto& upload : uploads) upload.tokens = 0;
  const std::vector<float> master(with.store->master(p).begin(), with.store->master(p).end());
  const std::vector<float> momentum(with.store->momentum(p).begin(), with.store->momentum(p).end());
  CHECK_FALSE(with.store->prepare(p, inputs(uploads), true).value());
  with.store->apply(p, GlobalStep(2), rules(Codec::kInt4), false, {});
  CHECK(std::equal(master.begin(), master.end(), with.store->master(p).begin()));
  CHECK(std::equal(momentum.begin(), momentum.end(), with.store->momentum(p).begin()));
  CHECK(with.store->version(p) == GlobalStep(2));
}

TEST_CASE("a prepared merge that is thrown away leaves nothing behind") {
  Rng rng(4);
  Model once = make_model(kSizes, 1, 1);
  Model twice = make_model(kSizes, 1, 1);
  const FragmentId p(0);
  const Upload a = random_upload(once.fragmentation[p], rng, Codec::kInt4);
  const Upload b = random_upload(once.fragmentation[p], rng, Codec::kInt4);
  REQUIRE(twice.store->prepare(p, inputs({a, b}), true).value());
  for (auto* model : {&once, &twice}) {
    REQUIRE(model->store->prepare(p, inputs({b}), true).value());
    model->store->apply(p, GlobalStep(1), rules(Codec::kInt4), true, {});
  }
  CHECK(fingerprint(*once.store) == fingerprint(*twice.store));
}

TEST_CASE(
    "uploads are validated as they arrive, in pieces of any size, with the sums of one pass") {
  const Codec codec = GENERATE(Codec::kFp32, Codec::kBf16, Codec::kInt8, Codec::kInt4);
  const auto fragmentation = diloco::Fragmentation::balanced(make_layout(kSizes), 1).value();
  const diloco::Fragment& fragment = fragmentation[FragmentId(0)];
  Rng rng(2);
  const Upload upload = random_upload(fragment, rng, codec);
  PayloadValidator validator(fragment, codec);
  std::size_t received = 0;
  while (received < upload.payload.size()) {
    CHECK_FALSE(validator.complete());
    received = std::min(upload.payload.size(), received + 1 + rng.below(9000));
    REQUIRE(validator.advance(std::span(upload.payload).first(received)).has_value());
  }
  REQUIRE(validator.complete());
  const auto offsets = payload_offsets(fragment, codec);
  for (std::size_t i = 0; i < fragment.tensors.size(); ++i) {
    const auto bytes =
        std::span<const std::byte>(upload.payload).subspan(offsets[i], offsets[i + 1] - offsets[i]);
    CHECK(
        validator.norm2()[i] ==
        codec::validate_norm2(codec, bytes, static_cast<std::size_t>(fragment.tensors[i].elements))
            .value());
  }
}

TEST_CASE(
    "non-finite and boundless uploads are refused, and the merge refuses what slipped through") {
  const auto fragmentation = diloco::Fragmentation::balanced(make_layout({300, 40}), 1).value();
  const diloco::Fragment& fragment = fragmentation[FragmentId(0)];
  std::vector<float> values(340, 0.5F);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 3e38F}) {
    CAPTURE(bad);
    values[310] = bad;
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    PayloadValidator validator(fragment, Codec::kFp32);
    const auto status = validator.advance(bytes);
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().kind == ErrorKind::kRefused);
    CHECK(status.error().message.find("tensor 1") != std::string::npos);
  }
  Model model = make_model({300, 40}, 1, 1);
  Rng rng(1);
  Upload upload = random_upload(fragment, rng, Codec::kFp32);
  upload.norm2[0] = std::nan("");
  CHECK(model.store->prepare(FragmentId(0), inputs({upload}), true).error().kind ==
        ErrorKind::kRefused);
  upload.payload.pop_back();
  CHECK(model.store->prepare(FragmentId(0), inputs({upload}), true).error().kind ==
        ErrorKind::kInvalid);
  values[310] = std::nanf("");
  CHECK(model.store->set(FragmentId(0), GlobalStep(1), values, {}, {}).error().kind ==
        ErrorKind::kRefused);
}

TEST_CASE("the largest legal uploads leave master and momentum finite") {
  Model model = make_model({300, 40}, 1, 1);
  const FragmentId p(0);
  const std::vector<float> values(340, 5e13F);  // norm of the larger tensor: 8.7e14
  const Upload upload = encode_upload(model.fragmentation[p], values, Codec::kFp32);
  for (std::int64_t t = 1; t <= 50; ++t) {
    REQUIRE(model.store->prepare(p, inputs({upload, upload}), true).value());
    model.store->apply(p, GlobalStep(t), rules(Codec::kInt4), true, {});
  }
  CHECK(codec::all_finite(model.store->master(p)));
  CHECK(codec::all_finite(model.store->momentum(p)));
}

TEST_CASE("a learner that follows frames holds the published bytes, whatever it missed") {
  const Codec downlink = GENERATE(Codec::kFp32, Codec::kBf16, Codec::kInt8, Codec::kInt4);
  CAPTURE(codec::name(downlink));
  Model model = make_model(kSizes, 2, 2);
  Rng rng(21);
  struct Learner {
    GlobalStep have[2] = {GlobalStep(-1), GlobalStep(-1)};
    std::vector<float> base[2];
  };
  std::vector<Learner> learners(3);
  for (std::int64_t t = 1; t <= 30; ++t) {
    const FragmentId p(static_cast<std::int32_t>(t % 2));
    const std::vector<Upload> uploads{random_upload(model.fragmentation[p], rng, Codec::kInt4)};
    REQUIRE(model.store->prepare(p, inputs(uploads), true).value());
    model.store->apply(p, GlobalStep(t), rules(downlink), true, "members of " + std::to_string(t));
    for (std::size_t l = 0; l < learners.size(); ++l) {
      if (l > 0 && rng.chance(l == 1 ? 0.5 : 0.9)) continue;  // it missed this one, or many
      for (std::int32_t q = 0; q < 2; ++q) {
        while (const auto frame = model.store->frame(FragmentId(q), learners[l].have[q])) {
          if (!frame->keyframe()) REQUIRE(frame->base == learners[l].have[q]);
          follow(model.fragmentation[FragmentId(q)], *frame, &learners[l].base[q]);
          learners[l].have[q] = frame->version;
          if (frame->version.value > 0)
            CHECK(*frame->meta == "members of " + std::to_string(frame->version.value));
        }
        const auto published = model.store->published(FragmentId(q));
        REQUIRE(std::equal(learners[l].base[q].begin(), learners[l].base[q].end(),
                           published->floats().begin(), published->floats().end()));
      }
    }
  }
  if (downlink == Codec::kFp32) {
    CHECK(model.store->history_bytes() == 0);
    const auto published = model.store->published(FragmentId(0));
    CHECK(std::equal(published->floats().begin(), published->floats().end(),
                     model.store->master(FragmentId(0)).begin()));
  }
}

TEST_CASE("delta frames are kept up to four a fragment and 4N bytes in all") {
  for (const Codec downlink : {Codec::kInt4, Codec::kInt8, Codec::kBf16}) {
    CAPTURE(codec::name(downlink));
    Model model = make_model({1024, 1024, 1024, 1024}, 4, 1);
    Rng rng(2);
    for (std::int64_t t = 1; t <= 24; ++t) {
      const FragmentId p(static_cast<std::int32_t>(t % 4));
      REQUIRE(
          model.store
              ->prepare(p, inputs({random_upload(model.fragmentation[p], rng, Codec::kInt4)}), true)
              .value());
      model.store->apply(p, GlobalStep(t), rules(downlink), true, {});
      REQUIRE(model.store->history_bytes() <= 4 * 4096);
    }
    // Four deltas of each of four fragments: int4 holds them all, int8 all but the oldest (9 on
    // base 5), bf16 half.
    CHECK(model.store->frame(FragmentId(1), GlobalStep(5))->keyframe() ==
          (downlink != Codec::kInt4));
    CHECK(model.store->frame(FragmentId(0), GlobalStep(8))->keyframe() ==
          (downlink == Codec::kBf16));
    CHECK_FALSE(model.store->frame(FragmentId(0), GlobalStep(16))->keyframe());
    CHECK(model.store->frame(FragmentId(0), GlobalStep(4))->keyframe());
    CHECK_FALSE(model.store->frame(FragmentId(0), GlobalStep(20))->keyframe());
    CHECK_FALSE(model.store->frame(FragmentId(0), GlobalStep(24)).has_value());
    CHECK_FALSE(model.store->frame(FragmentId(0), GlobalStep(99)).has_value());
  }
}

TEST_CASE("a frame that a reader holds keeps its bytes") {
  Model model = make_model({2000, 2000}, 1, 1);
  const FragmentId p(0);
  Rng rng(2);
  const auto held = model.store->frame(p, GlobalStep(-1));
  REQUIRE(held->keyframe());
  const std::uint64_t before = checksum_of(held->payload->bytes());
  for (std::int64_t t = 1; t <= 3; ++t) {
    REQUIRE(
        model.store
            ->prepare(p, inputs({random_upload(model.fragmentation[p], rng, Codec::kInt4)}), true)
            .value());
    model.store->apply(p, GlobalStep(t), rules(Codec::kInt4), true, {});
  }
  CHECK(checksum_of(held->payload->bytes()) == before);
}

// The whole loop: an element that moves 0.2 quantum a round beside a large one arrives. The learner
// keeps the uplink's residual (adopted because it was merged) and trains from the published bytes,
// as protocol.md §2.7, §3 have it.
TEST_CASE("an element moving 0.2 quantum a round beside a large one arrives") {
  Model model = make_model({1, 256}, 1, 1);
  const FragmentId p(0);
  const diloco::Fragment& fragment = model.fragmentation[p];
  const std::size_t big = 1;
  const std::size_t small = 100;
  const float large_step = 1.0F;
  const float small_step = 0.2F * large_step / 7.0F;
  std::vector<float> base;
  follow(fragment, *model.store->frame(p, GlobalStep(-1)), &base);
  const float start = base[small];
  const float master_start = model.store->master(p)[small];
  std::vector<float> residual(base.size(), 0.0F);
  const int rounds = 200;
  for (int t = 1; t <= rounds; ++t) {
    std::vector<float> gradient = residual;  // base - theta, and what the codec has kept back
    gradient[big] += (t % 2 == 0 ? large_step : -large_step);
    gradient[small] += small_step;
    const Upload upload = encode_upload(fragment, gradient, Codec::kInt4);
    const auto sent = decode_upload(fragment, upload);
    for (std::size_t i = 0; i < gradient.size(); ++i) residual[i] = gradient[i] - sent[i];
    REQUIRE(model.store->prepare(p, inputs({upload}), true).value());
    model.store->apply(p, GlobalStep(t), rules(Codec::kInt4, 1.0F, 0.0F), true, {});
    follow(fragment, *model.store->frame(p, GlobalStep(t - 1)), &base);
  }
  const float expected = static_cast<float>(rounds) * small_step;
  // Each codec may hold back half a quantum of a block whose largest element is about 1.
  const float quantum = 1.1F / 7.0F;
  CHECK(std::abs((master_start - model.store->master(p)[small]) - expected) <= quantum);
  CHECK(std::abs((start - base[small]) - expected) <= 2 * quantum);
}

TEST_CASE("final publication: published is master, for every fragment, as keyframes") {
  Model model = make_model({500, 400}, 2, 1);
  Rng rng(2);
  REQUIRE(
      model.store
          ->prepare(FragmentId(0),
                    inputs({random_upload(model.fragmentation[FragmentId(0)], rng, Codec::kInt4)}),
                    true)
          .value());
  model.store->apply(FragmentId(0), GlobalStep(2), rules(Codec::kInt4), true, {});
  model.store->publish_masters(GlobalStep(3));
  for (std::int32_t p = 0; p < 2; ++p) {
    const auto frame = model.store->frame(FragmentId(p), GlobalStep(2));
    REQUIRE(frame.has_value());
    CHECK(frame->keyframe());
    CHECK(frame->version == GlobalStep(3));
    const auto master = model.store->master(FragmentId(p));
    CHECK(std::equal(master.begin(), master.end(), frame->payload->floats().begin()));
  }
  CHECK(model.store->history_bytes() == 0);
}

TEST_CASE("readers on other threads see whole versions while merges go on") {
  Model model = make_model({3000, 5000}, 1, 2);
  const FragmentId p(0);
  std::map<std::int64_t, std::uint64_t> written;
  written[0] = checksum_of(model.store->keyframe(p)->payload->bytes());
  std::vector<std::map<std::int64_t, std::uint64_t>> seen(2);
  {
    std::vector<std::jthread> readers;
    for (auto& mine : seen)
      readers.emplace_back([&mine, &model, p](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          const auto frame = model.store->frame(p, GlobalStep(-1));
          mine[frame->version.value] = checksum_of(frame->payload->bytes());
        }
      });
    Rng rng(2);
    const Upload upload = random_upload(model.fragmentation[p], rng, Codec::kInt4);
    for (std::int64_t t = 1; t <= 300; ++t) {
      REQUIRE(model.store->prepare(p, inputs({upload}), true).value());
      model.store->apply(p, GlobalStep(t), rules(Codec::kInt4), true, {});
      written[t] = checksum_of(model.store->keyframe(p)->payload->bytes());
    }
  }
  for (const auto& mine : seen)
    for (const auto& [version, checksum] : mine) CHECK(written.at(version) == checksum);
}
