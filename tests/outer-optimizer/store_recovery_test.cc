#include <algorithm>
#include <fstream>

#include <catch2/catch.hpp>

#include "common/wire/safetensors.h"
#include "outer-optimizer/store/store.h"
#include "tests/outer-optimizer/store_fixture.h"

using namespace archipelago;
using namespace archipelago::outer;
using codec::Codec;
namespace fs = std::filesystem;

namespace {

const std::vector<std::int64_t> kSizes{40, 7, 1, 20, 12};

struct Opened {
  std::unique_ptr<Store> store;
  std::string last_state;
};

StoreOptions options_for(const fs::path& folder, FileOps* ops = nullptr) {
  StoreOptions options;
  options.folder = folder;
  options.run_id = "run-1";
  options.fragments = 2;
  options.interval = 2;
  options.rules = {{0.7F, 0.9F, true}, true, Codec::kInt4};
  options.threads = 1;
  options.checkpoint_every = 4;
  options.keep = 2;
  options.ops = ops;
  return options;
}

Result<Opened> try_open(const StoreOptions& options) {
  Opened opened;
  ARCH_TRY(opened.store,
           Store::open(options, [&](std::string_view state) { opened.last_state = state; }));
  return opened;
}

Opened open_store(const StoreOptions& options) {
  auto opened = try_open(options);
  if (!opened) FAIL(opened.error().describe());
  return std::move(*opened);
}

// The state that must survive: tensors (0 before the seed) and the newest core state.
using State = std::pair<std::uint64_t, std::string>;
State state_of(const Opened& opened) {
  return {opened.store->seeded() ? fingerprint(*opened.store->fragments()) : 0, opened.last_state};
}

// One short life of a run, an action after another; each is durable when it returns.
constexpr int kActions = 11;
Status act(Opened& run, int action) {
  Store& store = *run.store;
  auto done = [&](Status status, const std::string& state) {
    if (status) run.last_state = state;
    return status;
  };
  auto merge = [&](std::int64_t t) -> Status {
    const FragmentId p(static_cast<std::int32_t>(t % 2));
    const diloco::Fragment& fragment = store.fragmentation()[p];
    Rng rng(static_cast<std::uint64_t>(t));
    const Upload a = random_upload(fragment, rng, Codec::kInt4);
    const Upload b = random_upload(fragment, rng, Codec::kInt8);
    const std::string state = "committed " + std::to_string(t);
    auto outcome = store.merge_and_commit({GlobalStep(t), p, {a.input(), b.input()}, "a,b", state});
    return outcome ? done({}, state) : fail(outcome.error());
  };
  switch (action) {
    case 0:
      return done(store.persist("hello"), "hello");
    case 1: {
      if (!store.has_layout())
        ARCH_TRY_VOID(store.set_layout(make_layout(kSizes), {{"config.json", "{}"}}));
      Rng rng(77);
      for (std::int32_t p = 0; p < 2; ++p)
        ARCH_TRY_VOID(store.seed_fragment(
            FragmentId(p), GlobalStep(0),
            random_floats(rng, store.fragmentation()[FragmentId(p)].elements, 0.3)));
      return done(store.commit_seed(GlobalStep(0), "seeded"), "seeded");
    }
    case 2:
      return merge(1);
    case 3:
      return merge(2);
    case 4:
      return done(store.persist("reserved 64"), "reserved 64");
    case 5: {
      const auto started = store.start_checkpoint(GlobalStep(2), run.last_state);
      if (!started) return fail(started.error());
      ARCH_TRY_VOID(merge(3));
      return store.finish_checkpoint()->status;
    }
    case 6:
      return merge(4);
    case 7:
      return merge(5);
    case 8: {
      const auto started = store.start_checkpoint(GlobalStep(5), run.last_state);
      if (!started) return fail(started.error());
      return store.finish_checkpoint()->status;
    }
    case 9:
      return merge(6);
    case 10:
      return done(store.publish_final(GlobalStep(7), "final"), "final");
    default:
      return fail(ErrorKind::kInternal, "no such action");
  }
}

struct Reference {
  std::vector<State> after;  // [0]: nothing yet; [i]: after action i - 1
  std::int64_t units = 0;    // bytes and operations of the whole life
};

Reference undisturbed() {
  FastDir dir;
  FaultyFiles ops;
  Opened run = open_store(options_for(dir.path(), &ops));
  Reference reference;
  reference.after.push_back(state_of(run));
  for (int action = 0; action < kActions; ++action) {
    const Status status = act(run, action);
    if (!status) FAIL(status.error().describe());
    reference.after.push_back(state_of(run));
  }
  reference.units = ops.spent;
  return reference;
}

}  // namespace

TEST_CASE(
    "power lost at every byte of every write: it comes back bit-identical to the last durable "
    "state") {
  const Reference reference = undisturbed();
  REQUIRE(reference.units > 5000);
  FastDir dir;
  for (std::int64_t budget = 0; budget <= reference.units; ++budget) {
    INFO("power lost after " << budget << " units");
    dir.clear();
    int acknowledged = 0;
    {
      FaultyFiles ops;
      ops.budget = budget;
      auto run = try_open(options_for(dir.path(), &ops));
      while (run && acknowledged < kActions && act(*run, acknowledged)) ++acknowledged;
    }
    Opened back = open_store(options_for(dir.path()));
    REQUIRE(back.store->recovery().problems.empty());
    // What had been acknowledged is there; the action that was cut off is there wholly or not at
    // all. (Action 5 holds two durable points: its merge may be in although its checkpoint isn't.)
    const State state = state_of(back);
    const bool exact = state == reference.after[static_cast<std::size_t>(acknowledged)];
    const bool next = acknowledged < kActions &&
                      state == reference.after[static_cast<std::size_t>(acknowledged) + 1];
    if (!exact && !next)
      FAIL("state after " << acknowledged << " actions is lost; newest is '" << state.second
                          << "'");
    if (budget % 11 != 0) continue;
    // And the run goes on to the same end.
    for (int action = acknowledged + (exact ? 0 : 1); action < kActions; ++action) {
      if (action == 1 && back.store->seeded()) continue;
      const Status status = act(back, action);
      if (!status) FAIL("action " << action << ": " << status.error().describe());
    }
    REQUIRE(state_of(back) == reference.after.back());
  }
}

TEST_CASE("replay gives back the delta frames and their members too") {
  FastDir dir;
  std::vector<std::byte> payload;
  {
    Opened run = open_store(options_for(dir.path()));
    for (int action = 0; action < 5; ++action) REQUIRE(act(run, action).has_value());
    const auto frame = run.store->frame(FragmentId(1), GlobalStep(0));
    REQUIRE_FALSE(frame->keyframe());
    payload.assign(frame->payload->bytes().begin(), frame->payload->bytes().end());
  }
  Opened run = open_store(options_for(dir.path()));
  const auto frame = run.store->frame(FragmentId(1), GlobalStep(0));
  REQUIRE(frame.has_value());
  CHECK(frame->version == GlobalStep(1));
  CHECK(std::equal(payload.begin(), payload.end(), frame->payload->bytes().begin(),
                   frame->payload->bytes().end()));
  CHECK(*frame->meta == "a,b");
}

TEST_CASE("a replay under changed settings still gives the bits of the past") {
  FastDir dir;
  State before;
  {
    Opened run = open_store(options_for(dir.path()));
    for (int action = 0; action < 5; ++action) REQUIRE(act(run, action).has_value());
    before = state_of(run);
  }
  StoreOptions changed = options_for(dir.path());
  changed.rules = {{0.1F, 0.5F, false}, false, Codec::kInt8};
  changed.threads = 3;
  CHECK(state_of(open_store(changed)) == before);
}

TEST_CASE("a damaged checkpoint is named and the one before is used, the loss is reported") {
  const Reference reference = undisturbed();
  for (const std::string victim :
       {"manifest.txt", "fragment-0.bin", "fragment-1.bin", "layout.txt", "state.json"}) {
    for (const std::string how : {"flip", "truncate", "remove", "empty"}) {
      CAPTURE(victim, how);
      FastDir dir;
      {
        Opened run = open_store(options_for(dir.path()));
        for (int action = 0; action < 9; ++action) REQUIRE(act(run, action).has_value());
      }
      const fs::path file = dir.path() / "checkpoints" / "5" / victim;
      std::string bytes = read_file(file).value();
      if (how == "flip") bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      if (how == "truncate") bytes.pop_back();
      if (how == "empty") bytes.clear();
      if (how == "remove")
        fs::remove(file);
      else
        std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;

      Opened back = open_store(options_for(dir.path()));
      const RecoveryReport& report = back.store->recovery();
      CHECK(report.found);
      CHECK(report.checkpoint_step == GlobalStep(2));
      // Its journal went with the newer checkpoint, so it is the state at 2 exactly, and that is
      // said.
      CHECK(state_of(back).first == reference.after[5].first);
      if (victim != "manifest.txt" || how != "remove") {
        CHECK(report.rolled_back);
        REQUIRE_FALSE(report.problems.empty());
        CHECK(report.problems[0].find("checkpoints/5/" + victim) != std::string::npos);
      }
      // It goes on, and what it does now survives the next start.
      for (int action = 6; action < 8; ++action) {
        Opened* run = &back;
        run->last_state = "x";
        REQUIRE(act(*run, action).has_value());
      }
      const State now = state_of(back);
      back.store.reset();
      CHECK(state_of(open_store(options_for(dir.path()))) == now);
    }
  }
}

TEST_CASE("when no checkpoint is usable the start fails with its name") {
  FastDir dir;
  {
    Opened run = open_store(options_for(dir.path()));
    for (int action = 0; action < 3; ++action) REQUIRE(act(run, action).has_value());
  }
  fs::resize_file(dir.path() / "checkpoints" / "0" / "fragment-1.bin", 10);
  const auto opened = try_open(options_for(dir.path()));
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error().kind == ErrorKind::kCorrupt);
  CHECK(opened.error().message.find("checkpoints/0/fragment-1.bin") != std::string::npos);
}

TEST_CASE("another run, another P, a second process: refused, the epoch counts starts") {
  FastDir dir;
  {
    Opened run = open_store(options_for(dir.path()));
    CHECK(run.store->epoch() == 1);
    for (int action = 0; action < 3; ++action) REQUIRE(act(run, action).has_value());
    CHECK(try_open(options_for(dir.path())).error().kind == ErrorKind::kConflict);
  }
  StoreOptions other = options_for(dir.path());
  other.run_id = "run-2";
  CHECK(try_open(other).error().kind == ErrorKind::kConflict);
  other = options_for(dir.path());
  other.fragments = other.interval = 3;
  CHECK(try_open(other).error().kind == ErrorKind::kInvalid);
  CHECK(open_store(options_for(dir.path())).store->epoch() == 2);
  fs::remove(dir.path() / "epoch");  // the checkpoints remember it
  CHECK(open_store(options_for(dir.path())).store->epoch() == 2);
}

TEST_CASE("the store refuses what would break the order or the seed") {
  FastDir dir;
  Opened run = open_store(options_for(dir.path()));
  Store& store = *run.store;
  CHECK_FALSE(store.merge_and_commit({GlobalStep(1), FragmentId(0), {}, "", ""}).has_value());
  CHECK(store.set_layout(make_layout({5}), {}).error().kind == ErrorKind::kInvalid);
  CHECK(store.set_layout(make_layout(kSizes), {{"../x", ""}}).error().kind == ErrorKind::kInvalid);
  REQUIRE(store.set_layout(make_layout(kSizes), {}).has_value());
  CHECK_FALSE(store.commit_seed(GlobalStep(0), "").has_value());
  CHECK_FALSE(store.frame(FragmentId(0), GlobalStep(-1)).has_value());
  REQUIRE(act(run, 1).has_value());
  CHECK(store.frame(FragmentId(0), GlobalStep(-1))->keyframe());
  REQUIRE(act(run, 2).has_value());
  CHECK(act(run, 2).error().kind == ErrorKind::kConflict);
  CHECK(store.set_layout(make_layout(kSizes), {}).error().kind == ErrorKind::kConflict);
}

TEST_CASE("checkpoints are kept by number, bounded, and every n-th for good") {
  FastDir dir;
  StoreOptions options = options_for(dir.path());
  options.keep = 2;
  options.keep_every = 1000;
  Opened run = open_store(options);
  for (int action = 0; action < 2; ++action) REQUIRE(act(run, action).has_value());
  for (const std::int64_t step : {99, 100, 998, 999, 1000, 1001, 1002}) {
    REQUIRE(run.store->start_checkpoint(GlobalStep(step), "s").value());
    REQUIRE(run.store->finish_checkpoint()->status.has_value());
    CHECK(list_checkpoints(dir.path() / "checkpoints").back() == GlobalStep(step));
  }
  CHECK(list_checkpoints(dir.path() / "checkpoints") ==
        std::vector<GlobalStep>{GlobalStep(1000), GlobalStep(1001), GlobalStep(1002)});
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path() / "checkpoints"))
    ++entries;
  CHECK(entries == 3);
}

TEST_CASE(
    "a checkpoint of a step that exists replaces it, and a crash in between leaves one of the "
    "two") {
  FastDir dir;
  Opened run = open_store(options_for(dir.path()));
  for (int action = 0; action < 4; ++action) REQUIRE(act(run, action).has_value());
  for (int i = 0; i < 2; ++i) {
    REQUIRE(run.store->start_checkpoint(GlobalStep(2), "again " + std::to_string(i)).value());
    REQUIRE(run.store->finish_checkpoint()->status.has_value());
  }
  run.store.reset();
  const fs::path checkpoints = dir.path() / "checkpoints";
  fs::rename(checkpoints / "2",
             checkpoints / ".old-2");  // as if power went between the two renames
  Opened back = open_store(options_for(dir.path()));
  CHECK(back.store->recovery().checkpoint_step == GlobalStep(2));
  CHECK(back.last_state == "again 1");
}

TEST_CASE("disk full: the journal refuses, nothing changes, and all goes on when there is room") {
  FastDir dir;
  FaultyFiles ops;
  Opened run = open_store(options_for(dir.path(), &ops));
  for (int action = 0; action < 3; ++action) REQUIRE(act(run, action).has_value());
  const State before = state_of(run);
  ops.full = true;
  const std::string filler(20'000, 'x');
  int fitted = 0;
  while (run.store->persist(filler)) ++fitted;  // use the reservation up
  CHECK(fitted >= 2);
  CHECK(run.store->persist(filler).error().kind == ErrorKind::kNoSpace);
  // A checkpoint doesn't fit either: it isn't started, or it fails and says so; the last good one
  // stays.
  const auto started = run.store->start_checkpoint(GlobalStep(1), "s");
  REQUIRE_FALSE(started.has_value());
  CHECK(started.error().kind == ErrorKind::kNoSpace);
  CHECK(list_checkpoints(dir.path() / "checkpoints") == std::vector<GlobalStep>{GlobalStep(0)});
  CHECK(state_of(run) == before);
  ops.full = false;
  CHECK(run.store->persist(filler).has_value());
  REQUIRE(act(run, 3).has_value());
  const State after = state_of(run);
  run.store.reset();
  Opened back = open_store(options_for(dir.path()));
  CHECK(back.store->recovery().problems.empty());
  CHECK(state_of(back) == after);
}

TEST_CASE("disk full while a checkpoint is written: pruned to the last good one, merges go on") {
  FastDir dir;
  FaultyFiles ops;
  Opened run = open_store(options_for(dir.path(), &ops));
  for (int action = 0; action < 6; ++action) REQUIRE(act(run, action).has_value());
  CHECK(list_checkpoints(dir.path() / "checkpoints").size() == 2);
  REQUIRE(run.store->persist("so that the journal must rotate").has_value());
  REQUIRE(run.store->start_checkpoint(GlobalStep(3), "first").value());
  REQUIRE(run.store->finish_checkpoint()->status.has_value());
  // The journal's present file is empty, so only the checkpoint itself needs room.
  ops.full = true;
  REQUIRE(run.store->start_checkpoint(GlobalStep(4), "second").value());
  const auto result = run.store->finish_checkpoint();
  REQUIRE_FALSE(result->status.has_value());
  CHECK(result->status.error().kind == ErrorKind::kNoSpace);
  CHECK(list_checkpoints(dir.path() / "checkpoints") == std::vector<GlobalStep>{GlobalStep(3)});
  REQUIRE(act(run, 6).has_value());  // within the journal's reservation
  const State state = state_of(run);
  ops.full = false;
  REQUIRE(run.store->start_checkpoint(GlobalStep(4), run.last_state).value());
  REQUIRE(run.store->finish_checkpoint()->status.has_value());
  run.store.reset();
  CHECK(state_of(open_store(options_for(dir.path()))) == state);
}

TEST_CASE("a checkpoint is exact at its step although merges go on while it is written") {
  FastDir dir;
  Opened run = open_store(options_for(dir.path()));
  for (int action = 0; action < 4; ++action) REQUIRE(act(run, action).has_value());
  const std::uint64_t at_two = state_of(run).first;
  for (int round = 0; round < 20; ++round) {
    REQUIRE(run.store->start_checkpoint(GlobalStep(2 + 2 * round), "s").value());
    const std::uint64_t expected = fingerprint(*run.store->fragments());
    if (round == 0) CHECK(expected == at_two);
    for (std::int64_t t = 3 + 2 * round; t <= 4 + 2 * round; ++t) {
      const FragmentId p(static_cast<std::int32_t>(t % 2));
      Rng rng(static_cast<std::uint64_t>(t));
      const Upload upload = random_upload(run.store->fragmentation()[p], rng, Codec::kInt4);
      REQUIRE(
          run.store->merge_and_commit({GlobalStep(t), p, {upload.input()}, "", "s"}).has_value());
    }
    REQUIRE(run.store->finish_checkpoint()->status.has_value());
    const fs::path checkpoints = dir.path() / "checkpoints";
    const auto info = read_checkpoint_info(checkpoints, GlobalStep(2 + 2 * round)).value();
    const auto copy = FragmentStore::create(info.layout, run.store->fragmentation(), 1).value();
    REQUIRE(read_checkpoint_tensors(checkpoints, info, *copy).has_value());
    CHECK(fingerprint(*copy) == expected);
  }
}

TEST_CASE("the model is exported under its own names, from the run and from any kept checkpoint") {
  FastDir dir;
  Opened run = open_store(options_for(dir.path()));
  for (int action = 0; action < kActions; ++action) REQUIRE(act(run, action).has_value());
  REQUIRE(run.store->export_model(dir.path() / "model").has_value());
  const auto file = wire::SafetensorsFile::open(dir.path() / "model" / "model.safetensors").value();
  CHECK(file.tensors().size() == kSizes.size());
  for (std::int32_t i = 0; i < 2; ++i) {
    const auto frame = run.store->frame(FragmentId(i), GlobalStep(0));
    for (const auto& t : run.store->fragmentation()[FragmentId(i)].tensors) {
      const auto& tensor = run.store->layout().tensors()[t.index];
      const auto values = file.read(tensor.name).value();
      CHECK(file.find(tensor.name)->shape == tensor.shape);
      const auto expected =
          frame->payload->floats().subspan(static_cast<std::size_t>(t.offset), values.size());
      CHECK(std::equal(values.begin(), values.end(), expected.begin()));
    }
  }
  CHECK(read_file(dir.path() / "model" / "config.json").value() == "{}");
  REQUIRE(export_checkpoint(dir.path(), GlobalStep(5), dir.path() / "at-5").has_value());
  CHECK(fs::exists(dir.path() / "at-5" / "model.safetensors"));
  CHECK(export_checkpoint(dir.path(), GlobalStep(4), dir.path() / "at-4").error().kind ==
        ErrorKind::kNotFound);
}

TEST_CASE("three billion parameters: sizes of checkpoint, journal and storage in 64 bits") {
  std::vector<std::int64_t> sizes{1'000'000'000};
  for (int i = 0; i < 47; ++i) sizes.push_back(42'553'192);
  const auto layout = make_layout(sizes);
  const auto fragmentation = diloco::Fragmentation::balanced(layout, 24).value();
  const auto n = static_cast<std::uint64_t>(layout.elements());
  CHECK(n > 2'999'000'000ULL);
  CHECK(checkpoint_bytes(fragmentation) == 12 * n + 24 * 64);
  const std::uint64_t journal = journal_bytes(fragmentation, 48);
  CHECK(journal >= 6 * n * 2 - 6 * 48);
  CHECK(journal <= 6 * n * 2);
  CHECK(storage_needed(fragmentation, 3, 48) > 12 * n * 4 + journal);
  CHECK(payload_bytes(fragmentation[FragmentId(0)], Codec::kFp32) == 4'000'000'000ULL);
  CHECK(payload_bytes(fragmentation[FragmentId(0)], Codec::kInt4) > 500'000'000ULL);
}

TEST_CASE("without gradients in the journal, power lost anywhere: back to a whole checkpoint") {
  const Reference reference = undisturbed();
  // By global step of the checkpoints: after the seed, at 2, 5 and 6, and the final version.
  std::vector<std::uint64_t> whole{0};
  for (const std::size_t after : {2U, 4U, 8U, 10U, 11U})
    whole.push_back(reference.after[after].first);
  const auto unjournaled = [](const fs::path& folder, FileOps* ops) {
    auto options = options_for(folder, ops);
    options.journal_gradients = false;
    return options;
  };
  const auto act_on = [](Opened& run, int action) -> Status {
    if (action == 10) ARCH_TRY_VOID(run.store->checkpoint_now(GlobalStep(6), run.last_state));
    return act(run, action);
  };
  FastDir dir;
  FaultyFiles counted;
  {
    Opened run = open_store(unjournaled(dir.path(), &counted));
    for (int action = 0; action < kActions; ++action) REQUIRE(act_on(run, action));
  }
  CHECK(state_of(open_store(unjournaled(dir.path(), nullptr))).first == whole.back());
  const std::int64_t units = counted.spent;
  int went_back = 0;
  for (std::int64_t budget = 0; budget <= units; budget += 3) {
    INFO("power lost after " << budget << " units");
    dir.clear();
    int acknowledged = 0;
    {
      FaultyFiles ops;
      ops.budget = budget;
      auto run = try_open(unjournaled(dir.path(), &ops));
      while (run && acknowledged < kActions && act_on(*run, acknowledged)) ++acknowledged;
    }
    Opened back = open_store(unjournaled(dir.path(), nullptr));
    const auto& recovery = back.store->recovery();
    const State state = state_of(back);
    REQUIRE(std::count(whole.begin(), whole.end(), state.first) > 0);
    REQUIRE(recovery.rolled_back == recovery.without_gradients);
    // What the core noted is not lost with the gradients.
    const auto& after = reference.after;
    const auto now = static_cast<std::size_t>(acknowledged);
    if (state.second != after[now].second &&
        (acknowledged == kActions || state.second != after[now + 1].second))
      FAIL("noted: " << after[now].second << ", found: " << state.second);
    if (!recovery.without_gradients) continue;
    ++went_back;
    // From there on it is as if the rounds behind had never been, under either kind of journal.
    REQUIRE(back.store->checkpoint_now(recovery.exact, "back"));
    back.store.reset();
    back = open_store(options_for(dir.path()));
    REQUIRE_FALSE(back.store->recovery().rolled_back);
    REQUIRE(state_of(back) == State{state.first, "back"});
  }
  CHECK(went_back > 100);
}

TEST_CASE("the journal's kind changes between starts: gradients that are there are applied") {
  FastDir dir;
  auto options = options_for(dir.path());
  State at_two;
  {
    Opened run = open_store(options);
    for (int action = 0; action < 4; ++action) REQUIRE(act(run, action));
    at_two = state_of(run);
  }
  options.journal_gradients = false;
  {
    Opened run = open_store(options);
    CHECK_FALSE(run.store->recovery().rolled_back);
    CHECK(state_of(run) == at_two);
    const diloco::Fragment& fragment = run.store->fragmentation()[FragmentId(1)];
    Rng rng(3);
    const Upload upload = random_upload(fragment, rng, Codec::kInt4);
    REQUIRE(
        run.store->merge_and_commit({GlobalStep(3), FragmentId(1), {upload.input()}, "a", "3"}));
  }
  options.journal_gradients = true;
  Opened run = open_store(options);
  CHECK(run.store->recovery().without_gradients);
  CHECK(run.store->recovery().exact == GlobalStep(2));
  CHECK(state_of(run) == State{at_two.first, "3"});
}
