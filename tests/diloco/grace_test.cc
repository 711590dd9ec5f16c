// The grace rules, sentence by sentence of protocol.md §2.4.
#include "common/diloco/grace.h"

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::diloco;

namespace {

SyncerConfig with(GraceKind kind) {
  SyncerConfig config;
  config.grace = kind;
  config.overlap = 2;
  return config;
}

}  // namespace

TEST_CASE("steps: 1.5 step times by default, whatever the averages say") {
  SyncerConfig config = with(GraceKind::kSteps);
  GraceAverages averages;
  CHECK(grace_seconds(config, averages, 0, 4.0) == Approx(6.0));
  averages.quorum_sample(8, 8);
  averages.sync_sample(0, 8, 8);
  CHECK(grace_seconds(config, averages, 0, 4.0) == Approx(6.0));
  config.grace_steps = 0.5;
  CHECK(grace_seconds(config, averages, 0, 4.0) == Approx(2.0));
}

TEST_CASE("off: nothing") {
  CHECK(grace_seconds(with(GraceKind::kOff), GraceAverages{}, 0, 4.0) == 0);
}

TEST_CASE("slack: clamp(fraction (overlap step - quorum - sync), 0, step)") {
  const SyncerConfig config = with(GraceKind::kSlack);
  const auto window = [&](double quorum, double sync, double step) {
    GraceAverages averages;
    averages.quorum_sample(quorum, 2 * step);
    averages.sync_sample(3, sync, 2 * step);
    return grace_seconds(config, averages, 3, step);
  };
  CHECK(window(0.5, 0.3, 1.0) == Approx(0.8 * (2 - 0.8)));
  CHECK(window(1.0, 0.5, 1.0) == Approx(0.8 * 0.5));
  CHECK(window(0.0, 0.1, 1.0) == Approx(1.0));  // never more than a step
  CHECK(window(1.5, 0.6, 1.0) == 0);            // never less than nothing
  CHECK(window(50, 0, 1.0) == 0);               // a sample counts at most overlap x step
  CHECK(window(-3, 0.5, 1.0) == Approx(1.0));
  SyncerConfig careful = config;
  careful.grace_fraction = 0.25;
  CHECK(grace_seconds(careful, GraceAverages{}, 3, 1.0) == Approx(0.5));
  careful.overlap = 4;
  CHECK(grace_seconds(careful, GraceAverages{}, 3, 1.0) == Approx(1.0));
}

TEST_CASE("slack: quorum + grace + sync stay within overlap steps for any averages") {
  const SyncerConfig config = with(GraceKind::kSlack);
  for (double quorum = 0; quorum <= 2; quorum += 0.1)
    for (double sync = 0; quorum + sync <= 2; sync += 0.1) {
      GraceAverages averages;
      averages.quorum_sample(quorum, 2);
      averages.sync_sample(0, sync, 2);
      CHECK(quorum + grace_seconds(config, averages, 0, 1.0) + sync <= 2.0 + 1e-9);
    }
}

TEST_CASE("the averages are exponential with factor one half, the transfers' by fragment") {
  GraceAverages averages;
  CHECK(averages.quorum() == 0);  // none yet
  CHECK(averages.sync(0) == 0);
  averages.quorum_sample(1.0, 10);
  CHECK(averages.quorum() == 1.0);  // the first is taken whole
  averages.quorum_sample(0.0, 10);
  averages.quorum_sample(2.0, 10);
  CHECK(averages.quorum() == 1.25);
  averages.sync_sample(0, 4.0, 10);
  averages.sync_sample(1, 1.0, 10);
  averages.sync_sample(1, 2.0, 10);
  CHECK(averages.sync(0) == 4.0);
  CHECK(averages.sync(1) == 1.5);
  CHECK(averages.sync(2) == 0);
  averages.sync_sample(0, 100.0, 6);
  CHECK(averages.sync(0) == 5.0);
}
