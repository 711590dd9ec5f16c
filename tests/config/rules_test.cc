// One table: a patch of a good spec, the path that the error must name, and a part of what it says.
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "good_spec.h"

namespace archipelago::config {
namespace {

using Sets = std::vector<std::string>;

void check_refused(const Sets& sets, const std::string& path, const std::string& part) {
  const std::vector<FieldError> errors = errors_of(sets);
  CAPTURE(sets, format_errors(errors));
  REQUIRE(errors.size() == 1);  // one mistake, one error: no rule reports what follows from it
  CHECK(errors[0].path == path);
  CHECK_THAT(format_error(errors[0]), Catch::Contains(part));
}

TEST_CASE("the good spec is good") { CHECK(format_errors(errors_of({})).empty()); }

TEST_CASE("rules between fields") {
  const auto [sets, path, part] = GENERATE(table<Sets, std::string, std::string>({
      {{"sync.interval=10", "sync.fragments=3"}, "spec.sync.fragments", "1, 2, 5, 10"},
      {{"sync.interval=2", "sync.fragments=4"},
       "spec.sync.fragments",
       "does not divide interval 2"},
      {{"sync.overlap=24"}, "spec.sync.overlap", "allowed: 1 to 23"},
      {{"sync.fragments=1", "sync.interval=1", "sync.overlap=2"},
       "spec.sync.overlap",
       "allowed: 1"},
      {{"sync.quorum=5"}, "spec.sync.quorum", "allowed: 1 to 4"},
      {{"sync.startUnits=5"}, "spec.sync.startUnits", "allowed: 1 to 4"},
      {{"sync.maxLead=3"}, "spec.sync.maxLead", "4 or more"},
      {{"sync.fragments=1", "sync.maxLead=26"}, "spec.sync.maxLead", "27 or more"},
      {{"model.layers=2"}, "spec.sync.fragments", "20 tensors"},
      {{"model.hiddenSize=66"}, "spec.model.heads", "does not divide hiddenSize 66"},
      {{"model.hiddenSize=60"}, "spec.model.heads", "odd size 15"},
      {{"model.kvHeads=3"}, "spec.model.kvHeads", "1, 2, 4"},
      {{"model.kvHeads=8"}, "spec.model.kvHeads", "does not divide heads 4"},
      {{"model.vocabSize=255"}, "spec.model.vocabSize", "256 or more"},
      {{"model.vocabSize=65537", "data.train.format=tokens-u16"},
       "spec.model.vocabSize",
       "tokens-u32"},
      {{"datacenters[1].name=us-east"}, "spec.datacenters[1].name", "two datacenters"},
      {{"outerOptimizer.datacenter=us-eats"},
       "spec.outerOptimizer.datacenter",
       "did you mean us-east?"},
      {{"datacenters=[]"}, "spec.datacenters", "is required"},
      {{"datacenters=[{name: a, learnerUnits: 0}]"},
       "spec.datacenters[0].learnerUnits",
       "can't train"},
      {{"datacenters[0].learnerUnits=200", "datacenters[1].learnerUnits=57"},
       "spec.datacenters",
       "1 to 256"},
      {{"data.validation=[{path: a}, {path: b}]"}, "spec.data.validation", "a list of 1"},
      {{"data.volume={claim: c, hostPath: /data}"},
       "spec.data.volume.hostPath",
       "one of claim and hostPath"},
      {{"restart.backoffSeconds=301"},
       "spec.restart.maxBackoffSeconds",
       "less than backoffSeconds"},
      {{"inner.warmupSteps=2001"}, "spec.inner.warmupSteps", "0 to 2000"},
      {{"outerOptimizer.storage.adopt=true"}, "spec.outerOptimizer.storage.adopt", "existingClaim"},
      {{"outerOptimizer.storage.size=9Mi"}, "spec.outerOptimizer.storage.size", "or more"},
  }));
  check_refused(sets, path, part);
}

TEST_CASE("every number has a range, every word a list: training") {
  const auto [set, path] = GENERATE(table<std::string, std::string>({
      {"sync.quorum=0", "spec.sync.quorum"},
      {"sync.quorum=-1", "spec.sync.quorum"},
      {"sync.interval=0", "spec.sync.interval"},
      {"sync.interval=9e18", "spec.sync.interval"},
      {"sync.interval=2147483648", "spec.sync.interval"},
      {"sync.fragments=0", "spec.sync.fragments"},
      {"sync.overlap=0", "spec.sync.overlap"},
      {"sync.grace.steps=0s", "spec.sync.grace.steps"},
      {"sync.grace.steps=-5", "spec.sync.grace.steps"},
      {"sync.grace.steps=1h30m", "spec.sync.grace.steps"},
      {"sync.grace.steps=9e18", "spec.sync.grace.steps"},
      {"sync.grace.rule=false", "spec.sync.grace.rule"},
      {"sync.grace.fraction=0", "spec.sync.grace.fraction"},
      {"sync.startTimeoutSeconds=0", "spec.sync.startTimeoutSeconds"},
      {"ttlSecondsAfterFinished=-1", "spec.ttlSecondsAfterFinished"},
      {"activeDeadlineSeconds=-1", "spec.activeDeadlineSeconds"},
      {"restart.backoffLimit=2147483648", "spec.restart.backoffLimit"},
      {"restart.backoffLimit=-1", "spec.restart.backoffLimit"},
      {"restart.stallSeconds=0", "spec.restart.stallSeconds"},
      {"inner.learningRate=nan", "spec.inner.learningRate"},
      {"inner.learningRate=.nan", "spec.inner.learningRate"},
      {"inner.learningRate=1e999", "spec.inner.learningRate"},
      {"inner.learningRate=0", "spec.inner.learningRate"},
      {"inner.betas=[0.9]", "spec.inner.betas"},
      {"inner.betas=[0.9, 1.0]", "spec.inner.betas"},
      {"inner.betas=[-0.1, 0.9]", "spec.inner.betas"},
      {"inner.betas=0.9", "spec.inner.betas"},
      {"inner.seed=-1", "spec.inner.seed"},
      {"inner.seed=1e+06", "spec.inner.seed"},
      {"inner.precision=fp16", "spec.inner.precision"},
      {"inner.batchSize=010", "spec.inner.batchSize"},
  }));
  check_refused({set}, path, "allowed: ");
}

TEST_CASE("every number has a range, every word a list: model, data, placement") {
  const auto [set, path] = GENERATE(table<std::string, std::string>({
      {"outer.momentum=1", "spec.outer.momentum"},
      {"outer.nesterov=yes", "spec.outer.nesterov"},
      {"budget.globalSteps=0", "spec.budget.globalSteps"},
      {"budget.globalSteps=1e10", "spec.budget.globalSteps"},
      {"model.layers=0", "spec.model.layers"},
      {"model.layers=two", "spec.model.layers"},
      {"model.hiddenSize=-64", "spec.model.hiddenSize"},
      {"data.train.path=", "spec.data.train.path"},
      {"data.train.format=parquet", "spec.data.train.format"},
      {"data.volume.hostPath=../x", "spec.data.volume.hostPath"},
      {"outerOptimizer.storage.size=ten", "spec.outerOptimizer.storage.size"},
      {"outerOptimizer.storage.accessModes=[]", "spec.outerOptimizer.storage.accessModes"},
      {"outerOptimizer.storage.accessModes=[ReadOnlyMany]",
       "spec.outerOptimizer.storage.accessModes[0]"},
      {"outerOptimizer.checkpoint.journal=bf16", "spec.outerOptimizer.checkpoint.journal"},
      {"sync.embeddingMerge=sum", "spec.sync.embeddingMerge"},
      {"datacenters[0].learnerUnits=two", "spec.datacenters[0].learnerUnits"},
      {"datacenters[0].template.resources.limits.cpu=half",
       "spec.datacenters[0].template.resources.limits.cpu"},
      {"datacenters[0].template.resources.limits.memory=2",
       "spec.datacenters[0].template.resources.limits.memory"},
      {"datacenters[0].template.nodeSelector.ssd=true",
       "spec.datacenters[0].template.nodeSelector.ssd"},
      {"datacenters[0].template.ressources={}", "spec.datacenters[0].template.ressources"},
      {"recovery.precision=int4", "spec.recovery.precision"},
      {"sync=fast", "spec.sync"},
      {"images.pullPolicy=Sometimes", "spec.images.pullPolicy"},
  }));
  check_refused({set}, path, "allowed: ");
}

TEST_CASE("fields without behaviour are refused, their defaults accepted") {
  const auto [set, path, allowed] = GENERATE(table<std::string, std::string, std::string>({
      {"datacenters[0].workersPerUnit=2", "spec.datacenters[0].workersPerUnit", "1"},
      {"datacenters[0].minWorkersPerUnit=2", "spec.datacenters[0].minWorkersPerUnit", "1"},
      {"datacenters[0].scavenge.extra=4", "spec.datacenters[0].scavenge.extra", "0"},
      {"model.initFrom={run: other}", "spec.model.initFrom.run", "seed, path"},
      {"data.train.tokenizer=sentencepiece", "spec.data.train.tokenizer", "bytes"},
      {"sync.waitTimeoutSeconds=60", "spec.sync.waitTimeoutSeconds", "3600"},
      {"budget.tokens=10000000000", "spec.budget.tokens", "globalSteps"},
      {"outerOptimizer.shards=perDatacenter", "spec.outerOptimizer.shards", "single"},
      {"outerOptimizer.checkpoint.keepEvery=10", "spec.outerOptimizer.checkpoint.keepEvery", "0"},
      {"outerOptimizer.snapshot.everySteps=10", "spec.outerOptimizer.snapshot.everySteps", "0"},
      {"outerOptimizer.endpoint=host:1", "spec.outerOptimizer.endpoint", "\"\""},
      {"outerOptimizer.service.type=NodePort", "spec.outerOptimizer.service.type", "ClusterIP"},
      {"security.tls=auto", "spec.security.tls", "off"},
      {"security.mutual=true", "spec.security.mutual", "false"},
  }));
  check_refused({set}, path, "is not supported yet, allowed: " + allowed);
}

TEST_CASE("the defaults of fields without behaviour may be given") {
  CHECK(format_errors(
            errors_of({"datacenters[0].workersPerUnit=1", "datacenters[0].minWorkersPerUnit=1",
                       "datacenters[0].scavenge={extra: 0}", "model.initFrom={}",
                       "data.train.tokenizer=bytes", "inner.optimizer=muon",
                       "sync.fragmentation=balanced", "sync.blend=0.0", "sync.published=fp32",
                       "sync.waitTimeoutSeconds=3600", "outerOptimizer.shards=single",
                       "outerOptimizer.checkpoint.keepEvery=0",
                       "outerOptimizer.snapshot={everySteps: 0, size: 10Gi, storageClassName: ''}",
                       "outerOptimizer.endpoint=", "outerOptimizer.service={type: ClusterIP}",
                       "security={tls: off, mutual: false}", "ttlSecondsAfterFinished=null"}))
            .empty());
}

TEST_CASE("names: characters, derived lengths, digit growth") {
  const std::string long_name(49, 'a');
  check_refused({"metadata.name=Upper"}, "metadata.name", "a-z");
  check_refused({"metadata.name=under_score"}, "metadata.name", "a-z");
  check_refused({"metadata.name=1st"}, "metadata.name", "starting with a letter");
  check_refused({"metadata.name=dotted.name"}, "metadata.name", "a-z");
  check_refused({"metadata.name=" + std::string(200, 'a')}, "metadata.name", "a-z");
  check_refused({"metadata.name=" + long_name}, "metadata.name", "at most 48 characters");
  check_refused({"datacenters[0].name=US_East"}, "spec.datacenters[0].name", "a-z");
  // RUN-DATACENTER-ORDINAL-i123456: 7 + 1 + 45 + 1 + 1 + 8 = 63 with one digit of ordinal, 64 with
  // two.
  const std::string datacenter = "datacenters[0].name=" + std::string(45, 'd');
  CHECK(errors_of({datacenter}).empty());
  check_refused({datacenter, "datacenters[0].learnerUnits=11"}, "spec.datacenters[0].name",
                "64 characters");
}

TEST_CASE("a wrong field silences the rules that read it, and no others") {
  const auto errors = errors_of({"sync.interval=abc", "sync.overlap=500", "sync.quorum=9"});
  REQUIRE(errors.size() == 2);
  CHECK(errors[0].path == "spec.sync.interval");
  CHECK(errors[1].path == "spec.sync.quorum");
}

TEST_CASE("whole numbers of seven digits and more stay plain digits") {
  const DecoupledTraining training = good({"inner.seed=20161216", "budget.globalSteps=100000000"});
  const std::string text = to_json(training).dump();
  CHECK_THAT(text, Catch::Contains("\"seed\":20161216"));
  CHECK_THAT(text, Catch::Contains("\"globalSteps\":100000000"));
  check_refused({"budget.globalSteps=1e+06"}, "spec.budget.globalSteps",
                "write the plain digits 1000000");
}

}  // namespace
}  // namespace archipelago::config
