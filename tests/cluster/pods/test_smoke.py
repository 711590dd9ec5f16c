"""The short way round, on every change: a run is applied, an island killed, the end waited for, the model fetched."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import harness
from test_live import leftovers


class Smoke(unittest.TestCase):
    def test_a_run_from_apply_to_fetch(self):
        run = harness.Run(self.cluster, "smoke")
        units = ["us-east-0", "us-east-1", "eu-west-0", "eu-west-1"]
        watched = tempfile.TemporaryFile(mode="w+")
        run.apply({"budget": {"globalSteps": 3000}, "datacenters": [harness.datacenter("us-east", 2), harness.datacenter("eu-west", 2)]})
        table = subprocess.Popen(["kubectl", "-n", run.namespace, "get", "dt", "-w"], env=self.cluster.environment(), stdout=watched)
        self.addCleanup(table.wait)
        self.addCleanup(table.kill)
        run.wait_stepping(units)
        run.kubectl("delete", "pod", run.pod("eu-west-1")["metadata"]["name"], "--wait=false")
        run.kubectl("wait", "--for=condition=Complete", f"dt/{run.name}", "--timeout=240s", timeout=260)
        status = run.status()
        self.assertEqual((status["phase"], status["globalStep"]), ("Succeeded", 3000))
        self.assertEqual(sum(u.get("restarts", 0) for u in status["units"]), 0)
        self.assertEqual(run.unit("eu-west-1").get("disruptions"), 1)
        self.assertEqual(run.unit("eu-west-1")["incarnation"], 2)
        with tempfile.TemporaryDirectory() as folder:
            answer = subprocess.run(["archipelago", "fetch", run.name, folder + "/model", "-n", run.namespace], env=self.cluster.environment(),
                                    capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            check_model(self, pathlib.Path(folder) / "model")
        table.kill()
        watched.seek(0)
        rows = watched.read()
        for phase in ("Running", "Succeeded"):
            self.assertIn(phase, rows)
        run.kubectl("delete", "dt", run.name, "--timeout=60s")
        run.wait("only the claim is left", lambda: leftovers(self.cluster, run) == ["PersistentVolumeClaim"])


def check_model(test, folder):
    """A Hugging Face folder: config.json and safetensors whose header says what is in it."""
    config = json.loads((folder / "config.json").read_text())
    test.assertEqual(config["model_type"], "llama")
    weights = (folder / "model.safetensors").read_bytes()
    header = json.loads(weights[8:8 + int.from_bytes(weights[:8], "little")])
    end = max(tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    test.assertEqual(8 + int.from_bytes(weights[:8], "little") + end, len(weights))
    test.assertIn("model.embed_tokens.weight", header)
