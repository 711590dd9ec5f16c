// The product: `archipelago run` under faults, then `archipelago replay` of its tape, real training
// with two threads.
#include <cstdlib>
#include <fstream>
#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "common/base/rng.h"
#include "replay/tape_content.h"

namespace archipelago::replay {
namespace {

namespace tape = diloco::tape;
const std::string kBin = ARCHIPELAGO_BIN_DIR;

int shell(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr const char* kSpec = R"(apiVersion: archipelago.training/v1alpha1
kind: DecoupledTraining
metadata: {name: taped}
spec:
  model: {hiddenSize: 64, layers: 2, heads: 4, kvHeads: 2, intermediateSize: 176, vocabSize: 256, contextLength: 64}
  data: {train: {path: TRAIN}}
  inner: {batchSize: 4, learningRate: 0.003, warmupSteps: 5}
  sync: {fragments: 6, interval: 6, overlap: 2, quorum: 1}
  budget: {globalSteps: 240}
  restart: {backoffSeconds: 0.2}
  outerOptimizer: {finishedLingerSeconds: 1, checkpoint: {everySteps: 40}}
  datacenters:
  - {name: west, learnerUnits: 3}
)";

// Kills at three moments: an island, the outer optimizer, an island again.
constexpr const char* kChaos = R"(events:
- {atStep: 20, action: kill, target: west-1}
- {atStep: 50, action: kill, target: outer-optimizer}
- {atStep: 75, action: kill, target: west-0}
)";

// A tape as another file with one weight changed from global step `from` on: returns which.
GlobalStep change_weight(const std::filesystem::path& from_file, const std::filesystem::path& to,
                         GlobalStep from) {
  GlobalStep changed;
  std::vector<tape::Record> records;
  const auto scan = wire::scan_tape(from_file, [&](tape::Record record) -> Status {
    auto* round = std::get_if<tape::Round>(&record);
    if (round != nullptr && changed == GlobalStep(0) && round->t >= from &&
        round->members.size() > 1) {
      round->members[0].tokens *= 2;
      changed = round->t;
    }
    records.push_back(std::move(record));
    return {};
  });
  REQUIRE(scan);
  auto writer = wire::TapeWriter::open(to, scan->run_id);
  REQUIRE(writer);
  for (const auto& record : records) REQUIRE(writer->append(std::span(&record, 1)));
  return changed;
}

}  // namespace

TEST_CASE("a run under kills replays to the very bytes, and a changed weight is found") {
  const TempDir dir;
  const auto path = [&](const char* name) { return (dir.path() / name).string(); };
  Rng rng(3);
  std::string text;
  while (text.size() < 200000) text += "the tide of " + std::to_string(rng.below(1000)) + "; ";
  std::ofstream(path("train.txt")) << text;
  std::string spec = kSpec;
  spec.replace(spec.find("TRAIN"), 5, path("train.txt"));
  std::ofstream(path("spec.yaml")) << spec;
  std::ofstream(path("chaos.yaml")) << kChaos;
  const int ran = shell("OMP_NUM_THREADS=2 timeout 200 " + kBin + "/archipelago run " +
                        path("spec.yaml") + " --plain --output " + path("run") + " --chaos " +
                        path("chaos.yaml") + " >" + path("run.txt") + " 2>&1");
  const auto said = read_file(path("run.txt"));
  INFO((said ? *said : ""));
  REQUIRE(ran == 0);

  const std::string replay = kBin + "/archipelago replay --quiet ";
  CHECK(shell(replay + path("run") + " >" + path("same") + " 2>&1") == 0);
  const auto same = read_file(path("same"));
  REQUIRE(same);
  INFO(*same);
  CHECK(same->find("global steps 1 to 240:") != std::string::npos);
  CHECK(same->find("every one has the tape's bytes") != std::string::npos);
  CHECK(same->find("warning") == std::string::npos);

  const auto content = load_tape(path("run"));
  REQUIRE(content);
  CHECK(content->opened.size() == 2);
  int restores = 0;
  std::int64_t steps = 0;
  for (const auto& [key, learner] : content->learners) {
    for (const auto& event : learner.events) {
      restores += std::holds_alternative<tape::Restore>(event) ? 1 : 0;
      steps += std::holds_alternative<tape::Step>(event) ? 1 : 0;
    }
  }
  CHECK(content->learners.size() >= 4);
  CHECK(restores >= 1);
  INFO(content->scan.end << " bytes, " << steps << " learner steps");
  CHECK(content->scan.end / static_cast<std::uint64_t>(steps) < 200);

  const GlobalStep changed = change_weight(dir.path() / "run" / "tape" / "events.tape",
                                           path("other.tape"), GlobalStep(50));
  CHECK(shell(replay + path("other.tape") + " >" + path("found") + " 2>&1") == 1);
  const auto found = read_file(path("found"));
  REQUIRE(found);
  INFO(*found);
  CHECK(found->find("first divergence: global step " + std::to_string(changed.value) + ",") !=
        std::string::npos);
  CHECK(shell(replay + path("other.tape") + " --until " + std::to_string(changed.value - 1) +
              " >/dev/null 2>&1") == 0);
  CHECK(shell(replay + path("run") + " --diff " + path("other.tape") + " >" + path("diff") +
              " 2>&1") == 1);
  CHECK(read_file(path("diff"))->find("global step " + std::to_string(changed.value) + ":") == 0);
  CHECK(shell(replay + path("run") + " --diff " + path("run") + " >/dev/null 2>&1") == 0);
  CHECK(shell(replay + path("train.txt") + " >/dev/null 2>&1") == 2);
}

}  // namespace archipelago::replay
