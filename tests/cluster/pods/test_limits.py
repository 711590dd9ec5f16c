"""Islands that can't run: too little memory, an image that does not exist. The others train, and status says why."""
import unittest

import harness
from harness import StepWatch

WELL = ["us-east-0", "us-east-1"]


class Limits(unittest.TestCase):
    def start(self, name, eu_west, **restart):
        run = harness.Run(self.cluster, name)
        self.addCleanup(run.delete)
        run.apply({"budget": {"globalSteps": 1_000_000}, "sync": {"startUnits": 2, "startTimeoutSeconds": 20}, "restart": restart,
                   "datacenters": [harness.datacenter("us-east", 2), eu_west]})
        run.wait_stepping(WELL)
        return run

    def test_too_little_memory(self):
        """OOMKilled is charged; past backoffLimit the island is Failed and the run Degraded, while the quorum trains."""
        poor = harness.datacenter("eu-west", 1)
        poor["template"]["resources"] = {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "40Mi"}}
        run = self.start("oom", poor, backoffLimit=2)
        with StepWatch(run, WELL) as watch:
            run.wait("eu-west-0 is given up", lambda: run.unit("eu-west-0").get("phase") == "Failed")
            run.wait("the run is Degraded", lambda: run.status().get("phase") == "Degraded")
            run.wait_step(run.global_step() + 20)
        watch.check(self)
        unit = run.unit("eu-west-0")
        self.assertEqual(unit["lastFailure"]["reason"], "OOMKilled")
        self.assertEqual(unit["restarts"], 3)  # backoffLimit replacements, and the one failure more
        self.assertEqual(unit.get("disruptions", 0), 0)
        self.assertEqual([run.unit(u).get("restarts", 0) for u in WELL], [0, 0])

    def test_image_that_does_not_exist(self):
        """Shown, not charged; with the image put right the island joins."""
        run = self.start("no-image", harness.datacenter("eu-west", 1, images={"learner": "localhost/no-such-image:1"}))
        with StepWatch(run, WELL) as watch:
            run.wait("the reason is shown", lambda: run.unit("eu-west-0").get("reason") in ("ErrImagePull", "ImagePullBackOff"))
            run.wait_step(run.global_step() + 20)
            unit = run.unit("eu-west-0")
            self.assertEqual((unit.get("restarts", 0), unit.get("charged", 0), unit["incarnation"]), (0, 0, 1))
            run.patch({"datacenters": [harness.datacenter("us-east", 2), harness.datacenter("eu-west", 1)]})
            run.kubectl("delete", "pod", run.pod("eu-west-0")["metadata"]["name"], "--wait=false")
            run.wait_stepping(WELL + ["eu-west-0"])
        watch.check(self)
        self.assertEqual(run.unit("eu-west-0").get("restarts", 0), 0)
