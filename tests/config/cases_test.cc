// The tables that the CRD is held to as well: what a new resource may say, what may change.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "common/config/changes.h"
#include "common/config/parse.h"
#include "tests/config/case_table.h"

namespace archipelago::config {
namespace {

// What differs between the errors and what is expected; empty: nothing.
std::string difference(const std::vector<FieldError>& errors, const Json& expected) {
  std::string out;
  for (const FieldError& error : errors) {
    const bool known =
        expected.contains(error.path) &&
        format_error(error).find(expected[error.path].get<std::string>()) != std::string::npos;
    if (!known) out += "not expected: " + format_error(error) + "\n";
  }
  for (const auto& [path, text] : expected.items()) {
    const bool found = std::any_of(errors.begin(), errors.end(),
                                   [&](const FieldError& error) { return error.path == path; });
    if (!found) out += "not refused: " + path + " (" + text.get<std::string>() + ")\n";
  }
  return out;
}

Json expected_of(const Json& item) {
  return item.value("program", item.value("refused", Json::object()));
}

TEST_CASE("what a new resource may say") {
  const Json table = case_table("create");
  REQUIRE(table["cases"].size() > 100);
  for (const Json& item : table["cases"]) {
    const auto training = parse_training_object(changed(table["base"], item));
    const std::vector<FieldError> errors = training ? std::vector<FieldError>{} : training.error();
    INFO(item["case"].get<std::string>());
    CHECK(difference(errors, expected_of(item)) == "");
  }
}

TEST_CASE("a table's exceptions have a reason") {
  for (const char* name : {"create", "update"}) {
    const Json table = case_table(name);
    for (const Json& item : table["cases"]) {
      INFO(item["case"].get<std::string>());
      const bool differs = item.contains("server") || item.contains("program");
      CHECK(differs == item.contains("why"));
    }
  }
}

TEST_CASE("what may change on a run that exists") {
  const Json table = case_table("update");
  REQUIRE(table["cases"].size() > 50);
  for (const Json& item : table["cases"]) {
    const Json before = changed(table["base"], item.value("from", Json::object()));
    const Json after = changed(table["base"], item.value("to", Json::object()));
    INFO(item["case"].get<std::string>());
    const auto first = parse_training_object(before);
    REQUIRE(first);
    const auto second = parse_training_object(after);
    std::vector<FieldError> errors = second ? check_changes(before, after) : second.error();
    CHECK(difference(errors, expected_of(item)) == "");
  }
}

TEST_CASE("changes of documents that are wrong are not judged") {
  const Json table = case_table("update");
  Json bad = table["base"];
  bad["spec"]["model"]["layers"] = "two";
  CHECK(check_changes(table["base"], bad).empty());
  CHECK(check_changes(bad, table["base"]).empty());
}

}  // namespace
}  // namespace archipelago::config
