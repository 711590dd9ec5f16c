// protocol.md §3: 4.5 x 4N, two buffers of the largest fragment and the encoded uploads of open
// rounds bound the memory.
#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>

#include "outer-optimizer/store/store.h"
#include "tests/outer-optimizer/store_fixture.h"

using namespace archipelago;
using namespace archipelago::outer;

namespace {

std::uint64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t kib = 0;
    if (fields >> name >> kib && name == key + ":") return kib << 10;
  }
  return 0;
}

}  // namespace

TEST_CASE("50 M parameters with one tensor of a third: peak memory within the bound") {
  std::vector<std::int64_t> sizes{16'700'000};
  for (int i = 0; i < 60; ++i) sizes.push_back(555'000);
  const TempDir dir;
  StoreOptions options;
  options.folder = dir.path();
  options.run_id = "memory";
  options.fragments = options.interval = 24;
  options.threads = 2;
  options.checkpoint_every = 24;
  options.keep = 1;
  const std::uint64_t before = status_bytes("VmRSS");
  auto store = Store::open(options, [](std::string_view) {}).value();
  REQUIRE(store->set_layout(make_layout(sizes), {}).has_value());
  const auto& fragmentation = store->fragmentation();
  Rng rng(1);
  for (std::int32_t p = 0; p < 24; ++p) {
    std::vector<float> values(static_cast<std::size_t>(fragmentation[FragmentId(p)].elements));
    for (float& v : values) v = static_cast<float>(rng.uniform(-1, 1));
    REQUIRE(store->seed_fragment(FragmentId(p), GlobalStep(0), values).has_value());
  }
  REQUIRE(store->commit_seed(GlobalStep(0), "s").has_value());

  std::uint64_t uploads_held = 0;
  for (std::int64_t t = 1; t <= 120; ++t) {  // five cycles: the delta history is full
    const FragmentId p(static_cast<std::int32_t>(t % 24));
    const auto& fragment = fragmentation[p];
    // Zeros are legal int4 and cost no time to make; two learners' uploads are held at once.
    std::vector<Upload> uploads(2);
    MergeRequest request{GlobalStep(t), p, {}, "m", "s"};
    for (Upload& upload : uploads) {
      upload.payload.resize(payload_bytes(fragment, codec::Codec::kInt4));
      upload.norm2.assign(fragment.tensors.size(), 0.0);
      request.members.push_back(upload.input());
    }
    uploads_held = std::max<std::uint64_t>(uploads_held, 2 * uploads[0].payload.size());
    REQUIRE(store->merge_and_commit(request).has_value());
    if (t % 24 == 0) REQUIRE(store->start_checkpoint(GlobalStep(t), "s").has_value());
    if (auto done = store->poll_checkpoint()) REQUIRE(done->status.has_value());
  }
  static_cast<void>(store->finish_checkpoint());
  store.reset();
  // A restart reads the checkpoint and replays the journal within the same bound.
  store = std::move(Store::open(options, [](std::string_view) {}).value());
  CHECK(store->recovery().committed == GlobalStep(120));

  const auto n = static_cast<std::uint64_t>(store->layout().elements());
  const std::uint64_t bound =
      18 * n + 8 * static_cast<std::uint64_t>(fragmentation.max_elements()) + uploads_held;
  const std::uint64_t peak = status_bytes("VmHWM") - before;
  std::printf("N %.1f M: peak %.0f MB, bound %.0f MB\n", static_cast<double>(n) / 1e6,
              static_cast<double>(peak) / 1e6, static_cast<double>(bound) / 1e6);
  CHECK(peak <= bound);
  CHECK(peak >= 12 * n);  // it did hold the arrays: the measurement works
}
