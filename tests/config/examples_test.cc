// Every example that is a DecoupledTraining is one.
#include <algorithm>
#include <filesystem>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "common/config/estimate.h"
#include "common/config/parse.h"

namespace archipelago::config {
namespace {

const std::filesystem::path kExamples = std::filesystem::path(ARCHIPELAGO_SOURCE_DIR) / "examples";

TEST_CASE("examples parse without an error and round-trip") {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kExamples)) {
    if (entry.path().extension() != ".yaml") continue;
    const auto text = read_file(entry.path());
    REQUIRE(text);
    const auto document = parse_document(*text);
    CAPTURE(entry.path().filename().string());
    if (!document) FAIL(format_errors(document.error()));
    if (!document->is_object() || document->value("kind", "") != kKind) continue;
    ++found;
    const auto training = parse_training(*text);
    if (!training) FAIL(format_errors(training.error()));
    const auto again = parse_training(to_json(*training));
    REQUIRE(again);
    CHECK((*again == *training));
  }
  CHECK(found >= 2);
}

TEST_CASE("the quickstart is the run that its page describes") {
  const auto text = read_file(kExamples / "quickstart.yaml");
  REQUIRE(text);
  const auto training = parse_training(*text);
  REQUIRE(training);
  const TrainingSpec& spec = training->spec;
  const ModelSize size = model_size(spec.model);
  CHECK(total_units(spec) == 4);
  CHECK(spec.datacenters.size() == 2);
  CHECK(spec.sync.fragments == 24);
  CHECK(spec.sync.interval == 24);
  CHECK(spec.sync.quorum == 1);
  CHECK(spec.sync.uplink == CodecName::kInt4);
  CHECK(spec.sync.downlink == CodecName::kInt4);
  CHECK(size.parameters < 1'000'000);
  CHECK(size.tensors >= 24);
  CHECK(spec.inner.batch_size * spec.inner.gradient_accumulation * spec.model.context_length <=
        1024);
  CHECK(spec.budget.global_steps >= 1000);
  CHECK(spec.inner.warmup_steps * 20 == spec.budget.global_steps);
  CHECK(spec.restart.stall_seconds == 10);
}

}  // namespace
}  // namespace archipelago::config
