// What a spec would do: bytes, links, failures, sweeps, and errors that name the flag.
#include "simulator/forecast.h"

#include <cmath>

#include <catch2/catch.hpp>

#include "common/base/files.h"
#include "common/config/estimate.h"
#include "common/config/parse.h"

using namespace archipelago;
using namespace archipelago::simulator;

namespace {

config::TrainingSpec twelve_billion() {
  const auto text =
      read_file(std::string(ARCHIPELAGO_SOURCE_DIR) + "/examples/twelve-billion.yaml");
  REQUIRE(text);
  const auto training = config::parse_training(*text);
  REQUIRE(training);
  return training->spec;
}

ForecastOptions options(double bandwidth) {
  ForecastOptions out;
  out.step_seconds = 4;
  out.bandwidth = bandwidth;
  out.global_steps = 300;
  return out;
}

}  // namespace

TEST_CASE("12 B parameters in four regions: what the links need, by the formula and by the cores") {
  const auto spec = twelve_billion();
  const auto f = forecast(spec, options(5e9));
  REQUIRE(f);
  CHECK(f->parameters > 12'000'000'000);
  CHECK(f->units == 8);
  CHECK(f->datacenters[static_cast<std::size_t>(f->hub)] == "south");
  // Six remote islands send a 24th of the model in 4.125 bits a step of 4 s through the hub's link.
  const double bits = 6.0 * 4.125 * static_cast<double>(f->parameters) / 24;
  CHECK(f->needed_bandwidth == Approx(bits / 4).epsilon(0.01));
  CHECK(f->link_seconds[static_cast<std::size_t>(f->hub)] == Approx(bits / 5e9).epsilon(0.01));
  // The hub receives nearly that much a global step.
  const double received = f->result.down_bits[static_cast<std::size_t>(f->hub)] /
                          static_cast<double>(f->result.global_steps);
  CHECK(received == Approx(bits).epsilon(0.1));
  CHECK(f->result.goodput > 0.95);
}

TEST_CASE("the smallest H = P that a link carries is where its fragments fit a step") {
  const auto spec = twelve_billion();
  const auto f = forecast(spec, options(2e9));
  REQUIRE(f);
  const double bits = 6.0 * 4.125 * static_cast<double>(f->parameters);
  CHECK(f->smallest_interval == static_cast<std::int64_t>(std::ceil(bits / (2e9 * 4))));
  CHECK(f->link_seconds[static_cast<std::size_t>(f->hub)] > 4);
  CHECK(text(*f, spec, options(2e9)).find("smallest H = P") != std::string::npos);
}

TEST_CASE(
    "12 B at 2 Gbit/s: the remote islands starve at H = 24 and take part at the H that is named") {
  auto spec = twelve_billion();
  const auto starved = forecast(spec, options(2e9));
  REQUIRE(starved);
  CHECK(starved->result.mean_participants < 4);
  CHECK(text(*starved, spec, options(2e9)).find("starves") != std::string::npos);
  spec.sync.fragments = spec.sync.interval =
      static_cast<std::int32_t>(starved->smallest_interval) + 1;
  spec.sync.max_lead = 2 * spec.sync.interval;
  const auto fed = forecast(spec, options(2e9));
  REQUIRE(fed);
  CHECK(fed->result.mean_participants > 7);
  CHECK(text(*fed, spec, options(2e9)).find("starves") == std::string::npos);
}

TEST_CASE("failures of a spec's chips cost goodput, more islands lose less of the same chips") {
  const auto spec = twelve_billion();
  auto o = options(0);
  o.chips_per_unit = 150'000;
  o.elastic = true;
  o.global_steps = 2000;
  const auto four = forecast(spec, o, 4), sixteen = forecast(spec, o, 16);
  REQUIRE(four);
  REQUIRE(sixteen);
  CHECK(four->result.failures > 50);
  CHECK(four->result.goodput < sixteen->result.goodput);
  CHECK(sixteen->result.goodput < 0.99);
  const auto table = sweep_table({*four, *sixteen});
  CHECK(table.columns == std::vector<std::string>{"4", "16"});
}

TEST_CASE("durations, bandwidths and sweeps are read with their units or refused by name") {
  CHECK(*parse_duration("--mtbi", "1y") == Approx(365.0 * 86400));
  CHECK(*parse_duration("--step-time", "250ms") == Approx(0.25));
  CHECK(*parse_bandwidth("--bandwidth", "2.5Gbit") == Approx(2.5e9));
  CHECK(*parse_sweep("units=1,2,16") == std::vector<int>{1, 2, 16});
  for (const char* bad : {"", "4", "s", "-4s", "4 s", "infs", "nans", "4sec"})
    CHECK_FALSE(parse_duration("--step-time", bad));
  CHECK(parse_duration("--step-time", "4").error().message.find("--step-time is \"4\"") == 0);
  CHECK_FALSE(parse_bandwidth("--bandwidth", "2GB"));
  for (const char* bad : {"units=", "units=0", "units=1,", "units=1;2", "chips=3", "units=9999"})
    CHECK_FALSE(parse_sweep(bad));
}

TEST_CASE("options out of range name their flag") {
  const auto spec = twelve_billion();
  auto o = options(0);
  o.slices_per_unit = 0;
  CHECK(forecast(spec, o).error().message.find("--slices-per-unit is 0") == 0);
  o = options(0);
  o.chips_per_unit = -1;
  CHECK(forecast(spec, o).error().message.find("--chips-per-unit is -1") == 0);
}
