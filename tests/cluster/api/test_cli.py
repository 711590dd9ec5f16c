"""The command line against a cluster: what people see, and what they do to a run."""
import os
import pathlib
import subprocess

from api_server import wait_until
from scene import Scene, binary


class CommandLine(Scene):
    def setUp(self):
        super().setUp()
        if not binary("archipelago"):
            self.skipTest("not built: archipelago")
        self.operator = self.start_operator()

    def archipelago(self, *arguments, program="archipelago", code=0):
        answer = subprocess.run([binary(program), *arguments, "-n", self.namespace], text=True, capture_output=True, timeout=60,
                                env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)})
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        return answer.stdout + answer.stderr

    def test_status_of_one_and_of_all(self):
        self.assertIn("no runs", self.archipelago("status"))
        self.create()
        self.wait_running()
        table = self.archipelago("status")
        self.assertIn("LEARNERS", table)
        self.assertRegex(table, r"islands +Running")
        self.assertNotIn("NAMESPACE", table)
        self.assertIn(self.namespace, self.archipelago("status", "-A"))
        text = self.archipelago("status", "islands")
        for unit in ("dc0-0", "dc0-1", "dc1-0", "dc1-1", "QuorumAvailable"):
            self.assertIn(unit, text)
        self.assertIn('"kind": "DecoupledTraining"', self.archipelago("status", "islands", "--json"))
        self.assertEqual(self.archipelago("status", "islands", program="kubectl-archipelago").splitlines()[2:6], text.splitlines()[2:6])
        self.assertIn("there are: islands", self.archipelago("status", "absent", code=2))

    def test_suspend_and_resume(self):
        self.create()
        self.wait_running()
        self.assertIn("suspended", self.archipelago("suspend", "islands"))
        wait_until("no pods", lambda: not self.names())
        self.assertIn("already", self.archipelago("suspend", "islands"))
        self.archipelago("resume", "islands")
        self.wait_running()

    def test_restart_and_kill_are_not_charged(self):
        self.create()
        self.wait_running()
        self.archipelago("restart", "islands", "dc0-0")
        self.wait_pod("islands-dc0-0-i2")
        self.archipelago("kill", "islands", "dc1-0")
        self.wait_pod("islands-dc1-0-i2")
        self.archipelago("restart", "islands", "outer")
        self.wait_pod("islands-outer-i2")
        self.assertEqual([self.unit(u)["charged"] for u in ("dc0-0", "dc1-0")], [0, 0])
        self.assertIn("dc0-0, dc0-1, dc1-0, dc1-1, outer", self.archipelago("kill", "islands", "nobody", code=2))

    def test_a_cluster_that_is_not_there(self):
        folder = pathlib.Path(self.folder)
        config = folder / "nowhere"
        config.write_text("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
                          "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n", encoding="utf-8")
        self.assertIn("127.0.0.1:1", self.archipelago("status", "--kubeconfig", str(config), code=1))
        self.assertIn("absent", self.archipelago("status", "--kubeconfig", str(folder / "absent"), code=2))
