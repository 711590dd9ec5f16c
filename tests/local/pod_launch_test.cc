#include "operator/local/pod_launch.h"

#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "operator/local/addresses.h"
#include "operator/local/pod_status.h"

using namespace archipelago;
using namespace archipelago::op;
using nlohmann::json;

namespace {

LaunchContext context() {
  LaunchContext c;
  c.run_dir = "/run/dir";
  c.pod_ip = "127.77.3.5";
  c.addresses = dns_names("islands-outer", "default", "127.77.3.1");
  c.config_map = [](const std::string& name) -> Result<json> {
    if (name == "islands-spec")
      return json{{"spec.json", R"({"a": "/var/lib/archipelago/x", "b": "/tmp/y"})"}};
    return fail(ErrorKind::kNotFound, "configmap \"" + name + "\" not found");
  };
  c.base_env = {{"PATH", "/bin"}};
  return c;
}

json learner_pod() {
  return json::parse(R"json({
    "metadata": {"name": "islands-us-east-0-i2", "namespace": "default", "uid": "u1",
                 "labels": {"archipelago.training/role": "learner", "archipelago.training/unit": "us-east-0"}},
    "spec": {"nodeName": "us-east", "terminationGracePeriodSeconds": 7, "containers": [{
      "name": "learner", "image": "archipelago-learner:0.1",
      "args": ["--spec=/etc/archipelago/spec.json", "--outer", "http://islands-outer.default.svc:8470",
               "--unit=$(UNIT)", "--admin=:8472", "--state=/var/lib/archipelago/inner"],
      "env": [{"name": "UNIT", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['archipelago.training/unit']"}}},
              {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
              {"name": "OUTER", "value": "islands-outer:8470"}],
      "resources": {"limits": {"cpu": "1500m", "memory": "2Gi"}},
      "ports": [{"name": "admin", "containerPort": 8472}],
      "livenessProbe": {"httpGet": {"path": "/healthz", "port": "admin"}, "periodSeconds": 2, "failureThreshold": 4,
                        "terminationGracePeriodSeconds": 1},
      "terminationMessagePolicy": "FallbackToLogsOnError",
      "volumeMounts": [{"name": "spec", "mountPath": "/etc/archipelago"},
                       {"name": "state", "mountPath": "/var/lib/archipelago"}]}],
      "volumes": [{"name": "spec", "configMap": {"name": "islands-spec"}},
                  {"name": "state", "persistentVolumeClaim": {"claimName": "islands-outer-1234abcd"}}]}})json");
}

}  // namespace

TEST_CASE("a pod becomes a process: names, folders, addresses, limits") {
  auto launch = plan_launch(learner_pod(), context());
  if (!launch) FAIL(launch.error().message);
  CHECK(launch->program == "archipelago-learner");
  CHECK(launch->args ==
        std::vector<std::string>{"--spec=/run/dir/pods/islands-us-east-0-i2/volumes/spec/spec.json",
                                 "--outer", "http://127.77.3.1:8470", "--unit=us-east-0",
                                 "--admin=127.77.3.5:8472",
                                 "--state=/run/dir/volumes/islands-outer-1234abcd/inner"});
  CHECK(launch->env.at("POD_IP") == "127.77.3.5");
  CHECK(launch->env.at("OUTER") == "127.77.3.1:8470");
  CHECK(launch->env.at("OMP_NUM_THREADS") == "2");
  CHECK(launch->env.at("PATH") == "/bin");
  REQUIRE(launch->files.size() == 1);
  CHECK(launch->files[0].first == "/run/dir/pods/islands-us-east-0-i2/volumes/spec/spec.json");
  CHECK(launch->files[0].second ==
        R"({"a": "/run/dir/volumes/islands-outer-1234abcd/x", "b": "/tmp/y"})");
  CHECK(launch->cpu_limit == 1.5);
  CHECK(launch->memory_limit == std::int64_t{2} << 30);
  CHECK(launch->grace == seconds(7));
  CHECK(launch->fallback_to_logs);
  REQUIRE(launch->liveness);
  CHECK(launch->liveness->port == 8472);
  CHECK(launch->liveness->host == "127.77.3.5");
  CHECK(launch->liveness->failure_threshold == 4);
  CHECK(*launch->liveness->termination_grace == seconds(1));
}

TEST_CASE("what a local run can't give a pod is an error with a name") {
  json pod = learner_pod();
  pod["spec"]["volumes"][0]["configMap"]["name"] = "absent";
  auto launch = plan_launch(pod, context());
  REQUIRE_FALSE(launch);
  CHECK(launch.error().kind == ErrorKind::kNotFound);
  CHECK(launch.error().message.find("absent") != std::string::npos);
  pod = learner_pod();
  pod["spec"]["containers"][0]["env"] =
      json::parse(R"([{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s"}}}])");
  launch = plan_launch(pod, context());
  REQUIRE_FALSE(launch);
  CHECK(launch.error().kind == ErrorKind::kUnsupported);
}

TEST_CASE("only whole host names and paths are rewritten") {
  const auto names = dns_names("a-outer", "default", "127.77.0.1");
  CHECK(rewrite_hosts("--run=a-outer", names) == "--run=a-outer");
  CHECK(rewrite_hosts("a-outer:1,ba-outer:1", names) == "127.77.0.1:1,ba-outer:1");
  CHECK(rewrite_hosts("http://a-outer.default.svc.cluster.local/x", names) ==
        "http://127.77.0.1/x");
  CHECK(rewrite_hosts("a-outer.default.svc", names) == "127.77.0.1");
  CHECK(rewrite_hosts("a-outer-i1", names) == "a-outer-i1");
  const std::map<std::string, std::string> mounts{{"/data", "/m"}};
  CHECK(rewrite_paths("/etc/a/f", {{"/etc/a", "/tmp/run/a"}, {"/tmp", "/tmp/run/tmp"}}) ==
        "/tmp/run/a/f");
  CHECK(rewrite_paths("/data", mounts) == "/m");
  CHECK(rewrite_paths("--a=/data/b", mounts) == "--a=/m/b");
  CHECK(rewrite_paths("/x/data/b", mounts) == "/x/data/b");
  CHECK(rewrite_paths("/database", mounts) == "/database");
  CHECK(rewrite_wildcards("--listen=0.0.0.0:80", "127.77.0.2") == "--listen=127.77.0.2:80");
  CHECK(rewrite_wildcards("127.0.0.1:80", "127.77.0.2") == "127.0.0.1:80");
  CHECK(rewrite_wildcards("::1", "127.77.0.2") == "::1");
}

TEST_CASE("addresses are unique and a service keeps its own") {
  AddressPool pool(77, 9);
  const std::string service = pool.of_service("a-outer");
  CHECK(service == "127.77.9.1");
  std::set<std::string> seen{service};
  for (int i = 0; i < 600; ++i) {
    auto address = pool.take();
    REQUIRE(address);
    CHECK(seen.insert(*address).second);
  }
  CHECK(pool.of_service("a-outer") == service);
}

TEST_CASE("quantities and threads") {
  CHECK(parse_quantity("500m") == 0.5);
  CHECK(parse_quantity(2) == 2.0);
  CHECK(parse_quantity("1Gi") == 1073741824.0);
  CHECK(parse_quantity("nonsense") == 0.0);
  CHECK(threads_for(0.5) == 1);
  CHECK(threads_for(2.0) == 2);
  CHECK(threads_for(2.1) == 3);
}

TEST_CASE("the status of a pod reads as a kubelet's") {
  const WallTime t0(std::chrono::milliseconds(1'000'000));
  PodState state;
  state.unschedulable = "0/1 nodes are available: 1 Insufficient cpu.";
  json status = pod_status(state, nullptr, t0);
  CHECK(status["phase"] == "Pending");
  CHECK(status["conditions"][0]["reason"] == "Unschedulable");

  state.bound = t0;
  state.pod_ip = "127.77.0.2";
  state.container.phase = ContainerPhase::kRunning;
  state.container.ready = true;
  state.container.started = t0;
  status = pod_status(state, status, t0 + std::chrono::seconds(1));
  set_pod_condition(status, "DisruptionTarget", true, "EvictionByEvictionAPI", "",
                    t0 + std::chrono::seconds(2));
  CHECK(status["phase"] == "Running");
  CHECK(status["conditions"][0]["status"] == "True");

  state.container.phase = ContainerPhase::kTerminated;
  state.container.ready = false;
  state.container.exit_code = 137;
  state.container.reason = "OOMKilled";
  state.container.message = "bye";
  json last = pod_status(state, status, t0 + std::chrono::seconds(3));
  CHECK(last["phase"] == "Failed");
  const json& ended = last["containerStatuses"][0]["state"]["terminated"];
  CHECK(ended["exitCode"] == 137);
  CHECK(ended["reason"] == "OOMKilled");
  CHECK(ended["message"] == "bye");
  bool kept = false;
  for (const auto& c : last["conditions"]) {
    if (c["type"] == "DisruptionTarget") kept = c["status"] == "True";
    if (c["type"] == "PodScheduled")
      CHECK(c["lastTransitionTime"] == format_wall(t0 + std::chrono::seconds(1)));
  }
  CHECK(kept);
}

TEST_CASE("termination messages fall back to the log only after a failure") {
  CHECK(termination_message("said", "log", true, 1) == "said");
  CHECK(termination_message("", "log\n", true, 1) == "log\n");
  CHECK(termination_message("", "log", true, 0).empty());
  CHECK(termination_message("", "log", false, 1).empty());
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += std::to_string(i) + "\n";
  const std::string tail = termination_message("", lines, true, 1);
  CHECK(tail.starts_with("120\n"));
  CHECK(tail.ends_with("199\n"));
}

TEST_CASE("pods are placed by selector, readiness and capacity") {
  json pod = learner_pod();
  pod["spec"]["nodeSelector"] = {{"dc", "a"}};
  std::vector<NodeView> nodes{{"a", {{"dc", "a"}}, true, 2, 0.5}, {"b", {{"dc", "b"}}, true, 8, 0}};
  CHECK(place_pod(pod, nodes).node == "a");
  nodes[0].cpu_used = 0.6;  // the pod wants 1.5
  CHECK(place_pod(pod, nodes).reason ==
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node selector.");
  nodes[0].cpu_used = 0;
  nodes[0].ready = false;
  CHECK(place_pod(pod, nodes).reason.find("1 node(s) not ready") != std::string::npos);
}
