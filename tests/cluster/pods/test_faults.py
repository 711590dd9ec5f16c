"""Whatever dies is replaced while the others train: one long run, a fault per test."""
import json
import subprocess
import time
import unittest

import harness
from harness import SIGKILL, SIGSTOP, StepWatch

UNITS = ["us-east-0", "us-east-1", "eu-west-0", "eu-west-1"]
STALL = harness.SMALL["restart"]["stallSeconds"]


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_ = harness.Run(cls.cluster, "faults")
        cls.run_.apply({"budget": {"globalSteps": 1_000_000},
                        "datacenters": [harness.datacenter("us-east", 2), harness.datacenter("eu-west", 2)]})

    @classmethod
    def tearDownClass(cls):
        cls.run_.delete()

    def setUp(self):
        # The first replacement after resetSeconds of stepping comes at once, and its charge stands alone.
        self.before = self.run_.wait("everything calm", self.calm, 240)
        self.step = self.run_.global_step()

    def calm(self):
        units = self.run_.units()
        steady = all(units.get(u, {}).get("phase") == "Stepping" and not units[u].get("charged") for u in UNITS)
        return steady and units

    def watch(self, *victims):
        return StepWatch(self.run_, [u for u in UNITS if u not in victims])

    def replaced(self, *victims, restarts=0, disruptions=0, watch=None):
        """The victims step again one incarnation later, with these counts; everybody else is as before."""
        def back():
            units = self.run_.units()
            return all(units[v]["phase"] == "Stepping" and units[v]["incarnation"] > self.before[v]["incarnation"] for v in victims) and units
        after = self.run_.wait(f"{', '.join(victims)} replaced", back, 240)
        for name in UNITS:
            was, now, hit = self.before[name], after[name], name in victims
            self.assertEqual(now["incarnation"] - was["incarnation"], int(hit), name)
            self.assertEqual(now.get("restarts", 0) - was.get("restarts", 0), restarts * hit, f"restarts of {name}")
            self.assertEqual(now.get("disruptions", 0) - was.get("disruptions", 0), disruptions * hit, f"disruptions of {name}")
        if watch:
            watch.check(self)
        return after

    def untouched(self):
        after = self.run_.wait_stepping(UNITS)
        for name in UNITS:
            for count in ("incarnation", "restarts", "disruptions"):
                self.assertEqual(after[name].get(count, 0), self.before[name].get(count, 0), f"{count} of {name}")

    def test_pod_deleted(self):
        with self.watch("us-east-1") as watch:
            self.run_.kubectl("delete", "pod", self.run_.pod("us-east-1")["metadata"]["name"], "--wait=false")
            self.replaced("us-east-1", disruptions=1)
        watch.check(self)

    def test_process_killed(self):
        with self.watch("eu-west-0") as watch:
            self.cluster.signal(self.run_.pod("eu-west-0"), SIGKILL)
            after = self.replaced("eu-west-0", restarts=1)
        watch.check(self)
        failure = after["eu-west-0"]["lastFailure"]
        self.assertEqual((failure["reason"], failure.get("exitCode")), ("Crash", 137))

    def test_process_stopped(self):
        with self.watch("eu-west-1") as watch:
            self.cluster.signal(self.run_.pod("eu-west-1"), SIGSTOP)
            self.replaced("eu-west-1", restarts=1)
        watch.check(self)

    def test_eviction(self):
        pod = self.run_.pod("us-east-0")["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.run_.namespace}}
        with self.watch("us-east-0") as watch:
            self.cluster.kubectl("create", "--raw", f"/api/v1/namespaces/{self.run_.namespace}/pods/{pod}/eviction", "-f", "-",
                                 data=json.dumps(eviction))
            self.replaced("us-east-0", disruptions=1)
        watch.check(self)

    def test_node_drained(self):
        node = f"node-{self.cluster.name}-2"
        self.addCleanup(self.cluster.kubectl, "uncordon", node)
        with self.watch("eu-west-0", "eu-west-1") as watch:
            self.cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
            self.run_.wait("eu-west waits for a node",
                           lambda: all(self.run_.unit(u).get("reason") == "Unschedulable" for u in ("eu-west-0", "eu-west-1")))
            self.cluster.kubectl("uncordon", node)
            self.replaced("eu-west-0", "eu-west-1", disruptions=1)
        watch.check(self)

    def test_node_lost_while_its_containers_live(self):
        """The node's kubelet is gone: its islands start elsewhere, and the old ones are fenced off."""
        node, other = f"node-{self.cluster.name}-2", f"node-{self.cluster.name}"
        label = "archipelago.training/datacenter"
        old = {u: self.cluster.task_pid(self.run_.pod(u)) for u in ("eu-west-0", "eu-west-1")}
        old_names = {self.run_.pod(u)["metadata"]["name"] for u in old}

        def restore():
            self.cluster.tool("return", self.cluster.name, 2, check=False)
            self.cluster.kubectl("label", "node", other, f"{label}=us-east", "--overwrite")

        self.addCleanup(restore)
        with self.watch(*old) as watch:
            self.cluster.tool("lose", self.cluster.name, 2, "kubelet")
            self.run_.wait("new incarnations", lambda: all(self.run_.unit(u)["incarnation"] > self.before[u]["incarnation"] for u in old))
            self.cluster.kubectl("label", "node", other, f"{label}=eu-west", "--overwrite")
            self.replaced(*old, disruptions=1)
            self.run_.wait("the old processes end", lambda: not any(alive(pid) for pid in old.values()))
        watch.check(self)
        self.cluster.tool("return", self.cluster.name, 2)
        self.cluster.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=60s")
        self.run_.wait("the old pods go", lambda: not old_names & {p["metadata"]["name"] for p in self.run_.pods()})

    def test_outer_optimizer_killed(self):
        incarnation = self.run_.status()["outerOptimizer"]["incarnation"]
        with self.watch() as watch:
            self.cluster.signal(self.run_.pod("outer"), SIGKILL)
            self.run_.wait("a new outer optimizer", lambda: self.run_.status()["outerOptimizer"]["incarnation"] > incarnation
                           and self.run_.condition("OuterOptimizerReady").get("status") == "True")
            self.run_.wait_step(self.run_.global_step() + 20)
        watch.check(self)
        self.untouched()

    def test_outer_optimizer_pod_deleted(self):
        incarnation = self.run_.status()["outerOptimizer"]["incarnation"]
        with self.watch() as watch:
            self.run_.kubectl("delete", "pod", self.run_.pod("outer")["metadata"]["name"], "--wait=false")
            self.run_.wait("a new outer optimizer", lambda: self.run_.status()["outerOptimizer"]["incarnation"] > incarnation
                           and self.run_.condition("OuterOptimizerReady").get("status") == "True")
            self.run_.wait_step(self.run_.global_step() + 20)
        watch.check(self)
        self.untouched()

    def test_operator_killed(self):
        """It is killed, and an island with it; the next one finds out what happened."""
        with self.watch("us-east-1") as watch:
            self.cluster.signal(self.cluster.operator_pod(), SIGKILL)
            self.cluster.signal(self.run_.pod("us-east-1"), SIGKILL)
            self.replaced("us-east-1", restarts=1)
        watch.check(self)
        mine = [p for p in self.run_.pods() if harness.unit_of(p) == "us-east-1" and harness.is_running(p)]
        self.assertEqual(len(mine), 1, "two pods of one island")

    def test_api_server_away_for_a_minute(self):
        """Training goes on. Nodes are NotReady until their kubelets have found the server again, which took up to a minute
        here: an operator told to give a node up after 15 s would do so."""
        self.run_.patch({"restart": {"nodeLostSeconds": 180}})
        self.addCleanup(self.run_.patch, {"restart": {"nodeLostSeconds": harness.SMALL["restart"]["nodeLostSeconds"]}})
        self.addCleanup(self.cluster.tool, "api-start", self.cluster.name, check=False)
        with self.watch() as watch:
            self.cluster.tool("api-stop", self.cluster.name)
            time.sleep(60)
            self.cluster.tool("api-start", self.cluster.name)
            self.cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=150s", timeout=170)
            away = {u: watch.latest(u) for u in UNITS}
            self.run_.wait_step(self.step + 1)
        watch.check(self)
        for name in UNITS:
            self.assertGreater(away[name], watch.samples[name][0][1], f"{name} didn't step while the API server was away")
        self.untouched()

    def test_outer_optimizer_out_of_reach_is_no_failure(self):
        """For longer than stallSeconds nobody hears the others: no island is replaced, none charged; all go on."""
        pid = self.cluster.task_pid(self.run_.pod("outer"))
        inside = ["nsenter", "--net", "--target", str(pid)]

        def rule(*args):
            self.assert_ran(inside + ["nft", *args])

        rule("add table inet cut")
        rule("add chain inet cut input { type filter hook input priority 0; }")
        rule(f"add rule inet cut input tcp dport {harness.EXCHANGE_PORT} drop")
        seen = set()
        try:
            until = time.monotonic() + STALL + 25
            while time.monotonic() < until:
                seen |= {u.get("phase") for u in self.run_.units().values()}
                time.sleep(1)
        finally:
            rule("delete table inet cut")
        self.run_.wait_stepping(UNITS, 240)
        self.run_.wait_step(self.run_.global_step() + 20)
        self.untouched()
        self.assertIn("Unreachable", seen)

    def assert_ran(self, command):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual(answer.returncode, 0, answer.stderr)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
