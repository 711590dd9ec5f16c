"""docs/kubernetes.md, followed literally: every command of its `sh` blocks, in order, on a cluster that has nothing."""
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

import harness
from test_smoke import check_model


def commands(text):
    """The lines of all sh blocks; a line that ends in a backslash goes on."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line


class Docs(unittest.TestCase):
    def test_followed_literally(self):
        document = (harness.ROOT / "docs/kubernetes.md").read_text()
        lines = list(commands(document))
        self.assertGreater(len(lines), 15)
        self.cluster.kubectl("label", "nodes", "--all", "archipelago.training/datacenter-")
        self.cluster.kubectl("delete", "-f", harness.ROOT / "deploy/operator.yaml", "-f", harness.ROOT / "crds", "--ignore-not-found")
        with tempfile.TemporaryDirectory() as folder:
            self.lay_out(pathlib.Path(folder))
            watched = self.follow(lines, pathlib.Path(folder))
            check_model(self, pathlib.Path(folder) / "quickstart-model")
        for phase in ("Running", "Succeeded"):
            self.assertIn(phase, watched)
        self.assertNotIn("training", self.cluster.kubectl("get", "namespaces", "-o", "name").split("/"))
        self.assertFalse([line for line in self.cluster.kubectl("get", "crds,clusterroles", "-o", "name").splitlines() if "archipelago" in line])

    def lay_out(self, folder):
        """The source tree as the commands name it, with room for what they write."""
        for name in ("crds", "deploy", "examples"):
            (folder / name).symlink_to(harness.ROOT / name)

    def follow(self, lines, folder):
        watched = open(folder / "watch.txt", "w+", encoding="utf-8")
        background = []
        self.addCleanup(lambda: [process.kill() for process in background])
        for line in lines:
            print("$", line, flush=True)
            if line.endswith(" -w"):
                background.append(subprocess.Popen(["bash", "-c", "exec " + line], cwd=folder, env=self.cluster.environment(), stdout=watched))
                continue
            answer = subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=folder, env=self.cluster.environment(), capture_output=True,
                                    text=True, timeout=2400, check=False)
            print(answer.stdout, flush=True)
            self.assertEqual(answer.returncode, 0, f"{line}\n{answer.stdout}{answer.stderr}\n{self.cluster.operator_log()}")
        time.sleep(1)
        for process in background:
            process.kill()
            process.wait()
        watched.seek(0)
        text = watched.read()
        watched.close()
        return text
