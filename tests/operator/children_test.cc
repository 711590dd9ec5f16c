#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/config/parse.h"
#include "plan_fixture.h"

namespace archipelago::op {
using nlohmann::json;

namespace {
std::vector<std::string> command_of(const json& pod) {
  return pod["spec"]["containers"][0]["command"].get<std::vector<std::string>>();
}
std::string after(const std::vector<std::string>& command, const std::string& flag) {
  for (std::size_t i = 0; i + 1 < command.size(); ++i)
    if (command[i] == flag) return command[i + 1];
  return "";
}
}  // namespace

TEST_CASE("a learner pod says who it is and is found again") {
  auto run = small_run();
  run.spec.datacenters[0].cpu_limit = 1.5;
  run.spec.data.volume.claim = "corpus";
  run.spec.datacenters[0].template_json =
      R"({"resources":{"limits":{"cpu":"1500m"}},"labels":{"team":"x",
    "archipelago.training/unit":"stolen"},"nodeSelector":{"archipelago.training/datacenter":"mars"},
    "env":[{"name":"OMP_NUM_THREADS","value":"7"},{"name":"A","value":"b"}],"tolerations":[{"key":"spot"}]})";
  const json pod = build_learner_pod(run, run.spec.datacenters[0], 1, 3, {});
  CHECK(string_at(pod, {"metadata", "name"}) == "r-east-1-i3");
  const auto command = command_of(pod);
  CHECK(command[0] == "archipelago-learner");
  CHECK(after(command, "--config") == kSpecPath);
  CHECK(after(command, "--unit") == "east-1");
  CHECK(after(command, "--incarnation") == "3");
  CHECK(after(command, "--datacenter") == "east");
  CHECK(after(command, "--outer") == "http://r-outer:8470");
  CHECK(after(command, "--admin") == "[::]:8471");
  CHECK(after(command, "--run-id") == run.uid);
  CHECK(after(command, "--threads") == "2");
  const json& spec = pod["spec"];
  CHECK(spec["restartPolicy"] == "Never");
  CHECK(spec["terminationGracePeriodSeconds"] == 30);
  CHECK(string_at(spec, {"nodeSelector", kNodeLabelDatacenter}) == "east");  // ours wins
  CHECK(string_at(pod, {"metadata", "labels", kLabelUnit}) == "east-1");
  CHECK(string_at(pod, {"metadata", "labels", "team"}) == "x");
  CHECK(spec["tolerations"].size() == 1);
  const json& container = spec["containers"][0];
  CHECK(container["image"] == "learner:1");
  CHECK(container["resources"]["limits"]["cpu"] == "1500m");
  REQUIRE(container["env"].size() == 2);  // the template's value took the place of ours
  CHECK(container["env"][0]["value"] == "7");
  CHECK(container["livenessProbe"]["httpGet"]["path"] == "/healthz");
  CHECK(container["livenessProbe"]["httpGet"]["port"] == 8471);
  CHECK(container["livenessProbe"]["terminationGracePeriodSeconds"] == 2);
  CHECK(container["terminationMessagePolicy"] == "FallbackToLogsOnError");
  CHECK(container["securityContext"]["allowPrivilegeEscalation"] == false);
  const ObservedPod seen = observe_pod(pod);
  CHECK(seen.unit == "east-1");
  CHECK(seen.incarnation == 3);
  CHECK(observe_child(pod, run.uid).ours);
  CHECK(!observe_child(pod, "other").ours);
}

TEST_CASE("without a limit the learner counts its cores, without a template nothing is left over") {
  const auto run = small_run();
  const json pod = build_learner_pod(run, run.spec.datacenters[0], 0, 1, {});
  CHECK(after(command_of(pod), "--threads").empty());
  CHECK(!pod["spec"]["containers"][0].contains("env"));
  CHECK(!pod["metadata"].contains("annotations"));
  CHECK(pod.dump().find("null") == std::string::npos);
}

TEST_CASE("the outer optimizer's pod mounts its claim") {
  auto run = small_run();
  const json pod = build_outer_pod(run, 2, {});
  const auto command = command_of(pod);
  CHECK(command[0] == "archipelago-outer-optimizer");
  CHECK(after(command, "--data-dir") == kStatePath);
  CHECK(after(command, "--listen") == "[::]:8470");
  CHECK(after(command, "--admin") == "[::]:8471");
  CHECK(pod.dump().find("\"claimName\":\"r-outer-5c0e1111\"") != std::string::npos);
  CHECK(pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz");
  CHECK(observe_pod(pod).role == kRoleOuter);
  run.spec.outer_optimizer.storage.existing_claim = "old";
  CHECK(claim_in_use(run) == "old");
  World w(run);
  CHECK(count_kind(w.step().creates, "PersistentVolumeClaim") == 0);
}

TEST_CASE("a retained claim has no owner, a deletable one has") {
  auto run = small_run();
  CHECK(!build_outer_claim(run)["metadata"].contains("ownerReferences"));
  CHECK(observe_child(build_outer_claim(run), run.uid).ours);
  run.spec.outer_optimizer.storage.retain = config::RetainPolicy::kDelete;
  CHECK(build_outer_claim(run)["metadata"]["ownerReferences"][0]["uid"] == run.uid);
}

TEST_CASE("the ConfigMap carries the resolved spec, and reads back as the same run") {
  const auto run = small_run();
  const std::string text = resolved_spec_text(run);
  CHECK(text == resolved_spec_text(run));
  const json map = build_spec_config_map(run, text);
  CHECK(map["data"]["spec.json"] == text);
  CHECK(map["metadata"]["name"] == "r-spec");
  const auto back = config::parse_training(std::string_view(text));
  if (!back) UNSCOPED_INFO(config::format_errors(back.error()));
  REQUIRE(back.has_value());
  CHECK(back->uid == run.uid);
  CHECK(config::total_units(back->spec) == 3);
}

TEST_CASE("the Service selects this run's outer optimizer and exposes the exchange port only") {
  const auto run = small_run();
  const json service = build_outer_service(run);
  CHECK(service["metadata"]["name"] == "r-outer");
  CHECK(service["spec"]["ports"].size() == 1);
  CHECK(service["spec"]["ports"][0]["port"] == 8470);
  CHECK(service["spec"]["selector"][kLabelRunUid] == run.uid);
}

}  // namespace archipelago::op
