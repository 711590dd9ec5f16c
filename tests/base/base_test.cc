#include <type_traits>

#include <catch2/catch.hpp>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/mailbox.h"
#include "common/base/metrics.h"

using namespace archipelago;

static_assert(!std::is_convertible_v<GlobalStep, LocalStep>);
static_assert(!std::is_convertible_v<std::int64_t, GlobalStep>);

TEST_CASE("wall times survive formatting with milliseconds") {
  const WallTime t(std::chrono::milliseconds(1'796'148'461'007));
  WallTime back;
  REQUIRE(parse_wall(format_wall(t), &back));
  CHECK(back == t);
  CHECK_FALSE(parse_wall("yesterday", &back));
}

TEST_CASE("backoff grows, keeps its ceiling, and stays finite for any attempt") {
  Rng rng(7);
  const BackoffPolicy policy{seconds(1), seconds(300), 2.0, 0.2};
  for (int attempt = 0; attempt < 2000; ++attempt) {
    const double d = to_seconds(backoff_delay(policy, attempt, rng));
    CAPTURE(attempt, d);
    CHECK(d <= 300.0);
    CHECK(d >= std::min(300.0, std::pow(2.0, std::min(attempt, 60))) * 0.79);
  }
}

TEST_CASE("a full mailbox refuses and keeps what it has") {
  Mailbox<int> box(2);
  CHECK(box.push(1));
  CHECK(box.push(2));
  CHECK_FALSE(box.push(3));
  std::stop_source stop;
  const auto deadline = SystemClock().now() + seconds(1);
  CHECK(box.pop_until(deadline, stop.get_token()) == 1);
  CHECK(box.pop_until(deadline, stop.get_token()) == 2);
  box.close();
  CHECK_FALSE(box.pop_until(deadline, stop.get_token()).has_value());
}

TEST_CASE("durable writes replace whole files and name what failed") {
  TempDir dir;
  const auto path = dir.path() / "state.json";
  REQUIRE(write_file_durably(path, "one"));
  REQUIRE(write_file_durably(path, "two"));
  CHECK(*read_file(path) == "two");
  CHECK(read_file(dir.path() / "absent").error().kind == ErrorKind::kNotFound);
  CHECK(read_file(path, 2).error().kind == ErrorKind::kTooLarge);
  const auto refused = write_file_durably(dir.path() / "no" / "folder", "x");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("no/folder") != std::string::npos);
}

TEST_CASE("log lines are JSON whatever the text holds") {
  TempDir dir;
  const auto path = (dir.path() / "log").string();
  const auto log = Logger::to_file("test", path).with({{"learner", "a-0"}});
  log.info("hello",
           {{"text", "broken \xff \"quoted\"\n"}, {"n", 3}, {"x", 0.0 / 0.0 * -1}, {"ok", true}});
  log.debug("dropped");
  const std::string text = *read_file(path);
  CHECK(text.find("\"learner\":\"a-0\"") != std::string::npos);
  CHECK(text.find("\"n\":3") != std::string::npos);
  CHECK(text.find("dropped") == std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
}

TEST_CASE("metrics render as Prometheus text, at 0 before the first event") {
  Metrics metrics;
  metrics.counter("archipelago_test_total", "help", {{"reason", "stale"}});
  CHECK(metrics.render().find("archipelago_test_total{reason=\"stale\"} 0") != std::string::npos);
}
