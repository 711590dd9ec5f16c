#!/usr/bin/env python3
"""How the operator does with many runs: etcd and an API server alone, a test kubelet for the nodes, one stub for the outer
optimizers. Beside it, in the same run, two floors made by a bare loop: the same objects, and as many plain pods.

    bench/kube_scale.py [--runs 1000] [--build build/release] [--only operator|objects|pods|floors|steady] [--out FILE.json]

Wants an idle machine: the API server takes most of it. Every phase has a cluster of its own, so that none pays for another's
objects."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/cluster/api"))

NAMESPACE = "scale"
UNITS = 4
CHILDREN = ("services", "persistentvolumeclaims", "configmaps", "secrets", "pods")


def log(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Stage:
    """A fresh cluster with a namespace and a test kubelet."""

    def __init__(self, arguments, folder):
        from api_server import CLUSTER, CRD, GROUP, Api, kubectl_path, wait_until
        from scene import TestKubelet
        self.arguments, self.folder, self.script = arguments, folder, CLUSTER
        self.wait_until = wait_until
        subprocess.run([self.script, "down", arguments.cluster], check=False, capture_output=True)
        done = subprocess.run([self.script, "up", arguments.cluster, "control"], check=True, capture_output=True, text=True)
        self.kubeconfig = done.stdout.strip().splitlines()[-1]
        subprocess.run([kubectl_path(), "--kubeconfig", self.kubeconfig, "apply", "-f", str(CRD)], check=True, capture_output=True)
        self.api = Api(self.kubeconfig)
        wait_until("the CRD", lambda: self.api.find(GROUP))
        self.core = f"/api/v1/namespaces/{NAMESPACE}"
        self.runs = f"{GROUP}/namespaces/{NAMESPACE}/decoupledtrainings"
        self.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.api.post(f"{self.core}/serviceaccounts", {"metadata": {"name": "default"}})
        self.kubelet = TestKubelet(self.kubeconfig, folder, "--workers", str(arguments.kubelet_workers))
        self.operator = None

    def close(self):
        for process in (self.operator, self.kubelet):
            if process:
                process.stop()
        subprocess.run([self.script, "down", self.arguments.cluster], check=False, capture_output=True)

    def create_runs(self, count):
        from scene import BASE
        document = json.loads(json.dumps(BASE))
        document["spec"]["datacenters"] = [{"name": "us-east", "learnerUnits": UNITS // 2}, {"name": "eu-west", "learnerUnits": UNITS - UNITS // 2}]
        del document["spec"]["data"]["validation"]

        def create(numbers):
            api = self.api.clone()
            for number in numbers:
                document_of = json.loads(json.dumps(document))
                document_of["metadata"]["name"] = f"run-{number:04d}"
                api.post(self.runs, document_of)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(create, [range(i, count, 4) for i in range(4)]))

    def start_operator(self, *flags):
        from scene import Operator
        self.operator = Operator(self.kubeconfig, self.folder, "--namespace", NAMESPACE, *flags, outer=self.kubelet.port, poll=10)
        return self.operator

    def started(self):
        return self.kubelet.control("GET", "/control/figures")["started"]


def operator_writes(stage):
    """What the operator wrote so far, by the API server's own count: {"POST pods": n}. The test kubelet writes only bindings,
    pods' and claims' status and nodes, so what is left is the operator's."""
    found = {}
    connection = stage.api.connect()
    connection.request("GET", "/metrics", None, stage.api.headers())
    for line in connection.getresponse().read().decode().splitlines():
        if not line.startswith("apiserver_request_total{"):
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        name = labels["resource"] + ("/" + labels["subresource"] if labels["subresource"] else "")
        ours = name in ("pods", "services", "persistentvolumeclaims", "configmaps", "secrets", "events", "decoupledtrainings/status")
        if ours and labels["verb"] in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
            key = f"{labels['verb']} {name}" + ("" if labels["code"].startswith("2") else " " + labels["code"])
            found[key] = found.get(key, 0) + float(line.rsplit(" ", 1)[1])
    connection.close()
    return found


def without_events(counts):
    return sum(n for key, n in counts.items() if " events" not in key)


class PhaseWatch(threading.Thread):
    """When each run was first seen Running, by a watch of its own."""

    def __init__(self, stage, version):
        super().__init__(daemon=True)
        self.stage, self.version, self.first, self.stopped = stage, version, {}, False
        self.connection = None
        self.start()

    def run(self):
        while not self.stopped:
            try:
                self.connection = self.stage.api.connect(timeout=300)
                self.connection.request("GET", f"{self.stage.runs}?watch=1&allowWatchBookmarks=true&resourceVersion={self.version}", None, self.stage.api.headers())
                reply = self.connection.getresponse()
                while line := reply.readline():
                    self.take(json.loads(line))
            except OSError:
                pass

    def take(self, event):
        thing = event["object"]
        self.version = thing["metadata"]["resourceVersion"]
        if thing.get("status", {}).get("phase") == "Running":
            self.first.setdefault(thing["metadata"]["name"], time.monotonic())


def operator_phase(arguments, folder):
    stage = Stage(arguments, folder)
    try:
        log(f"{arguments.runs} runs are created")
        stage.create_runs(arguments.runs)
        watch = PhaseWatch(stage, stage.api.get(stage.runs + "?limit=1")["metadata"]["resourceVersion"])
        time.sleep(2)
        log("the operator starts")
        begin = time.monotonic()
        operator = stage.start_operator("--api-qps", "1000", "--api-burst", "1000", "--workers", str(arguments.workers))
        wanted = arguments.runs * (UNITS + 1)
        limit = begin + 60 + arguments.runs * 1.0
        while time.monotonic() < limit and operator.running() and (len(watch.first) < arguments.runs or stage.started() < wanted):
            time.sleep(0.1)
        end = max(watch.first.values(), default=0)
        took = time.monotonic() - begin
        if len(watch.first) < arguments.runs:
            raise RuntimeError(f"{len(watch.first)} of {arguments.runs} runs came up in {took:.0f} s; {operator.text()[-1500:]}")
        times = sorted(t - begin for t in watch.first.values())
        counts = operator_writes(stage)
        result = {"runs": arguments.runs, "pods": wanted, "seconds": max(end - begin, took), "half_after": times[len(times) // 2],
                  "share_of_time_at_half": times[len(times) // 2] / times[-1], "writes_per_run": without_events(counts) / arguments.runs,
                  "events_per_run": (sum(counts.values()) - without_events(counts)) / arguments.runs, "writes": counts,
                  "memory_peak_mb": operator.memory_peak_mb(), "cpu_seconds": operator.cpu_seconds()}
        watch.stopped = True
        templates = take_templates(stage)
        result["replacement"] = replacements(stage, min(100, arguments.runs))
        return result, templates
    finally:
        stage.close()


def take_templates(stage):
    """What the operator made for one run, as templates for the floor."""
    run = stage.api.get(f"{stage.runs}/run-0000")
    out = []
    for kind in CHILDREN:
        for item in stage.api.items(f"{stage.core}/{kind}?labelSelector=archipelago.training/run=run-0000"):
            meta = item["metadata"]
            item.pop("status", None)
            item["metadata"] = {k: meta[k] for k in ("name", "namespace", "labels", "annotations", "ownerReferences") if k in meta}
            spec = item.get("spec", {})
            for given in ("nodeName", "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "volumeName"):
                spec.pop(given, None)
            if kind == "pods":   # what admission added
                spec.pop("serviceAccount", None)
            out.append({"method": "POST", "path": f"{stage.core}/{kind}", "body": item})
    status = run["status"]
    out.append({"method": "PATCH", "path": f"{stage.runs}/@RUN@/status", "body": {"status": status}})
    text = json.dumps(out).replace(run["metadata"]["uid"], "@UID@").replace("run-0000", "@RUN@")
    # A claim's name ends in digits of the uid: any that are unique will do.
    text = text.replace("@RUN@-outer-" + run["metadata"]["uid"].replace("-", "")[:8], "@RUN@-outer-0a0b0c0d")
    return json.loads(text)


def plain_pods(stage):
    """As small as a pod can be."""
    return [{"method": "POST", "path": f"{stage.core}/pods", "body": {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"@RUN@-plain-{number}"},
        "spec": {"containers": [{"name": "main", "image": "plain:1"}]}}} for number in range(UNITS + 1)]


def floor_phase(arguments, folder, templates, what):
    stage = Stage(arguments, folder)
    try:
        stage.create_runs(arguments.runs)
        chosen = templates or plain_pods(stage)
        path = pathlib.Path(folder) / f"templates-{what}.json"
        path.write_text(json.dumps(chosen), encoding="utf-8")
        time.sleep(2)
        log(f"floor of {what}: {arguments.runs} x {len(chosen)} calls")
        begin = time.monotonic()
        floor = subprocess.run([pathlib.Path(arguments.build) / "bin/kube_scale_floor", "--kubeconfig", stage.kubeconfig, "--templates", path,
                                "--namespace", NAMESPACE, "--connections", str(arguments.connections)], check=True, capture_output=True, text=True)
        wanted = arguments.runs * (UNITS + 1)
        stage.wait_until("all pods", lambda: stage.started() >= wanted, 600)
        return {"seconds": time.monotonic() - begin, "created_after": json.loads(floor.stdout)["seconds"], "calls_per_run": len(chosen)}
    finally:
        stage.close()


class PodWatch(threading.Thread):
    """When each pod was first seen."""

    def __init__(self, stage):
        super().__init__(daemon=True)
        self.stage, self.seen = stage, {}
        self.version = stage.api.get(f"{stage.core}/pods?limit=1")["metadata"]["resourceVersion"]
        self.start()

    def run(self):
        connection = self.stage.api.connect(timeout=600)
        connection.request("GET", f"{self.stage.core}/pods?watch=1&resourceVersion={self.version}", None, self.stage.api.headers())
        reply = connection.getresponse()
        while line := reply.readline():
            event = json.loads(line)
            if event["type"] == "ADDED":
                self.seen.setdefault(event["object"]["metadata"]["name"], time.monotonic())


def replacements(stage, count, pause=0.1):
    """Milliseconds from a pod's failure, as the API server takes it, to its first replacement. Beside it what one bare write takes
    meanwhile: a replacement is three of them, one after the other."""
    time.sleep(5)   # what came up last has settled
    watch = PodWatch(stage)
    time.sleep(0.5)
    failed, written = {}, []
    for number in range(count):
        name = f"run-{number:04d}-us-east-0-i1"
        ended = {"name": "learner", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
        failed[name] = time.monotonic()
        stage.api.merge(f"{stage.core}/pods/{name}/status", {"status": {"phase": "Failed", "containerStatuses": [ended]}})
        written.append((time.monotonic() - failed[name]) * 1000)
        time.sleep(pause)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(name[:-1] + "2" not in watch.seen for name in failed):
        time.sleep(0.1)
    took = sorted((watch.seen[name[:-1] + "2"] - at) * 1000 for name, at in failed.items() if name[:-1] + "2" in watch.seen)
    return {"pods": count, "replaced": len(took), "median_ms": statistics.median(took) if took else None,
            "p99_ms": took[min(len(took) - 1, int(len(took) * 0.99))] if took else None, "worst_ms": took[-1] if took else None,
            "bare_write_median_ms": statistics.median(written), "bare_write_worst_ms": max(written)}


def steady_phase(arguments, folder, runs, seconds):
    """All runs step; the default rate. What does the operator do then?"""
    stage = Stage(arguments, folder)
    try:
        stage.create_runs(runs)
        operator = stage.start_operator()
        log(f"{runs} runs come up at the default rate")
        stage.wait_until("all pods", lambda: stage.started() >= runs * (UNITS + 1), 120 + runs * 2)
        stage.wait_until("all Running", lambda: operator.metric("archipelago_operator_runs", phase="Running") >= runs, 300, 1)
        time.sleep(30)

        before, cpu, begin = without_events(operator_writes(stage)), operator.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begin
        result = {"runs": runs, "seconds": took, "writes_per_run_and_10s": (without_events(operator_writes(stage)) - before) / runs / (took / 10),
                  "cpu_percent_of_a_core": (operator.cpu_seconds() - cpu) / took * 100, "memory_mb": operator.memory_peak_mb()}
        result["replacement"] = replacements(stage, min(20, runs), 0.5)
        return result
    finally:
        stage.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--cluster", default="c", help="name of the cluster that is used")
    parser.add_argument("--workers", type=int, default=8, help="of the operator")
    parser.add_argument("--kubelet-workers", type=int, default=6)
    parser.add_argument("--connections", type=int, default=8, help="of the floors' loop")
    parser.add_argument("--steady-seconds", type=int, default=300)
    parser.add_argument("--only", choices=["operator", "objects", "pods", "floors", "steady"],
                        help="floors: the operator and both floors, without the steady state")
    parser.add_argument("--out", help="the figures as JSON")
    arguments = parser.parse_args()
    os.environ.setdefault("ARCHIPELAGO_BIN_DIR", str(pathlib.Path(arguments.build) / "bin"))
    from api_server import TestCluster
    absent = [name for name in ("archipelago-operator", "archipelago-test-kubelet", "kube_scale_floor")
              if not (pathlib.Path(arguments.build) / "bin" / name).exists() and not (arguments.only == "pods" and name == "archipelago-operator")]
    if TestCluster.missing() or absent:
        sys.exit("kube_scale: " + (TestCluster.missing() or f"not built in {arguments.build}: {', '.join(absent)}"))
    folder = tempfile.mkdtemp(prefix="archipelago-scale-")
    figures = {}
    if arguments.only in (None, "operator", "objects", "floors"):
        figures["operator"], templates = operator_phase(arguments, folder)
        print(json.dumps(figures["operator"], indent=1), flush=True)
    if arguments.only in (None, "objects", "floors"):
        figures["objects"] = floor_phase(arguments, folder, templates, "objects")
    if arguments.only in (None, "pods", "floors"):
        figures["pods"] = floor_phase(arguments, folder, None, "pods")
    for what in ("objects", "pods"):
        if what in figures and "operator" in figures:
            figures["operator"]["times_floor_of_" + what] = figures["operator"]["seconds"] / figures[what]["seconds"]
    if arguments.only in (None, "steady"):
        figures["steady_small"] = steady_phase(arguments, folder, min(100, arguments.runs), arguments.steady_seconds)
        figures["steady_all"] = steady_phase(arguments, folder, arguments.runs, min(60, arguments.steady_seconds))
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
