// Text to JSON value: the pitfalls of yaml-cpp and nlohmann, one test each, and the limits.
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/config/json_text.h"
#include "common/config/parse.h"
#include "common/config/text_limits.h"
#include "common/config/yaml_json.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

Json yaml(const std::string& text) {
  const auto document = parse_yaml_text(text);
  if (!document) return Json{{"error", format_errors(document.error())}};
  return document->value;
}

std::string yaml_error(const std::string& text) {
  const auto document = parse_document(text);
  return document ? "" : format_errors(document.error());
}

std::string repeat(const std::string& text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST_CASE("plain YAML scalars follow rules of our own") {
  const auto [text, expected] = GENERATE(table<std::string, Json>({
      {"null", nullptr},
      {"~", nullptr},
      {"", nullptr},
      {"true", true},
      {"False", false},
      {"yes", "yes"},
      {"no", "no"},
      {"on", "on"},
      {"off", "off"},
      {"0", 0},
      {"-17", -17},
      {"+5", 5},
      {"10000000000", 10000000000},
      {"9223372036854775807", 9223372036854775807},
      {"010", "010"},
      {"-010", "-010"},
      {"010.5", "010.5"},
      {"0x1F", "0x1F"},
      {"0o17", "0o17"},
      {"1_000", "1_000"},
      {"1:30", "1:30"},
      {"1e3", 1000.0},
      {"0.25", 0.25},
      {".5", 0.5},
      {"3.", 3.0},
      {"1.5E-3", 0.0015},
      {".nan", ".nan"},
      {".inf", ".inf"},
      {"1e999", "1e999"},
      {"1e", "1e"},
      {"-", nullptr},
      {"2026-01-01", "2026-01-01"},
      {"'12'", "12"},
      {"\"true\"", "true"},
      {"!!str 12", "12"},
      {"'it''s'", "it's"},
      {"''", ""},
      {"\"a\\\"b\"", "a\"b"},
  }));
  if (text == "-") return;  // a list of null: not a scalar
  CAPTURE(text);
  const Json value = yaml("a: " + text).at("a");
  CHECK(value == expected);
  CHECK(value.type() == Json(expected).type());
}

TEST_CASE("a number too large for 63 bits is a float, never a wrapped integer") {
  CHECK(yaml("a: 9223372036854775808").at("a").is_number_float());
  CHECK(yaml("a: -99999999999999999999").at("a").is_number_float());
}

TEST_CASE("duplicate keys are refused with path and line, all of them") {
  const std::string text = "a: 1\nb: {c: 1, c: 2}\na: 3\n";
  const auto document = parse_yaml_text(text);
  REQUIRE_FALSE(document);
  REQUIRE(document.error().size() == 2);
  CHECK(document.error()[0].path == "b.c");
  CHECK(document.error()[0].line == 2);
  CHECK(document.error()[1].path == "a");
  CHECK(document.error()[1].line == 3);

  const auto json = parse_json_text(R"({"a": [{"k": 1, "k": {"x": [1]}}], "b": 1, "b": 2})");
  REQUIRE_FALSE(json);
  REQUIRE(json.error().errors.size() == 2);
  CHECK(json.error().errors[0].path == "a[0].k");
  CHECK(json.error().errors[1].path == "b");
}

TEST_CASE("what YAML can say and a resource must not is refused") {
  const auto [text, part] = GENERATE(table<std::string, std::string>({
      {"a: 1\n---\nb: 2\n", "first document"},
      {"a: 1\n---\n", "first document"},
      {"", "empty"},
      {"# only a comment\n", "empty"},
      {"a: &x {<<: 1}\n", "merge keys"},
      {"? [1, 2]\n: 3\n", "can't be a key"},
      {"a: !!binary aGk=\n", "tag"},
      {"a: !custom {b: 1}\n", "tag"},
      {"a: [1, 2\n", "not YAML"},
      {"a: 'open\n", "never closed"},
      {"a: \"open \\\"\nb: 1\n", "never closed"},
      {"'open: 1\n", "never closed"},
      {"a: 'it''\n", "never closed"},
      {"\xC3\xA9: \xC3\xA9\r\nb: \"\xC3\xA9\r\n", "never closed"},
      {": 3\n", "empty key"},
      {"a: *nobody\n", "not YAML"},
      {"a:\n\tb: 1\n", "not YAML"},
      {"a: \x01\n", "control character"},
      {"a: \xC3\x28\n", "not UTF-8"},
      {"a: \xED\xA0\x80\n", "not UTF-8"},
      {"a: \xF5\x80\x80\x80\n", "not UTF-8"},
      {std::string("\xFF\xFE\x61\x00", 4), "not UTF-8"},
  }));
  CAPTURE(text);
  CHECK_THAT(yaml_error(text), Catch::Contains(part));
}

TEST_CASE("aliases are copies, within limits") {
  CHECK(yaml("a: &x {n: 1}\nb: *x\nc: [*x, *x]\n") ==
        Json({{"a", {{"n", 1}}}, {"b", {{"n", 1}}}, {"c", {{{"n", 1}}, {{"n", 1}}}}}));
  SECTION("a self-alias ends with an error") {
    CHECK_THAT(yaml_error("a: &x [1, *x]\n"), Catch::Contains("inside its own anchor"));
    CHECK_THAT(yaml_error("a: &x {b: {c: *x}}\n"), Catch::Contains("inside its own anchor"));
  }
  SECTION("nine levels of nine aliases") {
    std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
    for (int i = 1; i < 9; ++i) {
      const std::string before = "*a" + std::to_string(i - 1);
      text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
      for (int j = 1; j < 9; ++j) text += ", " + before;
      text += "]\n";
    }
    CHECK_THAT(yaml_error(text), Catch::Contains("aliases") || Catch::Contains("values"));
  }
  SECTION("doubling within the alias limit hits the value limit") {
    std::string text = "a0: &a0 [x, x]\n";
    for (int i = 1; i <= 30; ++i) {
      const std::string before = "*a" + std::to_string(i - 1);
      text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before + ", " + before +
              "]\n";
    }
    CHECK_THAT(yaml_error(text), Catch::Contains("values"));
  }
  SECTION("long strings count by their length") {
    const std::string text =
        "a: &a " + std::string(500'000, 'x') + "\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n";
    CHECK_THAT(yaml_error(text), Catch::Contains("values"));
  }
  SECTION("nesting by aliases counts as nesting") {
    std::string text = "a0: &a0 [x]\n";
    for (int i = 1; i <= 40; ++i) {
      text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" +
              std::to_string(i - 1) + "]\n";
    }
    CHECK_THAT(yaml_error(text), Catch::Contains("nested too deeply"));
  }
}

TEST_CASE("deep nesting and large documents end with an error, in JSON and YAML") {
  CHECK_THAT(yaml_error(repeat("[", 10'000)), Catch::Contains("nested"));
  CHECK_THAT(yaml_error("a: " + repeat("[", 200'000)), Catch::Contains("nested"));
  CHECK_THAT(yaml_error(repeat("{\"a\":", 200'000)), Catch::Contains("nested"));
  CHECK_THAT(yaml_error(repeat("{\"a\":[", 40) + "1" + repeat("]}", 40)),
             Catch::Contains("nested"));
  CHECK_THAT(yaml_error(repeat("- ", 200'000)), Catch::Contains("nested"));
  CHECK_THAT(yaml_error(repeat("? ", 50'000)), !Catch::Equals(""));
  CHECK_THAT(yaml_error(repeat("\"[\": [", 2'000)), Catch::Contains("nested"));
  CHECK_THAT(yaml_error("a: [" + repeat("1,", 60'000) + "1]"), Catch::Contains("values"));
  CHECK_THAT(yaml_error(std::string(kMaxTextBytes + 1, ' ')), Catch::Contains("bytes"));
  // An error list has an end too.
  const auto many = parse_document("{" + repeat("\"k\":1,", 5'000) + "\"k\":1}");
  REQUIRE_FALSE(many);
  CHECK(many.error().size() == ErrorList::kMaxErrors + 1);
}

TEST_CASE("a value that came from elsewhere is checked without recursion") {
  Json deep = Json::array();
  for (int i = 0; i < 200'000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  CHECK_FALSE(check_value(deep));
  CHECK_FALSE(parse_training(deep));
  // Taken apart by hand: the point is the check, not the library's destructor.
  while (!deep.empty()) {
    Json inner = std::move(deep[0]);
    deep = std::move(inner);
  }
}

TEST_CASE("JSON and YAML are told apart, flow style included") {
  CHECK(*parse_document(R"( {"a": 1.0})") == Json({{"a", 1.0}}));
  CHECK(*parse_document("{a: off, b: [1, 2]}") == Json({{"a", "off"}, {"b", {1, 2}}}));
  CHECK(*parse_document("\xEF\xBB\xBF{\"a\": 1}") == Json({{"a", 1}}));
  CHECK_THAT(yaml_error("{\"a\": 1,, }"), Catch::Contains("not JSON near byte"));
  CHECK(parse_document(R"({"a": 1e999})")->at("a") == "1e999");  // then refused by its field
}

}  // namespace
}  // namespace archipelago::config
