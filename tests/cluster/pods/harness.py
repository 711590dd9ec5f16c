"""A cluster with the operator in it, and a run on it, as the tests see them: through kubectl, and straight to the pods.

The cluster is made by tests/cluster/cluster (two nodes, two datacenters). Its name is ARCHIPELAGO_TEST_CLUSTER_NAME
(default d).
"""
import ctypes
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/kubernetes-quickstart.yaml"
BIN = pathlib.Path(os.environ.get("ARCHIPELAGO_BIN_DIR", ROOT / "build/release/bin"))
CACHE = pathlib.Path(os.environ.get("ARCHIPELAGO_CLUSTER_CACHE", pathlib.Path.home() / ".cache/archipelago-cluster"))
TOOL = ROOT / "tests/cluster/cluster"
SYSTEM = "archipelago-system"
ADMIN_PORT, EXCHANGE_PORT = 8471, 8470
PATIENCE = 180  # seconds that anything may take on a busy machine; never a measure of speed
CLONE_NEWNET = 0x40000000

# A model so small that the nodes' two cores carry many islands; learners may lead by much, so that an outer optimizer's
# restart stops nobody; faults are answered within seconds.
SMALL = {
    "model": {"hiddenSize": 32, "layers": 2, "heads": 2, "kvHeads": 1, "intermediateSize": 64, "contextLength": 64},
    "inner": {"batchSize": 4, "warmupSteps": 10},
    "sync": {"fragments": 12, "interval": 12, "maxLead": 500},
    "outerOptimizer": {"finishedLingerSeconds": 600, "checkpoint": {"everySteps": 50, "keep": 2},
                       "template": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}}},
    "restart": {"backoffLimit": 10, "backoffSeconds": 1, "maxBackoffSeconds": 5, "resetSeconds": 15, "nodeLostSeconds": 15,
                "stallSeconds": 20},
}


def datacenter(name, units, **more):
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "512Mi"}}
    return {"name": name, "learnerUnits": units, "template": {"resources": resources}, **more}


def merged(base, patch):
    """JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(base, dict):
        return patch
    out = dict(base)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


def missing():
    """Why these tests can't run here; None where they can."""
    if os.geteuid() != 0:
        return "clusters on this machine need root (network namespaces)"
    for program in ("kubectl", "kube-apiserver", "kubelet", "etcd"):
        if not (CACHE / "bin" / program).exists():
            return f"no {program} in {CACHE}/bin: ./dev cluster build"
    for program in ("containerd", "runc", "nft"):
        if not shutil.which(program):
            return f"no {program}: ./dev cluster build installs it"
    for program in ("archipelago-operator", "archipelago-outer-optimizer", "archipelago-learner", "archipelago"):
        if not (BIN / program).exists():
            return f"no {BIN / program}: ./dev build"
    return None


class Cluster:
    def __init__(self, name=None):
        self.name = name or os.environ.get("ARCHIPELAGO_TEST_CLUSTER_NAME", "d")
        self.kubeconfig = None

    def tool(self, *args, timeout=300, check=True):
        answer = subprocess.run([TOOL, *map(str, args)], capture_output=True, text=True, timeout=timeout, check=False)
        if check and answer.returncode != 0:
            raise AssertionError(f"cluster {' '.join(map(str, args))}: {answer.stderr[-2000:]}")
        return answer.stdout

    def up(self):
        self.tool("down", self.name)
        self.kubeconfig = self.tool("up", self.name, "--nodes", 2).strip().splitlines()[-1]
        subprocess.run([ROOT / "tests/cluster/images", "--bin", BIN, "--cluster", self.name], check=True, timeout=600,
                       stdout=subprocess.DEVNULL)

    def adopt(self):
        """One that is up already."""
        self.kubeconfig = self.tool("kubeconfig", self.name).strip()

    def down(self):
        self.tool("down", self.name)

    def environment(self):
        return dict(os.environ, KUBECONFIG=self.kubeconfig, PATH=f"{BIN}:{CACHE / 'bin'}:{os.environ['PATH']}")

    def kubectl(self, *args, data=None, check=True, timeout=120):
        answer = subprocess.run(["kubectl", *map(str, args)], input=data, capture_output=True, text=True, timeout=timeout, check=False,
                                env=self.environment())
        if check and answer.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(map(str, args))}: {answer.stderr[-2000:]}")
        return answer.stdout

    def json(self, *args, check=True):
        text = self.kubectl(*args, "-o", "json", check=check)
        return json.loads(text) if text.strip() else None

    def install_operator(self):
        self.kubectl("apply", "-f", ROOT / "crds", "-f", ROOT / "deploy/operator.yaml")
        self.kubectl("-n", SYSTEM, "rollout", "status", "deployment/archipelago-operator", "--timeout=120s", timeout=150)

    def namespace(self, name, **labels):
        labels = {"pod-security.kubernetes.io/enforce": "restricted", **labels}
        self.kubectl("apply", "-f", "-", data=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}))

    def node_number(self, node):
        return 1 if node == f"node-{self.name}" else 2

    def task_pid(self, pod):
        """The pid, on this machine, of a pod's program."""
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        table = self.tool("ctr", self.name, self.node_number(pod["spec"]["nodeName"]), "task", "ls")
        for line in table.splitlines():
            words = line.split()
            if words[0] == container and words[2] == "RUNNING":
                return int(words[1])
        raise AssertionError(f"no running task of {pod['metadata']['name']}:\n{table}")

    def signal(self, pod, number):
        os.kill(self.task_pid(pod), number)

    def operator_pod(self):
        pods = self.json("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=operator")["items"]
        return next(p for p in pods if not p["metadata"].get("deletionTimestamp"))

    def operator_log(self, lines=30):
        return self.kubectl("-n", SYSTEM, "logs", "deployment/archipelago-operator", f"--tail={lines}", check=False)


def role(pod):
    return pod["metadata"]["labels"].get("archipelago.training/role")


def unit_of(pod):
    return pod["metadata"]["labels"].get("archipelago.training/unit")


def incarnation_of(pod):
    return int(pod["metadata"]["labels"]["archipelago.training/incarnation"])


def is_running(pod):
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


class Run:
    """A DecoupledTraining in a namespace of its own, also of its own invocation: a kept cluster may hold older claims."""

    def __init__(self, cluster, namespace, name="run"):
        self.cluster, self.namespace, self.name = cluster, f"{namespace}-{os.getpid()}", name

    def kubectl(self, *args, **more):
        return self.cluster.kubectl("-n", self.namespace, *args, **more)

    def apply(self, *patches):
        """The quickstart's document with SMALL and the patches of its spec over it."""
        text = self.cluster.kubectl("patch", "--local", "-f", EXAMPLE, "--type=merge", "-p", "{}", "-o", "json")
        document = json.loads(text)
        document["metadata"] = {"name": self.name, "namespace": self.namespace}
        document["spec"] = merged(document["spec"], SMALL)
        for patch in patches:
            document["spec"] = merged(document["spec"], patch)
        self.cluster.namespace(self.namespace)
        self.kubectl("apply", "-f", "-", data=json.dumps(document))

    def patch(self, spec):
        self.kubectl("patch", "dt", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def resource(self):
        return self.cluster.json("-n", self.namespace, "get", "dt", self.name)

    def status(self):
        return self.resource().get("status") or {}

    def units(self):
        return {unit["name"]: unit for unit in self.status().get("units") or []}

    def unit(self, name):
        return self.units().get(name) or {}

    def condition(self, kind):
        return next((c for c in self.status().get("conditions") or [] if c["type"] == kind), {})

    def pods(self):
        return self.cluster.json("-n", self.namespace, "get", "pods", "-l", f"archipelago.training/run={self.name}")["items"]

    def pod(self, unit):
        """The newest pod of a unit, or of the outer optimizer ("outer"); None if there is none."""
        pods = [p for p in self.pods() if (unit_of(p) or "outer") == unit]
        return max(pods, key=incarnation_of, default=None)

    def wait(self, what, predicate, patience=PATIENCE):
        """Polls until predicate() is true; returns what it gave."""
        deadline, error = time.monotonic() + patience, ""
        while time.monotonic() < deadline:
            try:
                answer = predicate()
                if answer:
                    return answer
                error = ""
            except AssertionError as problem:  # the API server may be away for a moment
                error = str(problem)
            time.sleep(0.5)
        raise AssertionError(f"{what}: not within {patience} s {error}\n{self.picture()}")

    def picture(self):
        status = self.kubectl("get", "dt", self.name, "-o", "yaml", check=False)
        pods = self.kubectl("get", "pods", "-o", "wide", check=False)
        return f"{status[-6000:]}\n{pods}\n{self.cluster.operator_log()}"

    def wait_stepping(self, units, patience=PATIENCE):
        """All of these step, in the incarnation that status names, on pods that are there."""
        def stepping():
            now = self.units()
            return all(now.get(u, {}).get("phase") == "Stepping" for u in units) and now
        return self.wait(f"{', '.join(units)} stepping", stepping, patience)

    def global_step(self):
        return self.status().get("globalStep", 0)

    def wait_step(self, step, patience=PATIENCE):
        self.wait(f"global step {step}", lambda: self.global_step() >= step, patience)

    def logs(self, pod):
        return self.kubectl("logs", pod, check=False)

    def delete(self):
        self.kubectl("delete", "dt", self.name, "--wait=false")
        self.wait("no pods", lambda: not self.pods())


class StepWatch:
    """Reads the step counters of pods once a second, straight at the pods: the API server isn't asked, it may be down."""

    def __init__(self, run, units):
        self.addresses = {}
        for unit in units:
            pod = run.pod(unit)
            self.addresses[unit] = pod["status"]["podIP"]
        self.network = f"/run/netns/arch-{run.cluster.name}"
        self.samples = {unit: [] for unit in units}  # (time, step)
        self.incarnations = {unit: set() for unit in units}
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()

    def read(self, address):
        connection = http.client.HTTPConnection(address, ADMIN_PORT, timeout=3)
        try:
            connection.request("GET", "/statusz")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def sample(self):
        with open(self.network, "rb") as network:  # this thread alone moves into the node's network
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        while not self.stopped.wait(1):
            for unit, address in self.addresses.items():
                try:
                    document = self.read(address)
                except (OSError, ValueError, http.client.HTTPException):
                    continue
                self.samples[unit].append((time.monotonic(), document["localStep"]))
                self.incarnations[unit].add(document["incarnation"])

    def latest(self, unit):
        return self.samples[unit][-1][1] if self.samples[unit] else 0

    def longest_pause(self, unit):
        """Seconds without a new step."""
        longest, last_time, last_step = 0.0, None, None
        for when, step in self.samples[unit]:
            if step != last_step:
                last_time, last_step = when, step
            longest = max(longest, when - last_time)
        return longest

    def check(self, test, pause=30):
        """Every watched unit stepped all the time, in one incarnation. `pause` is what a busy machine may cost."""
        for unit, samples in self.samples.items():
            test.assertGreater(len(samples), 2, f"{unit} was hardly readable")
            test.assertGreater(samples[-1][1], samples[0][1], f"{unit} took no step")
            test.assertLess(self.longest_pause(unit), pause, f"{unit} stood still")
            test.assertEqual(len(self.incarnations[unit]), 1, f"{unit} was restarted")


SIGKILL, SIGSTOP = signal.SIGKILL, signal.SIGSTOP
