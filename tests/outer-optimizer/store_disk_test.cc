// A real small disk: a tmpfs of a few megabytes, filled to the last byte. Needs the right to mount;
// without it the case says so and passes nothing off as tested.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sys/mount.h>

#include <catch2/catch.hpp>

#include "outer-optimizer/store/store.h"
#include "tests/outer-optimizer/store_fixture.h"

using namespace archipelago;
using namespace archipelago::outer;
namespace fs = std::filesystem;

namespace {

class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size) {
    mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    error_ = mounted_ ? 0 : errno;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const {
    if (!mounted_)
      WARN("not tested: no right to mount a tmpfs here (" << std::strerror(error_) << ")");
    return mounted_;
  }
  [[nodiscard]] const fs::path& path() const { return folder_.path(); }
  void fill() const {
    std::ofstream out(path() / "filler", std::ios::binary);
    const std::string piece(4096, 'x');
    while (out.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
  }
  void free() const { fs::remove(path() / "filler"); }

 private:
  TempDir folder_;
  bool mounted_ = false;
  int error_ = 0;
};

StoreOptions options_for(const fs::path& folder) {
  StoreOptions options;
  options.folder = folder / "run";
  options.run_id = "disk";
  options.fragments = options.interval = 2;
  options.threads = 1;
  options.checkpoint_every = 4;
  options.keep = 1;
  return options;
}

const std::vector<std::int64_t> kSizes{100'000, 60'000, 40'000};

void seed(Store& store) {
  REQUIRE(store.set_layout(make_layout(kSizes), {}).has_value());
  Rng rng(1);
  for (std::int32_t p = 0; p < 2; ++p)
    REQUIRE(store
                .seed_fragment(FragmentId(p), GlobalStep(0),
                               random_floats(rng, store.fragmentation()[FragmentId(p)].elements, 1))
                .has_value());
  REQUIRE(store.commit_seed(GlobalStep(0), "seeded").has_value());
}

Status merge(Store& store, std::int64_t t) {
  const FragmentId p(static_cast<std::int32_t>(t % 2));
  Rng rng(static_cast<std::uint64_t>(t));
  const Upload upload = random_upload(store.fragmentation()[p], rng, codec::Codec::kInt4);
  auto outcome = store.merge_and_commit({GlobalStep(t), p, {upload.input()}, "", "t"});
  return outcome ? Status{} : fail(outcome.error());
}

}  // namespace

TEST_CASE("a disk of one and a half checkpoints is refused at the layout, with the figures") {
  const SmallDisk disk("3600k");
  if (!disk.mounted()) return;
  auto store = Store::open(options_for(disk.path()), [](std::string_view) {}).value();
  const auto refused = store->set_layout(make_layout(kSizes), {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::kNoSpace);
  CHECK(refused.error().message.find("needs") != std::string::npos);
}

TEST_CASE(
    "a disk that fills up stops checkpoints, then commits, it all goes on when there is room") {
  const SmallDisk disk("16m");
  if (!disk.mounted()) return;
  auto store = Store::open(options_for(disk.path()), [](std::string_view) {}).value();
  seed(*store);
  REQUIRE(merge(*store, 1).has_value());
  REQUIRE(store->start_checkpoint(GlobalStep(1), "one").value());
  REQUIRE(store->finish_checkpoint()->status.has_value());
  disk.fill();

  // The checkpoint does not fit; the last good one stays and training goes on while the journal has
  // room.
  REQUIRE(store->start_checkpoint(GlobalStep(1), "two").has_value());
  const auto result = store->finish_checkpoint();
  REQUIRE(result.has_value());
  CHECK(result->status.error().kind == ErrorKind::kNoSpace);
  CHECK(list_checkpoints(disk.path() / "run" / "checkpoints") ==
        std::vector<GlobalStep>{GlobalStep(1)});
  std::int64_t t = 2;
  Status status;
  for (; t < 100 && (status = merge(*store, t)); ++t) {
  }
  CHECK(t > 4);
  REQUIRE_FALSE(status.has_value());
  CHECK(status.error().kind == ErrorKind::kNoSpace);
  const std::uint64_t stopped = fingerprint(*store->fragments());
  CHECK(merge(*store, t).error().kind == ErrorKind::kNoSpace);
  CHECK(fingerprint(*store->fragments()) == stopped);

  // A restart on the full disk still finds everything (only the epoch cannot be counted: it says
  // so).
  store.reset();
  const auto full = Store::open(options_for(disk.path()), [](std::string_view) {});
  if (full)
    CHECK(fingerprint(*(*full)->fragments()) == stopped);
  else
    CHECK(full.error().kind == ErrorKind::kNoSpace);

  disk.free();
  store = std::move(Store::open(options_for(disk.path()), [](std::string_view) {}).value());
  CHECK(fingerprint(*store->fragments()) == stopped);
  REQUIRE(merge(*store, t).has_value());
  CHECK(store->disk_use().free_bytes > 0);
  REQUIRE(store->start_checkpoint(GlobalStep(t), "three").value());
  REQUIRE(store->finish_checkpoint()->status.has_value());
}
