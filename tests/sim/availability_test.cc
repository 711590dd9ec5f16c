// The availability model, the closed formulas and the tables that compare them with the paper.
#include "simulator/availability.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "simulator/fidelity.h"
#include "simulator/formulas.h"
#include "simulator/paper_tables.h"

using namespace archipelago;
using namespace archipelago::simulator;

namespace {

const Series& series(const Comparison& comparison, const std::string& name) {
  for (const auto& s : comparison.series)
    if (s.name == name) return s;
  FAIL("no column " << name);
  return comparison.series.front();
}

std::size_t index_of(const Comparison& comparison, const std::string& name) {
  for (std::size_t i = 0; i < comparison.series.size(); ++i)
    if (comparison.series[i].name == name) return i;
  FAIL("no column " << name);
  return 0;
}

FidelityOptions without_cores() {
  FidelityOptions options;
  options.cores = false;
  return options;
}

}  // namespace

TEST_CASE("Table 13, data parallel: all 20 cells as the paper prints them") {
  int cells = 0;
  for (const auto& k : paper::table13())
    for (std::size_t c = 0; c < paper::kUtilisation.size(); ++c, ++cells) {
      const double bits = ring_bits(paper::kTable13Parameters, 16, k.datacenters);
      const double got =
          data_parallel_bandwidth(bits, k.step_seconds, kTable13Layers, paper::kUtilisation[c]);
      INFO("case " << k.name << " at " << paper::kUtilisation[c] << ": " << got / 1e9);
      CHECK(two_digits(got / 1e9) == two_digits(k.data_parallel[c]));
    }
  CHECK(cells == 20);
}

TEST_CASE("Table 13, decoupled: all 40 cells within the paper's rounding and 6 percent") {
  for (const auto& k : paper::table13())
    for (std::size_t c = 0; c < paper::kUtilisation.size(); ++c)
      for (const auto& [bits, printed] : {std::pair{16.0, k.bf16[c]}, {4.0, k.int4[c]}}) {
        const double got =
            decoupled_bandwidth(ring_bits(paper::kTable13Parameters, bits, k.datacenters),
                                k.step_seconds, paper::kUtilisation[c], kTable13Interval,
                                kTable13Hidden) /
            1e9;
        INFO("case " << k.name << ", " << bits << " bits, " << paper::kUtilisation[c] << ": " << got
                     << " for " << printed);
        CHECK(std::abs(got - printed) <= std::max(0.06 * printed, 0.0051));
      }
}

TEST_CASE("a star carries what its learners send, shards come back to the ring") {
  const double n = 1e9;
  // Eight datacenters with a learner each: seven fragments each way at the hub.
  CHECK(star_bits(n, 4, 4, 8, 8).up == Approx(7 * n * 4));
  CHECK(star_bits(n, 4, 16, 8, 8).down == Approx(7 * n * 16));
  // The same split over the datacenters: a ring all-reduce's volume, each way.
  CHECK(sharded_bits(n, 4, 4, 8, 8).up == Approx(ring_bits(n, 4, 8)));
  CHECK(busy_link_bandwidth(ring_bits(5e9, 16, 8), 1, 0.95, 24) == Approx(5.54e9).epsilon(0.01));
}

TEST_CASE("Table 13: the constants of the decoupled rows come from half of the cells") {
  const BandwidthFit fit = fit_bandwidth();
  CHECK(fit.interval == Approx(kTable13Interval).epsilon(0.03));
  CHECK(fit.hidden == Approx(kTable13Hidden).epsilon(0.03));
}

TEST_CASE("Fig. 12: no downtime to 6 steps a copy, data parallel's at 24") {
  CHECK(decoupled_recovery(6, 24) == 0);
  CHECK(decoupled_recovery(6.5, 24) > 0);
  CHECK(decoupled_recovery(24, 24) == Approx(data_parallel_recovery(24)));
}

TEST_CASE("Table 4: the ideal is the paper's decoupled row") {
  for (const auto& row : paper::table4())
    CHECK(scavenging_time(row.extra) == Approx(row.decoupled).margin(0.006));
}

TEST_CASE("lock-step at a full quorum costs what Table 5 says") {
  CHECK(100 * lockstep_goodput(8, 0.82, 0.1) == Approx(84).margin(2));
  CHECK(lockstep_goodput(8, 1, 0) == Approx(1).epsilon(1e-3));
}

TEST_CASE("Table 1: formula and model within 2 points RMS, goodput and uptime, fitted on half") {
  auto tables = table1(without_cores());
  REQUIRE(tables.size() == 3);
  tables.pop_back();  // islands that restart whole: the paper has no such row from M = 2 on
  for (const auto& table : tables)
    for (const char* name : {"formula", "model"}) {
      const Errors e = errors(table, index_of(table, name));
      INFO(table.title << ", " << name << ": RMS " << e.rms << ", other half " << e.rms_other);
      CHECK(e.cells == 30);
      CHECK(e.rms < 2);
      CHECK(e.rms_other < 2.2);
      CHECK(e.rms > 0);
    }
  // The headline cells: 88 with eight learners that shrink, 27 for one that restarts whole.
  const auto& model = series(tables[0], "model");
  CHECK(model.cells[4][3] == Approx(88).margin(2));
  CHECK(model.cells[0][3] == Approx(27).margin(3));
}

TEST_CASE("islands that restart whole lose more than islands that shrink") {
  AvailabilityConfig config;
  config.constants = fit_availability();
  const double shrink = simulate_availability(config).goodput;
  config.elastic = false;
  const double whole = simulate_availability(config).goodput;
  CHECK(100 * shrink == Approx(88).margin(2));
  CHECK(100 * whole == Approx(72).margin(3));
}

TEST_CASE("the model is the same for a seed and another for another") {
  AvailabilityConfig config;
  config.seconds = 1e5;
  const auto a = simulate_availability(config), b = simulate_availability(config);
  config.seed = 2;
  const auto c = simulate_availability(config);
  CHECK(a.goodput == b.goodput);
  CHECK(a.failures == b.failures);
  CHECK(a.failures != c.failures);
}

TEST_CASE("failures come at the rate of the chips that are present") {
  AvailabilityConfig config;
  config.constants.return_seconds_per_slice = 1e-9;  // all back at the next step
  config.constants.down_seconds = config.constants.up_seconds = 0;
  config.seconds = 1e6;
  const auto r = simulate_availability(config);
  const double expected = config.chips / config.mtbi_seconds * config.seconds;
  CHECK(static_cast<double>(r.failures) == Approx(expected).epsilon(0.02));
  CHECK(r.uptime == Approx(1));
}

TEST_CASE("an exponentiated-Weibull return keeps the mean that it was given") {
  Rng rng(7);
  for (const auto& [shape, power] : {std::pair{1.0, 1.0}, {0.7, 1.0}, {1.5, 2.0}, {2.0, 0.5}}) {
    const ReturnDelay delay(100, shape, power);
    double sum = 0;
    constexpr int kDraws = 200'000;
    for (int i = 0; i < kDraws; ++i) sum += delay.draw(rng);
    INFO("shape " << shape << ", power " << power);
    CHECK(sum / kDraws == Approx(100).epsilon(0.02));
  }
}

TEST_CASE("a step that had failures has as many as a truncated Poisson says") {
  Rng rng(3);
  for (const double mean : {0.01, 0.5, 3.0}) {
    double sum = 0;
    int least = 1000;
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) {
      const int n = draw_some_failures(rng, mean);
      sum += n;
      least = std::min(least, n);
    }
    CHECK(least == 1);
    CHECK(sum / kDraws == Approx(mean / (1 - std::exp(-mean))).epsilon(0.02));
  }
}

TEST_CASE("a pool keeps a slice, loses them whole and pauses for the longer reconfiguration") {
  AvailabilityConstants c;
  c.down_seconds = 8;
  c.up_seconds = 16;
  const ReturnDelay delay(1e-6, 1, 1);
  Rng rng(1);
  SlicePool pool(4);
  CHECK(pool.step_end(0, 0, delay, c, rng) == 0);
  CHECK(pool.step_end(9, 0, delay, c, rng) == 8);
  CHECK(pool.present() == 1);
  CHECK(pool.step_end(1, 1, delay, c, rng) == 16);  // three came back, one left
  CHECK(pool.present() == 3);
}

TEST_CASE("settings that make no sense are named") {
  const auto message = [](auto change) {
    AvailabilityConfig config;
    change(config);
    const Status judged = check(config);
    return judged ? std::string() : judged.error().message;
  };
  CHECK(message([](auto&) {}).empty());
  CHECK(message([](auto& c) { c.chips = -1; }).find("chips is -1") != std::string::npos);
  CHECK(message([](auto& c) { c.learners = 0; }).find("learners is 0; allowed: 1 to 512") !=
        std::string::npos);
  CHECK(message([](auto& c) { c.slices = 3; }).find("slices is 3") != std::string::npos);
  CHECK(message([](auto& c) { c.mtbi_seconds = NAN; }).find("mtbi") != std::string::npos);
}

TEST_CASE("a table prints its columns, the error of each cell and the halves") {
  Comparison table{
      "T",  "points", {"row"},   {"a", "b"}, {{"paper", {{50, 60}}}, {"x", {{51, 57}}}},
      true, false,    {"a note"}};
  const Errors e = errors(table, 1);
  CHECK(e.rms == Approx(std::sqrt(5.0)));
  CHECK(e.rms_fitted == Approx(1));
  CHECK(e.rms_other == Approx(3));
  CHECK(e.worst == Approx(-3));
  const std::string out = text(table);
  CHECK(out.find("51.0 (+1.0)") != std::string::npos);
  CHECK(out.find("57.0 (-3.0)") != std::string::npos);
  CHECK(out.find("a note") != std::string::npos);
  const std::string plot = svg(table);
  CHECK(plot.starts_with("<svg"));
  CHECK(plot.find("<circle") != std::string::npos);
  CHECK(plot.find("<path") != std::string::npos);
}
