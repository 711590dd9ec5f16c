// Codecs and merge kernels against memcpy of the same fp32 elements, one thread.
// Each line's `of_memcpy` is its elements a second over those of memcpy of the same size, both
// measured in this run and interleaved with it, so that a noisy neighbour slows both.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/base/rng.h"
#include "common/codec/codec.h"
#include "common/codec/kernels.h"

namespace archipelago::codec {
namespace {

constexpr std::int64_t kLargeElements = std::int64_t{16}
                                        << 20;  // 64 MiB of fp32: beyond the last cache
constexpr std::int64_t kSmallElements = std::int64_t{64} << 10;  // 256 KiB: within L2

struct Buffers {
  std::vector<float> in;
  std::vector<float> out;
  std::vector<float> third;
  std::vector<std::byte> bytes;

  Buffers(Codec codec, std::size_t n)
      : in(n), out(n, 0.5F), third(n, 0.25F), bytes(encoded_size(codec, n)) {
    Rng rng(7);
    for (float& x : in) x = static_cast<float>(rng.uniform(-1.0, 1.0));
    if (!encode(codec, in, bytes)) std::abort();
  }
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Times `work` by hand, a memcpy of the fp32 input beside each repetition.
void against_memcpy(benchmark::State& state, Buffers& buffers, const std::function<void()>& work) {
  std::vector<float> copy(buffers.in.size());
  const auto copy_once = [&] {
    std::memcpy(copy.data(), buffers.in.data(), copy.size() * sizeof(float));
    benchmark::DoNotOptimize(copy.data());
  };
  copy_once();
  work();
  double copy_seconds = 0.0;
  double work_seconds = 0.0;
  for ([[maybe_unused]] auto step : state) {
    copy_seconds += seconds_of(copy_once);
    const double seconds = seconds_of(work);
    work_seconds += seconds;
    state.SetIterationTime(seconds);
  }
  const auto elements = static_cast<std::int64_t>(buffers.in.size());
  state.SetItemsProcessed(state.iterations() * elements);
  state.counters["of_memcpy"] = copy_seconds / work_seconds;
  state.counters["memcpy_GB/s"] =
      static_cast<double>(state.iterations() * elements) * 4e-9 / copy_seconds;
}

void encode_bench(benchmark::State& state, Codec codec) {
  Buffers buffers(codec, static_cast<std::size_t>(state.range(0)));
  against_memcpy(state, buffers, [&] {
    if (!encode(codec, buffers.in, buffers.bytes)) std::abort();
  });
}

void decode_bench(benchmark::State& state, Codec codec) {
  Buffers buffers(codec, static_cast<std::size_t>(state.range(0)));
  against_memcpy(state, buffers, [&] {
    if (!decode(codec, buffers.bytes, buffers.out)) std::abort();
  });
}

void accumulate_bench(benchmark::State& state, Codec codec) {
  Buffers buffers(codec, static_cast<std::size_t>(state.range(0)));
  const std::size_t n = buffers.in.size();
  against_memcpy(state, buffers,
                 [&] { decode_accumulate_range(codec, buffers.bytes, n, 0, 0.25F, buffers.out); });
}

void validate_bench(benchmark::State& state, Codec codec) {
  Buffers buffers(codec, static_cast<std::size_t>(state.range(0)));
  const std::size_t n = buffers.in.size();
  against_memcpy(state, buffers, [&] {
    auto norm2 = validate_norm2(codec, buffers.bytes, n);
    if (!norm2) std::abort();
    benchmark::DoNotOptimize(*norm2);
  });
}

void sumsq_bench(benchmark::State& state) {
  Buffers buffers(Codec::kInt4, static_cast<std::size_t>(state.range(0)));
  against_memcpy(state, buffers, [&] { benchmark::DoNotOptimize(sumsq(buffers.in)); });
}

void subtract_bench(benchmark::State& state) {
  Buffers buffers(Codec::kInt4, static_cast<std::size_t>(state.range(0)));
  against_memcpy(state, buffers, [&] { subtract(buffers.in, buffers.third, buffers.out); });
}

void outer_step_bench(benchmark::State& state) {
  Buffers buffers(Codec::kInt4, static_cast<std::size_t>(state.range(0)));
  const OuterStep step{.learning_rate = 0.4F, .momentum = 0.9F, .nesterov = true};
  against_memcpy(state, buffers, [&] { outer_step(step, buffers.in, buffers.out, buffers.third); });
}

void register_one(const std::string& title, const std::function<void(benchmark::State&)>& body) {
  for (const auto elements : {kLargeElements, kSmallElements}) {
    benchmark::RegisterBenchmark(title.c_str(), body)
        ->Arg(elements)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

void register_all() {
  for (const Codec codec : {Codec::kInt4, Codec::kInt8, Codec::kBf16, Codec::kFp32}) {
    const std::string suffix = "/" + std::string(name(codec));
    register_one("encode" + suffix, [codec](benchmark::State& s) { encode_bench(s, codec); });
    register_one("decode" + suffix, [codec](benchmark::State& s) { decode_bench(s, codec); });
    register_one("accumulate" + suffix,
                 [codec](benchmark::State& s) { accumulate_bench(s, codec); });
    register_one("validate_norm2" + suffix,
                 [codec](benchmark::State& s) { validate_bench(s, codec); });
  }
  register_one("sumsq", sumsq_bench);
  register_one("subtract", subtract_bench);
  register_one("outer_step", outer_step_bench);
}

}  // namespace
}  // namespace archipelago::codec

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  archipelago::codec::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
