// The process kubelet against a MemoryCluster, with real processes.
#include "operator/local/kubelet.h"

#include <filesystem>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/base/files.h"
#include "operator/api/json.h"
#include "operator/api/labels.h"

using namespace archipelago;
using namespace archipelago::op;
using nlohmann::json;

namespace {

const std::string kBin = ARCHIPELAGO_BIN_DIR;
constexpr int kPort = 8472;

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class World {
 public:
  explicit World(double cpu = 4, double cpu_b = 4) : cluster_(clock_) {
    auto pool = AddressPool::find_free(dir_.path().string(), kPort);
    REQUIRE(pool);
    KubeletOptions options;
    options.run_dir = dir_.path();
    options.bin_dir = kBin;
    options.launcher = kBin + "/archipelago-launch";
    options.nodes = {{"node-a", "a", cpu}, {"node-b", "b", cpu_b}};
    options.base_env = inherited_environment();
    kubelet_ =
        std::make_unique<Kubelet>(cluster_, clock_, cgroups_, *pool, Logger::null(), options);
    REQUIRE(kubelet_->start());
  }

  json pod(const std::string& name, std::vector<std::string> args,
           const std::string& datacenter = "a") {
    json out = {
        {"apiVersion", "v1"},
        {"kind", "Pod"},
        {"metadata",
         {{"name", name},
          {"namespace", "default"},
          {"labels",
           {{kLabelUnit, name},
            {kLabelRole, kRoleLearner},
            {kLabelDatacenter, datacenter},
            {kLabelRun, "r"}}}}},
        {"spec",
         {{"restartPolicy", "Never"},
          {"terminationGracePeriodSeconds", 1},
          {"nodeSelector", {{kNodeLabelDatacenter, datacenter}}},
          {"containers", json::array({{{"name", "main"},
                                       {"image", "test"},
                                       {"command", {"archipelago_test_child"}},
                                       {"args", args},
                                       {"terminationMessagePolicy", "FallbackToLogsOnError"}}})}}}};
    return out;
  }
  void create(const json& object) {
    auto made = cluster_.create(object);
    if (!made) FAIL(made.error().message);
  }
  json get(const std::string& name) {
    auto got = cluster_.get(Kind::kPod, {"default", name});
    return got ? got->json() : json();
  }
  std::string phase(const std::string& name) { return string_at(get(name), {"status", "phase"}); }
  bool reaches(const std::string& name, const std::string& wanted) {
    return eventually([&] { return phase(name) == wanted; });
  }
  json terminated(const std::string& name) {
    const json got = get(name);
    const json& all = at(got, {"status", "containerStatuses"});
    return all.is_array() && !all.empty() ? at(all[0], {"state", "terminated"}) : json();
  }
  bool logged(const std::string& name, const std::string& text) {
    return eventually([&] {
      auto log = read_file(dir_.path() / "logs" / (name + ".log"));
      return log && log->find(text) != std::string::npos;
    });
  }
  bool gone(const std::string& name) {
    return eventually([&] { return get(name).is_null(); });
  }
  bool condition(const std::string& name, const std::string& type) {
    const json got = get(name);
    for (const auto& c : at(got, {"status", "conditions"})) {
      if (string_at(c, {"type"}) == type) return string_at(c, {"status"}) == "True";
    }
    return false;
  }

  TempDir dir_;
  SystemClock clock_;
  MemoryCluster cluster_;
  CgroupManager cgroups_;
  std::unique_ptr<Kubelet> kubelet_;
};

json liveness(int threshold) {
  return {{"httpGet", {{"path", "/healthz"}, {"port", kPort}}},
          {"periodSeconds", 1},
          {"timeoutSeconds", 1},
          {"failureThreshold", threshold},
          {"terminationGracePeriodSeconds", 1}};
}

}  // namespace

TEST_CASE("a pod runs and ends with its exit code, log and message") {
  World world;
  world.create(world.pod("ok", {"exit", "0"}));
  world.create(world.pod("bad", {"exit", "12"}));
  world.create(world.pod("said", {"message", "/dev/termination-log", "fenced by 4", "11"}));
  REQUIRE(world.reaches("ok", "Succeeded"));
  CHECK(world.terminated("ok")["reason"] == "Completed");
  REQUIRE(world.reaches("bad", "Failed"));
  CHECK(world.terminated("bad")["exitCode"] == 12);
  CHECK(world.terminated("bad")["reason"] == "Error");
  CHECK(world.terminated("bad")["message"] == "mode exit\n");
  REQUIRE(world.reaches("said", "Failed"));
  CHECK(world.terminated("said")["message"] == "fenced by 4");
}

TEST_CASE("a pod gets an address of its own and its folders") {
  World world;
  json pod = world.pod("a", {"env", "/var/lib/x"});
  pod["spec"]["volumes"] =
      json::parse(R"([{"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}])");
  pod["spec"]["containers"][0]["volumeMounts"] =
      json::parse(R"([{"name": "c", "mountPath": "/var/lib"}])");
  pod["spec"]["containers"][0]["env"] = json::parse(
      R"([{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])");
  world.create(pod);
  REQUIRE(world.reaches("a", "Succeeded"));
  CHECK(world.logged("a", "arg " + (world.dir_.path() / "volumes/claim/x").string()));
  CHECK(world.logged("a", "POD_IP=" + string_at(world.get("a"), {"status", "podIP"})));
  CHECK(std::filesystem::is_directory(world.dir_.path() / "volumes/claim"));
}

TEST_CASE("deletion sends SIGTERM, then SIGKILL after the grace period") {
  World world;
  world.create(world.pod("polite", {"term-exit", "10"}));
  world.create(world.pod("deaf", {"ignore-term"}));
  REQUIRE(world.logged("polite", "mode"));
  REQUIRE(world.logged("deaf", "mode"));
  CHECK(world.cluster_.remove(Kind::kPod, {"default", "polite"}, {}));
  CHECK(world.cluster_.remove(Kind::kPod, {"default", "deaf"}, {}));
  CHECK(world.gone("polite"));
  CHECK(world.gone("deaf"));
  CHECK(eventually([&] { return world.kubelet_->running().empty(); }));
  bool polite = false;
  bool deaf = false;
  for (const auto& event : world.cluster_.events()) {
    if (event.message == "polite exited with code 10") polite = true;
    if (event.message == "deaf was ended by signal 9") deaf = true;
  }
  CHECK(polite);
  CHECK(deaf);
}

TEST_CASE("a killed process fails its pod") {
  World world;
  world.create(world.pod("u-0", {"sleep"}));
  REQUIRE(world.reaches("u-0", "Running"));
  REQUIRE(eventually([&] { return world.kubelet_->kill("u-0").has_value(); }));
  REQUIRE(world.reaches("u-0", "Failed"));
  CHECK(world.terminated("u-0")["exitCode"] == 137);
  CHECK(world.terminated("u-0")["signal"] == 9);
  CHECK(world.kubelet_->kill("u-0").error().kind == ErrorKind::kNotFound);
}

TEST_CASE("liveness: silence and a stopped process are killed, health is not") {
  World world;
  for (const auto& [name, answers] : std::map<std::string, std::string>{
           {"well", "1000000"}, {"silent", "2"}, {"hung", "1000000"}}) {
    json pod = world.pod(name, {"serve", "$(IP)", std::to_string(kPort), answers});
    pod["spec"]["containers"][0]["env"] = json::parse(
        R"([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])");
    pod["spec"]["containers"][0]["livenessProbe"] = liveness(2);
    pod["spec"]["containers"][0]["readinessProbe"] = liveness(1);
    if (name == "silent") pod["spec"]["containers"][0].erase("readinessProbe");
    world.create(pod);
  }
  REQUIRE(eventually(
      [&] { return world.condition("hung", "Ready") && world.condition("well", "Ready"); }));
  REQUIRE(world.kubelet_->hang("hung"));
  REQUIRE(world.reaches("hung", "Failed"));
  CHECK(world.terminated("hung")["exitCode"] == 137);
  REQUIRE(world.reaches("silent", "Failed"));
  CHECK(world.phase("well") == "Running");
}

TEST_CASE("pods beyond the capacity wait for it") {
  World world(1);
  for (const char* name : {"first", "second"}) {
    json pod = world.pod(name, {"sleep"});
    pod["spec"]["containers"][0]["resources"] = {{"limits", {{"cpu", "600m"}}}};
    world.create(pod);
    REQUIRE(eventually([&] { return !at(world.get(name), {"status", "conditions"}).is_null(); }));
  }
  CHECK(world.reaches("first", "Running"));
  CHECK(world.phase("second") == "Pending");
  const json second = world.get("second");
  CHECK(string_at(at(second, {"status", "conditions"})[0], {"reason"}) == "Unschedulable");
  CHECK(world.cluster_.remove(Kind::kPod, {"default", "first"}, {}));
  CHECK(world.reaches("second", "Running"));
}

TEST_CASE("what is missing is a waiting reason, and is retried") {
  World world;
  json pod = world.pod("configured", {"exit", "0"});
  pod["spec"]["volumes"] = json::parse(R"([{"name": "s", "configMap": {"name": "later"}}])");
  pod["spec"]["containers"][0]["volumeMounts"] =
      json::parse(R"([{"name": "s", "mountPath": "/etc/a"}])");
  world.create(pod);
  json binary = world.pod("binary", {});
  binary["spec"]["containers"][0]["command"] = {"no-such-program"};
  world.create(binary);
  const auto reason = [&](const std::string& name) {
    const json got = world.get(name);
    const json& all = at(got, {"status", "containerStatuses"});
    return all.is_array() ? string_at(all[0], {"state", "waiting", "reason"}) : "";
  };
  CHECK(eventually([&] { return reason("configured") == "CreateContainerConfigError"; }));
  CHECK(eventually([&] { return reason("binary") == "ImagePullBackOff"; }));
  world.create({{"apiVersion", "v1"},
                {"kind", "ConfigMap"},
                {"metadata", {{"name", "later"}, {"namespace", "default"}}},
                {"data", {{"spec.json", "{}"}}}});
  CHECK(world.reaches("configured", "Succeeded"));
  CHECK(world.phase("binary") == "Pending");
}

TEST_CASE("an evicted pod is a disruption") {
  World world;
  world.create(world.pod("u-0", {"ignore-term"}));
  REQUIRE(world.logged("u-0", "mode"));
  REQUIRE(eventually([&] { return world.kubelet_->evict("u-0").has_value(); }));
  CHECK(world.condition("u-0", "DisruptionTarget"));
  CHECK(world.get("u-0").at("metadata").contains("deletionTimestamp"));
  CHECK(world.gone("u-0"));
}

TEST_CASE("a lost node is silent, and reports its pods as failed when it is back") {
  World world;
  world.create(world.pod("u-0", {"sleep"}));
  world.create(world.pod("v-0", {"sleep"}, "b"));
  REQUIRE(world.reaches("u-0", "Running"));
  REQUIRE(world.reaches("v-0", "Running"));
  CHECK(world.kubelet_->lose_node("mars", seconds(1)).error().kind == ErrorKind::kNotFound);
  REQUIRE(world.kubelet_->lose_node("a", seconds(1.5)));
  const json node = world.cluster_.get(Kind::kNode, {"", "node-a"})->json();
  CHECK(string_at(at(node, {"status", "conditions"})[0], {"status"}) == "Unknown");
  CHECK(world.phase("u-0") == "Running");  // nobody could say anything else
  CHECK_FALSE(world.condition("u-0", "Ready"));
  world.create(world.pod("u-1", {"sleep"}));
  CHECK(eventually([&] { return !at(world.get("u-1"), {"status", "conditions"}).is_null(); }));
  CHECK(world.phase("u-1") == "Pending");
  CHECK(world.reaches("u-0", "Failed"));
  CHECK(world.condition("u-0", "DisruptionTarget"));
  CHECK(world.reaches("u-1", "Running"));
  CHECK(world.phase("v-0") == "Running");
}

TEST_CASE("a stop ends politely, then hard") {
  World world;
  world.create(world.pod("polite", {"term-exit", "10"}));
  world.create(world.pod("deaf", {"ignore-term"}));
  REQUIRE(world.logged("polite", "mode"));
  REQUIRE(world.logged("deaf", "mode"));
  world.kubelet_->stop(seconds(0.3));
  CHECK(world.kubelet_->running().empty());
  CHECK(world.kubelet_->kill("deaf").error().kind == ErrorKind::kUnavailable);
}

TEST_CASE("a slowed island is stopped part of the time and recovers") {
  World world;
  world.create(world.pod("u-0", {"spin"}));
  REQUIRE(world.reaches("u-0", "Running"));
  REQUIRE(eventually([&] { return world.kubelet_->slow("u-0", 4, seconds(0.8)).has_value(); }));
  CHECK(world.phase("u-0") == "Running");
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  CHECK(world.phase("u-0") == "Running");
  CHECK(world.kubelet_->kill("u-0"));
  CHECK(world.reaches("u-0", "Failed"));
}
