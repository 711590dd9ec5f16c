// Typed reads: what nlohmann's conversions would let through in silence.
#include <limits>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/config/json_reader.h"
#include "common/config/quantity.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

TEST_CASE("integers: range, sign, fraction, exponent, quotes") {
  const auto [value, problem, hint] = GENERATE(table<Json, std::string, std::string>({
      {-1, "out of range", ""},
      {300, "out of range", ""},
      {3.7, "whole number", ""},
      {3.0, "whole number", "plain digits 3"},
      {1.048576e+06, "whole number", "plain digits 1048576"},
      {9e18, "whole number", ""},
      {std::numeric_limits<std::uint64_t>::max(), "out of range", ""},
      {std::numeric_limits<double>::quiet_NaN(), "whole number", ""},
      {"12", "whole number", "quotes"},
      {"010", "whole number", "leading zero"},
      {"1e+06", "whole number", ""},
      {"1h30m", "whole number", "5400"},
      {nullptr, "whole number", ""},
      {true, "whole number", ""},
      {Json::array({1}), "whole number", ""},
  }));
  const Json object{{"n", value}};
  CAPTURE(object.dump());
  ErrorList errors;
  ObjectReader reader(&object, "spec", errors);
  std::uint8_t out = 7;
  CHECK_FALSE(reader.integer("n", out, 0, 255));
  CHECK(out == 7);
  REQUIRE(errors.errors().size() == 1);
  CHECK(errors.errors()[0].path == "spec.n");
  CHECK(errors.errors()[0].allowed == "0 to 255");
  CHECK_THAT(errors.errors()[0].problem, Catch::Contains(problem));
  CHECK_THAT(errors.errors()[0].hint, Catch::Contains(hint));
}

TEST_CASE("numbers: finite, in range, open ends") {
  const auto [value, good] = GENERATE(table<Json, bool>({
      {0.5, true},
      {1, false},  // open
      {0, true},
      {-0.1, false},
      {std::numeric_limits<double>::quiet_NaN(), false},
      {std::numeric_limits<double>::infinity(), false},
      {"0.5", false},
      {"nan", false},
      {nullptr, false},
  }));
  const Json object{{"x", value}};
  CAPTURE(object.dump());
  ErrorList errors;
  ObjectReader reader(&object, "", errors);
  double out = 9;
  CHECK(reader.number("x", out, {0, 1, false, true}) == good);
  CHECK(errors.empty() == good);
}

TEST_CASE("unknown fields get the nearest known one, and lists stay lists") {
  const Json object{{"intervall", 24}, {"zzzzzz", 1}, {"fragments", 3}};
  ErrorList errors;
  ObjectReader reader(&object, "spec.sync", errors);
  int number = 0;
  reader.integer("interval", number, 1, 100);
  reader.integer("fragments", number, 1, 100);
  reader.finish();
  REQUIRE(errors.errors().size() == 2);
  CHECK(format_error(errors.errors()[0]) ==
        "spec.sync.intervall: is an unknown field, allowed: interval, fragments. HINT: did you "
        "mean interval?");
  CHECK(errors.errors()[1].hint.empty());
  CHECK(errors.touches("spec.sync"));
  CHECK(errors.touches("spec.sync.zzzzzz"));
  CHECK_FALSE(errors.touches("spec.sync.interval"));
}

TEST_CASE("nearest counts a transposition once and ignores case") {
  CHECK(nearest("qourum", {"quorum", "overlap"}) == "quorum");
  CHECK(nearest("LearnerUnits", {"learnerUnits"}) == "learnerUnits");
  CHECK(nearest("abc", {"quorum"}).empty());
  CHECK(nearest(std::string(100, 'a'), {std::string(100, 'a')}).empty());
}

TEST_CASE("values in errors are short, valid UTF-8, and never a deep dump") {
  CHECK(show_value("a\xC3\x28"
                   "b") == "\"a\xEF\xBF\xBD(b\"");
  CHECK(show_text(std::string(500, 'x')).size() <= 80);
  CHECK(show_value(Json::array({1, 2, 3})) == "a list of 3");
  CHECK(show_value(std::numeric_limits<double>::quiet_NaN()) == "null");
}

TEST_CASE("quantities") {
  CHECK(*parse_bytes("2Gi") == (std::int64_t{2} << 30));
  CHECK(*parse_bytes("10Gi") == (std::int64_t{10} << 30));
  CHECK(*parse_bytes("1") == 1);
  CHECK(*parse_bytes("129M") == 129'000'000);
  CHECK(*parse_bytes("129e6") == 129'000'000);
  CHECK(*parse_bytes("1.5Ki") == 1536);
  CHECK(*parse_bytes("100m") == 1);
  CHECK(*parse_bytes("7Ei") == (std::int64_t{7} << 60));
  CHECK(*parse_cpu("500m") == Approx(0.5));
  CHECK(*parse_cpu("1") == 1.0);
  CHECK(*parse_cpu("1.5") == 1.5);
  for (const char* bad : {"", "Gi", "-1Gi", "1 Gi", "1GB", "1gi", "0x10", "1.2.3", "nan", "1e",
                          "1e99", "8Ei", ".", "1h30m", "99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_bytes(bad));
  }
  for (const char* bad : {"0", "0m", "-1", "1e6", "half", "0.1m"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_cpu(bad));
  }
}

}  // namespace
}  // namespace archipelago::config
