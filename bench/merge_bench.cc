// Merge + Nesterov + downlink of 100 M parameters from four int4 uploads, against the time that the
// memory traffic takes at memcpy speed on the same threads. The journal's cost is stated apart.
//
//   merge_bench [parameters in millions = 100] [threads = 2] [repeats = 5]
//   merge_bench --benchmark_min_time=...   (ctest: does it run; one small repeat)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/files.h"
#include "common/base/rng.h"
#include "outer-optimizer/store/fragment_store.h"
#include "outer-optimizer/store/journal.h"

namespace {

using namespace archipelago;
using namespace archipelago::outer;

constexpr int kMembers = 4;
constexpr std::int64_t kFragments = 24;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Tensors as a decoder has them: an embedding and many matrices.
diloco::Layout model(std::int64_t parameters) {
  std::vector<diloco::Tensor> tensors;
  const std::int64_t embedding = parameters / 20;
  const std::int64_t matrix = (parameters - embedding) / 95;
  for (int i = 0; i < 96; ++i) {
    diloco::Tensor t;
    t.name = "t" + std::to_string(i);
    t.shape = {i == 0 ? embedding : matrix};
    t.merge_class = i == 0 ? diloco::MergeClass::kEmbedding : diloco::MergeClass::kOther;
    tensors.push_back(t);
  }
  return diloco::Layout::create(std::move(tensors)).value();
}

struct Upload {
  std::vector<std::byte> payload;
  std::vector<double> norm2;
};

Upload make_upload(const diloco::Fragment& fragment, Rng& rng) {
  Upload upload;
  const auto offsets = payload_offsets(fragment, codec::Codec::kInt4);
  upload.payload.resize(offsets.back());
  for (std::size_t i = 0; i < fragment.tensors.size(); ++i) {
    std::vector<float> values(static_cast<std::size_t>(fragment.tensors[i].elements));
    for (float& v : values) v = static_cast<float>(rng.uniform(-1e-3, 1e-3));
    const auto out = std::span(upload.payload).subspan(offsets[i], offsets[i + 1] - offsets[i]);
    ARCH_CHECK(codec::encode(codec::Codec::kInt4, values, out).has_value());
  }
  PayloadValidator validator(fragment, codec::Codec::kInt4);
  ARCH_CHECK(validator.advance(upload.payload).has_value());
  upload.norm2 = validator.norm2();
  return upload;
}

// Bytes read and written a second by memcpy on `threads` threads; best of `repeats`.
double memcpy_speed(std::size_t bytes, int threads, int repeats) {
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes, std::byte{2});
  double best = 1e9;
  for (int r = 0; r < repeats; ++r) {
    const double begin = now();
    {
      std::vector<std::jthread> pool;
      const std::size_t part = bytes / static_cast<std::size_t>(threads);
      for (int i = 0; i < threads; ++i)
        pool.emplace_back([&, i] {
          const std::size_t at = part * static_cast<std::size_t>(i);
          std::memcpy(to.data() + at, from.data() + at, part);
        });
    }
    best = std::min(best, now() - begin);
  }
  return 2.0 * static_cast<double>(bytes) / best;
}

struct Times {
  double prepare = 0;
  double apply = 0;
  double journal = 0;
  [[nodiscard]] double merge() const { return prepare + apply; }
};

Times one_cycle(FragmentStore& store, const std::vector<std::vector<Upload>>& uploads,
                std::int64_t* t, Journal* journal) {
  const OuterRules rules;
  Times times;
  for (std::int32_t i = 0; i < store.fragmentation().count(); ++i) {
    const FragmentId p(i);
    std::vector<MergeInput> inputs;
    for (const Upload& upload : uploads[static_cast<std::size_t>(i)])
      inputs.push_back({upload.payload, codec::Codec::kInt4, 65536, 24, upload.norm2});
    const double begin = now();
    ARCH_CHECK(store.prepare(p, inputs, true).value_or(false));
    const double prepared = now();
    if (journal != nullptr) {
      const auto bytes =
          static_cast<std::uint64_t>(store.fragmentation()[p].elements) * sizeof(float);
      const auto done = journal->append(
          RecordType::kCommit, "head", bytes, [&](std::uint64_t first, std::span<std::byte> out) {
            std::vector<float> piece(out.size() / sizeof(float));
            store.gradient(static_cast<std::int64_t>(first / sizeof(float)), piece);
            std::memcpy(out.data(), piece.data(), out.size());
          });
      ARCH_CHECK(done.has_value(), << "journal");
    }
    const double journaled = now();
    store.apply(p, GlobalStep(++*t), rules, true, {});
    times.prepare += prepared - begin;
    times.journal += journaled - prepared;
    times.apply += now() - journaled;
  }
  return times;
}

void bench(std::int64_t parameters, int threads, int repeats) {
  const double speed =
      memcpy_speed(static_cast<std::size_t>(std::min<std::int64_t>(4 * parameters, 400'000'000)),
                   threads, repeats);
  const diloco::Layout layout = model(parameters);
  const auto fragmentation = diloco::Fragmentation::balanced(layout, kFragments).value();
  const auto store = FragmentStore::create(layout, fragmentation, threads).value();
  Rng rng(1);
  std::vector<std::vector<Upload>> uploads;
  std::uint64_t upload_bytes = 0;
  for (std::int32_t p = 0; p < fragmentation.count(); ++p) {
    const auto& fragment = fragmentation[FragmentId(p)];
    const std::vector<float> seed(static_cast<std::size_t>(fragment.elements), 0.01F);
    ARCH_CHECK(store->set(FragmentId(p), GlobalStep(0), seed, {}, {}).has_value());
    // Two different uploads serve four members: making test data must not take longer than the
    // test.
    const Upload a = make_upload(fragment, rng);
    const Upload b = make_upload(fragment, rng);
    uploads.push_back({a, b, a, b});
    for (const Upload& upload : uploads.back()) upload_bytes += upload.payload.size();
  }
  std::int64_t t = 0;
  static_cast<void>(one_cycle(*store, uploads, &t, nullptr));  // touches all memory once
  Times best{1e9, 1e9, 0};
  for (int r = 0; r < repeats; ++r) {
    const Times times = one_cycle(*store, uploads, &t, nullptr);
    if (times.merge() < best.merge()) best = times;
  }
  // Read: uploads, gradient, momentum, master, published. Written: gradient, momentum, master,
  // published, delta.
  const double n = 4.0 * static_cast<double>(layout.elements());
  const double traffic =
      static_cast<double>(upload_bytes) + static_cast<double>(upload_bytes) / kMembers + 8 * n;
  const double floor = traffic / speed;
  std::printf("merge_bench: %lld parameters, %d int4 uploads, %lld fragments, %d threads\n",
              static_cast<long long>(layout.elements()), kMembers,
              static_cast<long long>(kFragments), threads);
  std::printf("  memcpy %.1f GB/s read+written; traffic %.2f GB -> %.3f s\n", speed / 1e9,
              traffic / 1e9, floor);
  std::printf(
      "  merge %.3f s (sum of uploads %.3f, outer step and downlink %.3f): %.2f x its memory "
      "traffic at memcpy speed\n",
      best.merge(), best.prepare, best.apply, best.merge() / floor);

  const TempDir folder;
  FileOps ops;
  JournalReplay report;
  const std::uint64_t reserve = static_cast<std::uint64_t>(n) + (1U << 20);
  auto journal = Journal::open(
      ops, folder.path(), {}, reserve, [](const JournalRecord&) { return Status{}; }, &report);
  if (!journal) {
    std::printf("  journal: not measured: %s\n", journal.error().describe().c_str());
    return;
  }
  const Times with = one_cycle(*store, uploads, &t, journal->get());
  std::printf("  journal, apart: %.3f s for %.2f GB with a sync each of %lld records (%.2f GB/s)\n",
              with.journal, n / 1e9, static_cast<long long>(kFragments), n / 1e9 / with.journal);
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t millions = 100;
  int threads = 2;
  int repeats = 5;
  if (argc > 1 && std::string_view(argv[1]).starts_with("--")) {
    millions = 1;
    repeats = 1;
  } else {
    if (argc > 1) millions = std::atoll(argv[1]);
    if (argc > 2) threads = std::atoi(argv[2]);
    if (argc > 3) repeats = std::atoi(argv[3]);
  }
  if (millions < 1 || millions > 10'000 || threads < 1 || threads > 256 || repeats < 1) {
    std::fprintf(stderr, "usage: merge_bench [millions 1..10000] [threads 1..256] [repeats]\n");
    return 2;
  }
  bench(millions * 1'000'000, threads, repeats);
  return 0;
}
