"""What a user changes while a run goes on: suspend, units, budget; and what is left when it is deleted."""
import time
import unittest

import harness
from harness import StepWatch

TWO = ["us-east-0", "us-east-1"]


class Live(unittest.TestCase):
    def start(self, name, steps):
        run = harness.Run(self.cluster, name)
        run.apply({"budget": {"globalSteps": steps}, "datacenters": [harness.datacenter("us-east", 2), harness.datacenter("eu-west", 1)]})
        self.addCleanup(run.delete)
        run.wait_stepping(TWO + ["eu-west-0"])
        return run

    def test_two_minutes_of_suspend(self):
        """All pods go; on resume the islands go on with their inner optimizer's state."""
        run = self.start("suspended", 1_000_000)
        run.wait_step(60)
        run.patch({"suspend": True})
        run.wait("no pods", lambda: not run.pods())
        run.wait("phase Suspended", lambda: run.status()["phase"] == "Suspended")
        before = run.status()
        time.sleep(120)
        self.assertFalse(run.pods())
        run.patch({"suspend": False})
        after = run.wait_stepping(TWO + ["eu-west-0"])
        run.wait_step(before["globalStep"] + 10)
        recovered = 0
        for name in TWO + ["eu-west-0"]:
            self.assertEqual(after[name].get("restarts", 0), 0, name)
            log = run.logs(run.pod(name)["metadata"]["name"])
            recovered += "starting with fresh moments" not in log
        self.assertEqual(recovered, 3, "an island lost its inner state")
        self.assertGreaterEqual(run.status()["globalStep"], before["globalStep"])

    def test_units_come_and_go(self):
        """2 -> 3 -> 1: the newcomer joins, the highest ordinals leave, the one that stays never notices."""
        run = self.start("scaled", 1_000_000)
        with StepWatch(run, ["us-east-0", "eu-west-0"]) as watch:
            run.patch({"datacenters": [harness.datacenter("us-east", 3), harness.datacenter("eu-west", 1)]})
            run.wait_stepping(TWO + ["us-east-2"])
            run.patch({"datacenters": [harness.datacenter("us-east", 1), harness.datacenter("eu-west", 1)]})
            run.wait("two leave", lambda: {harness.unit_of(p) for p in run.pods()} - {None} == {"us-east-0", "eu-west-0"})
            run.wait_step(run.global_step() + 20)
        watch.check(self)
        status = run.status()
        self.assertEqual({u["name"] for u in status["units"]}, {"us-east-0", "eu-west-0"})
        self.assertEqual({u["name"] for u in status["retiredUnits"]}, {"us-east-1", "us-east-2"})
        self.assertEqual(status["learners"]["desired"], 2)
        self.assertEqual([u.get("restarts", 0) for u in status["units"]], [0, 0])

    def test_budget_raised(self):
        """A run that would end at 3,000 goes on to 3,600, and ends there."""
        run = self.start("budget", 3000)
        run.patch({"budget": {"globalSteps": 3600}})
        run.kubectl("wait", "--for=condition=Complete", f"dt/{run.name}", "--timeout=240s", timeout=260)
        status = run.status()
        self.assertEqual((status["phase"], status["globalStep"]), ("Succeeded", 3600))

    def test_deleted_while_it_trains(self):
        """Nothing is left but the claim, which is retained."""
        run = self.start("deleted", 1_000_000)
        run.wait_step(20)
        run.kubectl("delete", "dt", run.name, "--timeout=60s")
        left = lambda: leftovers(self.cluster, run)
        run.wait("only the claim is left", lambda: left() == ["PersistentVolumeClaim"])
        self.assertEqual(self.cluster.json("-n", run.namespace, "get", "pvc")["items"][0]["status"]["phase"], "Bound")
        # The same name again is a new run with a claim of its own.
        run.apply({"budget": {"globalSteps": 1_000_000}, "datacenters": [harness.datacenter("us-east", 1)], "sync": {"startUnits": 1}})
        run.wait_stepping(["us-east-0"])
        self.assertEqual(len(self.cluster.json("-n", run.namespace, "get", "pvc")["items"]), 2)
        self.assertLess(run.global_step(), 1_000_000)


def leftovers(cluster, run):
    kinds = "pods,services,configmaps,secrets,persistentvolumeclaims,decoupledtrainings"
    items = cluster.json("-n", run.namespace, "get", kinds)["items"]
    return [item["kind"] for item in items if item["metadata"]["name"] != "kube-root-ca.crt"]
