// What the event tape costs: a learner's part of each step (three events, the header line beside
// the upload), and the outer optimizer's part of each global step (a header line of each member
// read, one block with its round written before the commit).
#include <benchmark/benchmark.h>

#include "common/base/files.h"
#include "outer-optimizer/tape_log.h"

namespace {

using namespace archipelago;
namespace tape = diloco::tape;

void add_step(tape::Log& log, std::int64_t i) {
  tape::Step step;
  for (std::uint32_t s = 0; s < 8; ++s)
    tape::append_sequence(step.runs, static_cast<std::uint64_t>(i / 32),
                          static_cast<std::uint32_t>(i % 32) * 8 + s);
  step.schedule_step = GlobalStep(i);
  step.budget = GlobalStep(100000);
  step.loss = 2.25;
  log.add(step);
  log.add(
      tape::Snapshot{GlobalStep(i + 2), static_cast<std::int32_t>(i % 24), 1, GlobalStep(i - 22)});
  log.add(tape::Apply{static_cast<std::int32_t>(i % 24), GlobalStep(i)});
}

std::string header_of(const tape::Log& log, const std::string& unit) {
  auto batch = log.pending(48);
  batch.unit = unit;
  batch.incarnation = Incarnation(1);
  return wire::tape_header_text(wire::encode_tape_record(batch));
}

void learner_step(benchmark::State& state) {
  tape::Log log;
  std::int64_t i = 0;
  for (auto _ : state) {
    add_step(log, ++i);
    benchmark::DoNotOptimize(header_of(log, "us-east-0"));
    log.acknowledged(3 * (i - 1));  // the receipt of the upload before
  }
}

void outer_round(benchmark::State& state) {
  const TempDir dir;
  outer::TapeLog log(dir.path(), "bench", Logger::null());
  const auto members = static_cast<std::size_t>(state.range(0));
  std::vector<tape::Log> learners(members);
  std::int64_t i = 0;
  for (auto _ : state) {
    state.PauseTiming();
    ++i;
    tape::Round round{
        GlobalStep(i), static_cast<std::int32_t>(i % 24), {0.7F, 0.9F, true, true, "int4"}, {}};
    std::vector<std::string> lines;
    for (std::size_t m = 0; m < members; ++m) {
      add_step(learners[m], i);
      const std::string unit = "us-east-" + std::to_string(m);
      lines.push_back(header_of(learners[m], unit));
      round.members.push_back({unit, Incarnation(1), 1, 24576, 24});
    }
    state.ResumeTiming();
    for (std::size_t m = 0; m < members; ++m) {
      const auto record = wire::decode_tape_record(*wire::parse_tape_header(lines[m]));
      learners[m].acknowledged(log.events(std::get<tape::Batch>(*record), false));
    }
    log.round(std::move(round));
    log.published(GlobalStep(i), static_cast<std::int32_t>(i % 24), 1);
  }
  log.flush();
  const auto bytes = static_cast<double>(std::filesystem::file_size(dir.path() / "events.tape"));
  state.counters["bytes_per_learner_step"] =
      bytes / static_cast<double>(i) / static_cast<double>(members);
}

}  // namespace

BENCHMARK(learner_step);
BENCHMARK(outer_round)->Arg(1)->Arg(4)->Arg(16);
BENCHMARK_MAIN();
