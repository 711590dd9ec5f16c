// The production cores over simulated failures and links.
#include <chrono>
#include <cmath>
#include <iostream>

#include <catch2/catch.hpp>

#include "simulator/cores_tables.h"
#include "simulator/cores_world.h"
#include "simulator/fidelity.h"
#include "simulator/paper_tables.h"

using namespace archipelago;
using namespace archipelago::simulator;

namespace {

CoresConfig equal(int units) {
  CoresConfig config;
  config.sync.run_id = "cores";
  config.sync.start_units = units;
  config.units.resize(static_cast<std::size_t>(units));
  config.jitter = 0.1;
  config.global_steps = 2000;
  return config;
}

CoresResult run(const CoresConfig& config, const char* name) {
  REQUIRE(check(config));
  const auto began = std::chrono::steady_clock::now();
  const CoresResult r = run_cores(config);
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cout << name << ": participants " << r.mean_participants << ", global per step "
            << r.global_per_step << ", merged " << r.merged_fraction << ", goodput " << r.goodput
            << ", uptime " << r.uptime << ", short " << r.short_rounds << ", "
            << static_cast<double>(r.learner_steps) / took << " learner steps/s, "
            << static_cast<double>(r.events) / static_cast<double>(r.learner_steps)
            << " events a step\n";
  return r;
}

}  // namespace

TEST_CASE("equal learners take part in every round and never wait") {
  auto config = equal(4);
  config.units.assign(4, CoresUnit{});
  config.links.assign(2, CoresLink{20, 20});
  config.upload_bits = config.publish_bits = 1;
  config.keyframe_bits = 8;
  for (auto& unit : config.units) unit.datacenter = 1;
  const auto r = run(config, "M=4");
  CHECK(r.mean_participants > 3.5);
  CHECK(r.global_per_step == Approx(1).margin(0.06));
  CHECK(r.merged_fraction > 0.85);
  CHECK(r.goodput > 0.99);
}

TEST_CASE("sixteen learners without links") {
  auto config = equal(16);
  config.units.assign(16, CoresUnit{});
  const auto r = run(config, "M=16");
  CHECK(r.mean_participants > 15);
}

TEST_CASE("the cores reproduce cells of Table 1 within 2 points RMS, goodput and uptime") {
  const AvailabilityConstants constants = fit_availability();
  double goodput = 0, uptime = 0;
  int cells = 0;
  for (const auto& row : paper::table1())
    for (const std::size_t c : {1U, 3U}) {
      if (row.learners < 2) continue;
      const auto r = cores_availability(1, row.learners, paper::kChips[c], row.elastic, constants);
      goodput += std::pow(100 * r.goodput - row.goodput[c], 2);
      uptime += std::pow(100 * r.uptime - row.uptime[c], 2);
      CHECK(r.failures > 0);
      ++cells;
    }
  REQUIRE(cells == 8);
  CHECK(std::sqrt(goodput / cells) < 2);
  CHECK(std::sqrt(uptime / cells) < 2);
}

TEST_CASE("islands that restart whole under the cores: about 72 percent") {
  const auto r = cores_availability(1, 8, 1.2e6, false, fit_availability());
  CHECK(100 * r.goodput == Approx(72).margin(3));
}

TEST_CASE("scavengers that join for half of the FLOPs save what is ideal, within 1 percent") {
  for (const double extra : {0.25, 1.0, 3.0})
    CHECK(cores_scavenging_time(1, extra) == Approx(scavenging_time(extra)).epsilon(0.01));
}

TEST_CASE("Table 5: lock-step at a full quorum costs goodput, ours does not wait") {
  const auto lockstep = cores_quorum(1, {8, diloco::GraceKind::kOff, true});
  const auto ours = cores_quorum(1, {8, diloco::GraceKind::kOff, false});
  CHECK(100 * lockstep.goodput == Approx(84).margin(2));
  CHECK(100 * ours.goodput > 99);
  CHECK(ours.mean_participants == Approx(8));
}

TEST_CASE("Table 5: without the grace window the rounds have one participant") {
  const auto with = cores_quorum(1, {1, diloco::GraceKind::kSteps, false});
  const auto without = cores_quorum(1, {1, diloco::GraceKind::kOff, false});
  CHECK(100 * with.goodput == Approx(100).margin(2));
  CHECK(100 * without.goodput == Approx(100).margin(2));
  CHECK(with.mean_participants > 6.5);
  CHECK(without.mean_participants < 1.3);
  CHECK(without.global_per_step > 5);
  CHECK(without.merged_fraction < 0.3 * with.merged_fraction);
}

TEST_CASE("a grace rule that is broken changes the printed Table 5") {
  FidelityOptions options;
  const auto whole = table5(options);
  options.grace = diloco::GraceKind::kOff;
  const auto broken = table5(options);
  REQUIRE(whole.size() == 2);
  const double before = whole[1].series[0].cells[2][0], after = broken[1].series[0].cells[2][0];
  CHECK(before > 6.5);
  CHECK(after < 1.3);
  CHECK(errors(whole[0], 2).rms < 2);  // cores, lock-step
}

TEST_CASE("a hub's link carries a round a step, and slows the clock when it can't") {
  const auto fits = cores_hub(1, 8, 0.9, 8), thin = cores_hub(1, 8, 2, 8);
  CHECK(fits.global_per_step > 0.9);
  CHECK(thin.global_per_step == Approx(0.5).margin(0.03));
  // Seven of eight learners are remote: the hub receives seven fragments a global step.
  const double fragments = thin.down_bits[0] / static_cast<double>(thin.global_steps);
  CHECK(fragments == Approx(7).epsilon(0.03));
}

TEST_CASE("a learner that joins over good links holds nobody up") {
  const auto joining = cores_joining(1, 1);
  CHECK(joining.own_steps > 1);
  CHECK(joining.own_steps < 10);
  CHECK(std::abs(joining.others_downtime) < 4);
}

TEST_CASE("the same seed gives the same run of the cores") {
  const auto a = cores_quorum(5, {}), b = cores_quorum(5, {}), c = cores_quorum(6, {});
  CHECK(a.events == b.events);
  CHECK(a.goodput == b.goodput);
  CHECK(a.events != c.events);
}

TEST_CASE("settings of the cores' world that make no sense are named") {
  auto config = equal(2);
  config.units.assign(2, CoresUnit{});
  CHECK(check(config));
  config.units[1].step_seconds = 0;
  CHECK(check(config).error().message.find("step time: given 0") != std::string::npos);
  config.units[1] = CoresUnit{};
  config.units[1].datacenter = 4;
  CHECK(check(config).error().message.find("datacenter: given 4 of 1") != std::string::npos);
  config.units[1] = CoresUnit{};
  config.global_steps = 0;
  CHECK(check(config).error().message.find("end: ") != std::string::npos);
  config.global_steps = 1;
  config.sync.fragments = 5;
  CHECK(check(config).error().message.find("fragments") != std::string::npos);
}
