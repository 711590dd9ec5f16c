"""The operator on an API server, a test kubelet in place of nodes, and a namespace for each test."""
import atexit
import datetime
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

from api_server import GROUP, ROOT, ApiError, TestCluster, cluster, existing, new_namespace, wait_until

BASE = json.loads((ROOT / "tests/config/cases/create.json").read_text(encoding="utf-8"))["base"]
ORDER = "archipelago.training/test-kubelet"
SCHEDULER = f"archipelago-test-{os.getpid()}"   # on an existing cluster: keeps our pods from its nodes


def binary(name):
    folders = [os.environ.get("ARCHIPELAGO_BIN_DIR"), ROOT / "build/release/bin"]
    return next((pathlib.Path(f) / name for f in folders if f and (pathlib.Path(f) / name).exists()), None)


def missing():
    """Why these tests can't run here; empty when they can."""
    absent = [name for name in ("archipelago-operator", "archipelago-test-kubelet") if not binary(name)]
    return TestCluster.missing() or (f"not built: {', '.join(absent)}" if absent else "")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Process:
    """A program with its output in a file; ended when the test ends."""

    def __init__(self, arguments, log):
        self.log = pathlib.Path(log)
        with open(log, "ab") as out:
            self.process = subprocess.Popen([str(a) for a in arguments], stdout=out, stderr=subprocess.STDOUT)

    def signal(self, number):
        self.process.send_signal(number)

    def running(self):
        return self.process.poll() is None

    def kill(self):
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        return self.process.wait()

    def stop(self, seconds=15):
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def memory_peak_mb(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmHWM:\s+(\d+)", text).group(1)) / 1024

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TestKubelet(Process):
    __test__ = False

    def __init__(self, kubeconfig, folder, *arguments):
        super().__init__([binary("archipelago-test-kubelet"), "--kubeconfig", kubeconfig, *arguments], f"{folder}/kubelet-{os.getpid()}-{time.monotonic_ns()}.log")
        found = wait_until("the test kubelet", lambda: re.search(r"listening on (\d+)", self.text()) or not self.running())
        if found is True:
            raise RuntimeError(self.text())
        self.port = int(found.group(1))

    def control(self, verb, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(verb, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{verb} {path}: {answer.status} {text}")
        return json.loads(text)


_kubelet = None


def kubelet():
    """One for the whole test run."""
    global _kubelet
    if _kubelet is None:
        folder = tempfile.mkdtemp(prefix="archipelago-kubelet-")
        _kubelet = TestKubelet(cluster().kubeconfig, folder, *(["--scheduler", SCHEDULER] if existing() else []))
        atexit.register(_kubelet.stop)
    return _kubelet


class Operator(Process):
    def __init__(self, kubeconfig, folder, *arguments, name="operator", outer=None, poll=1):
        self.port = free_port()
        command = [binary("archipelago-operator"), "--kubeconfig", kubeconfig, "--listen", f"127.0.0.1:{self.port}", "--log-level", "debug", "--poll-interval", str(poll),
                   "--learner-image", "learner:test", "--outer-optimizer-image", "outer:test",
                   "--outer-optimizer-address", f"127.0.0.1:{outer or kubelet().port}", *arguments]
        super().__init__(command, f"{folder}/{name}.log")

    def http(self, path):
        """(code, text); (0, "") when nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ready(self):
        return self.http("/readyz")[0] == 200

    def metric(self, name, **labels):
        """Sum over the samples of that name that have these labels."""
        total = 0.0
        for line in self.http("/metrics")[1].splitlines():
            match = re.match(r"([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$", line)
            if match and match.group(1) == name and all(f'{k}="{v}"' in (match.group(2) or "") for k, v in labels.items()):
                total += float(match.group(3))
        return total


def now_text():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def place(spec):
    """On an existing cluster the parts that make pods name our scheduler."""
    if existing():
        for part in spec.get("datacenters", []) + ([spec["outerOptimizer"]] if "outerOptimizer" in spec else []):
            part.setdefault("template", {})["schedulerName"] = SCHEDULER
    return spec


@unittest.skipIf(missing(), missing())
class Scene(unittest.TestCase):
    """A namespace, and helpers that say what a test means. Starts no operator by itself."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster()
        cls.api = cls.cluster.api

    def setUp(self):
        kubelet()
        self.namespace = new_namespace(self.api)
        self.folder = tempfile.mkdtemp(prefix="archipelago-api-")
        self.core = f"/api/v1/namespaces/{self.namespace}"
        self.runs = f"{GROUP}/namespaces/{self.namespace}/decoupledtrainings"
        self.operators = []
        self.addCleanup(self.clean_up)

    def clean_up(self):
        failed = any(error for _, error in getattr(self._outcome, "errors", []) if error) or \
            any(case is self for case, _ in getattr(getattr(self._outcome, "result", None), "failures", []) +
                getattr(getattr(self._outcome, "result", None), "errors", []))
        for operator in self.operators:
            operator.stop()
        if failed:
            print(f"--- logs of {self.id()}: {self.folder}")
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    def start_operator(self, *arguments, kubeconfig=None, name=None, ready=True, everywhere=False):
        scope = [] if everywhere else ["--namespace", self.namespace]
        operator = Operator(kubeconfig or self.cluster.kubeconfig, self.folder, *scope, *arguments, name=name or f"operator-{len(self.operators)}")
        self.operators.append(operator)
        if ready:
            wait_until("the operator to be ready", lambda: operator.ready() or not operator.running())
            self.assertTrue(operator.running(), operator.text()[-2000:])
        return operator

    # --- runs

    def document(self, name="islands", units=(2, 2), **spec):
        out = json.loads(json.dumps(BASE))
        out["metadata"]["name"] = name
        out["spec"]["datacenters"] = [{"name": f"dc{i}", "learnerUnits": n} for i, n in enumerate(units)]
        for key, value in spec.items():
            out["spec"].setdefault(key, {})
            if isinstance(value, dict):
                out["spec"][key].update(value)
            else:
                out["spec"][key] = value
        out["spec"].setdefault("outerOptimizer", {})
        place(out["spec"])
        return out

    def create(self, name="islands", units=(2, 2), **spec):
        return self.api.post(self.runs, self.document(name, units, **spec))

    def change(self, spec, name="islands"):
        return self.api.merge(f"{self.runs}/{name}", {"spec": place(spec)})

    def run_of(self, name="islands"):
        return self.api.get(f"{self.runs}/{name}")

    def status(self, name="islands"):
        return self.run_of(name).get("status", {})

    def unit(self, unit, name="islands"):
        return next((u for u in self.status(name).get("units", []) if u["name"] == unit), {})

    def condition(self, kind, name="islands"):
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def wait_condition(self, kind, status="True", name="islands", seconds=30):
        return wait_until(f"{kind}={status}", lambda: (c := self.condition(kind, name)).get("status") == status and c, seconds)

    def wait_phase(self, phase, name="islands", seconds=40):
        return wait_until(f"phase {phase}", lambda: self.status(name).get("phase") == phase and self.run_of(name), seconds)

    def wait_running(self, name="islands", seconds=40):
        return self.wait_phase("Running", name, seconds)

    def script(self, name="islands", **script):
        kubelet().control("PUT", f"/control/runs/{self.namespace}/{name}", script)

    def record(self, name="islands"):
        return kubelet().control("GET", f"/control/runs/{self.namespace}/{name}")

    # --- children

    def pods(self, name="islands", role=None, alive=True):
        selector = f"archipelago.training/run={name}" + (f",archipelago.training/role={role}" if role else "")
        found = self.api.items(f"{self.core}/pods?labelSelector={selector}")
        if alive:
            found = [p for p in found if p.get("status", {}).get("phase") not in ("Failed", "Succeeded") and "deletionTimestamp" not in p["metadata"]]
        return sorted(found, key=lambda p: p["metadata"]["name"])

    def names(self, **options):
        return [p["metadata"]["name"] for p in self.pods(**options)]

    def pod(self, name):
        return self.api.find(f"{self.core}/pods/{name}")

    def wait_pod(self, name, seconds=30):
        """Running and ready."""
        def look():
            pod = self.pod(name)
            return pod and any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", [])) and pod
        return wait_until(f"pod {name} to be ready", look, seconds)

    def end_pod(self, name, code=1, reason="Error", disruption=None, message=""):
        """The pod's container ends."""
        pod = self.pod(name)
        ended = {"name": pod["spec"]["containers"][0]["name"], "image": "", "imageID": "", "ready": False, "restartCount": 0,
                 "state": {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": now_text()}}}
        conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": now_text()}]
        if disruption:
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disruption, "message": "by a test", "lastTransitionTime": now_text()})
        self.api.merge(f"{self.core}/pods/{name}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {
            "phase": "Failed" if code else "Succeeded", "conditions": conditions, "containerStatuses": [ended]}})

    def events(self, reason):
        return [e for e in self.api.items(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events") if e.get("reason") == reason]

    def uids(self, kinds=("services", "configmaps", "persistentvolumeclaims")):
        return {(kind, o["metadata"]["name"]): o["metadata"]["uid"] for kind in kinds for o in self.api.items(f"{self.core}/{kind}")
                if o["metadata"]["name"] != "kube-root-ca.crt"}
