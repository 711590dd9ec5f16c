// `archipelago simulate` as a program: tables, plots, a spec, and errors that name the flag.
#include <filesystem>

#include <catch2/catch.hpp>

#include "cli/simulate_command.h"
#include "common/base/files.h"

using namespace archipelago;
using namespace archipelago::cli;

namespace {

SimulateArguments table(const std::string& what) {
  SimulateArguments out;
  out.what = what;
  out.only = "formula";
  return out;
}

SimulateArguments twelve_billion() {
  SimulateArguments out;
  out.what = std::string(ARCHIPELAGO_SOURCE_DIR) + "/examples/twelve-billion.yaml";
  out.step_time = "4s";
  out.bandwidth = "5Gbit";
  out.steps = 100;
  return out;
}

}  // namespace

TEST_CASE("every table is printed, and its plots are written") {
  const TempDir dir;
  for (const char* what : {"table1", "table4", "table5", "table13", "fig12"}) {
    auto arguments = table(what);
    arguments.out = dir.path() / "plots";
    CHECK(simulate_command(arguments) == kExitOk);
    const auto plot = read_file(arguments.out / (std::string(what) + "-1.svg"));
    REQUIRE(plot);
    CHECK(plot->find("</svg>") != std::string::npos);
    CHECK(read_file(arguments.out / (std::string(what) + ".txt"))->find("paper") !=
          std::string::npos);
  }
}

TEST_CASE("a spec is simulated, also over a sweep") {
  CHECK(simulate_command(twelve_billion()) == kExitOk);
  const TempDir dir;
  auto arguments = twelve_billion();
  arguments.sweep = "units=2,4";
  arguments.out = dir.path();
  CHECK(simulate_command(arguments) == kExitOk);
  CHECK(read_file(dir.path() / "sweep-1.svg"));
}

TEST_CASE("what can't be simulated is refused") {
  CHECK(simulate_command(table("table2")) == kExitRefused);
  auto arguments = table("table1");
  arguments.only = "nothing";
  CHECK(simulate_command(arguments) == kExitRefused);
  arguments = twelve_billion();
  arguments.step_time.clear();
  CHECK(simulate_command(arguments) == kExitRefused);
  arguments = twelve_billion();
  arguments.bandwidth = "fast";
  CHECK(simulate_command(arguments) == kExitRefused);
  arguments = twelve_billion();
  arguments.sweep = "chips=1";
  CHECK(simulate_command(arguments) == kExitRefused);
  arguments = twelve_billion();
  arguments.sets = {"sync.overlap=99"};
  CHECK(simulate_command(arguments) == kExitRefused);
}
