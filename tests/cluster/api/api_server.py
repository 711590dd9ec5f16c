"""A Kubernetes API server as seen by these tests: JSON in, JSON out, every refusal an ApiError."""
import atexit
import base64
import http.client
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[3]
GROUP = "/apis/archipelago.training/v1alpha1"
CRD = ROOT / "crds/decoupledtrainings.archipelago.training.yaml"
CACHE = pathlib.Path(os.environ.get("ARCHIPELAGO_CLUSTER_CACHE", pathlib.Path.home() / ".cache/archipelago-cluster"))
CLUSTER = pathlib.Path(os.environ.get("ARCHIPELAGO_CLUSTER", ROOT / "tests/cluster/cluster"))


class ApiError(Exception):
    def __init__(self, code, status):
        super().__init__(f"{code}: {status.get('message', status)}")
        self.code, self.status = code, status
        self.reason = status.get("reason", "")
        self.causes = (status.get("details") or {}).get("causes") or []


def kubectl_path():
    own = CACHE / "bin/kubectl"
    return str(own) if own.exists() else shutil.which("kubectl")


def file_of(part, name):
    """The file of a kubeconfig's "certificate-authority" and the like, or of its data; None when it has neither."""
    data = part.get(name + "-data")
    if not data:
        return part.get(name)
    handle, path = tempfile.mkstemp(prefix="archipelago-api-")
    atexit.register(os.unlink, path)
    with os.fdopen(handle, "wb") as out:
        out.write(base64.b64decode(data))
    return path


class Api:
    """One connection, kept alive; reconnects by itself. Not for several threads: call clone()."""

    def __init__(self, kubeconfig):
        self.kubeconfig = str(kubeconfig)
        view = json.loads(subprocess.run([kubectl_path(), "config", "view", "--raw", "--minify", "-o", "json", "--kubeconfig", self.kubeconfig],
                                         check=True, capture_output=True, text=True, timeout=30).stdout)
        cluster, user = view["clusters"][0]["cluster"], view["users"][0]["user"] or {}
        if "exec" in user or "auth-provider" in user:
            raise RuntimeError(f"{kubeconfig}: the user's credentials come from a program; give a token or a client certificate")
        self.token = user.get("token", "")
        if user.get("tokenFile"):
            self.token = pathlib.Path(user["tokenFile"]).read_text(encoding="ascii").strip()
        self.server = urllib.parse.urlsplit(cluster["server"])
        self.authority = file_of(cluster, "certificate-authority")
        self.certificate, self.key = file_of(user, "client-certificate"), file_of(user, "client-key")
        self.connection = None

    def clone(self):
        other = object.__new__(Api)
        other.__dict__.update(self.__dict__, connection=None)
        return other

    def connect(self, timeout=30):
        if self.server.scheme == "http":
            return http.client.HTTPConnection(self.server.hostname, self.server.port, timeout=timeout)
        context = ssl.create_default_context(cafile=self.authority)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return http.client.HTTPSConnection(self.server.hostname, self.server.port, timeout=timeout, context=context)

    def headers(self, content="application/json"):
        credentials = {"Authorization": "Bearer " + self.token} if self.token else {}
        return credentials | {"Content-Type": content, "Accept": "application/json"}

    def call(self, verb, path, body=None, content="application/json"):
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(3):
            try:
                self.connection = self.connection or self.connect()
                self.connection.request(verb, path, data, self.headers(content))
                answer = self.connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException):
                self.connection = None
                if attempt == 2:
                    raise
        document = json.loads(text) if text[:1] in (b"{", b"[") else {"message": text.decode(errors="replace")}
        if answer.status == 429 and answer.getheader("Retry-After"):
            time.sleep(1)
            return self.call(verb, path, body, content)
        if answer.status >= 300:
            raise ApiError(answer.status, document)
        return document

    def get(self, path):
        return self.call("GET", path)

    def find(self, path):
        """The object, or None."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def items(self, path):
        return self.get(path)["items"]

    def post(self, path, body):
        return self.call("POST", path, body)

    def merge(self, path, body):
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path, body=None):
        try:
            return self.call("DELETE", path, body)
        except ApiError as error:
            if error.code != 404:
                raise
            return None


def wait_until(what, condition, seconds=30.0, interval=0.1):
    """The first true value of condition(); fails naming what was awaited and the last value."""
    deadline, value = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(interval)
    raise AssertionError(f"{what}: not within {seconds} s (last: {value!r})")


NAMES = ("a", "b", "c", "d")   # of clusters that tests/cluster/cluster can start


def which_cluster():
    """ARCHIPELAGO_TEST_CLUSTER: a name from NAMES (started and taken down), or "existing": the API server of $KUBECONFIG, with nodes and
    controllers of its own, that other people may be using. ARCHIPELAGO_TEST_KUBECONFIG: an API server alone that was started for tests."""
    return os.environ.get("ARCHIPELAGO_TEST_CLUSTER", "c")


def existing():
    return which_cluster() == "existing"


def needs_the_server(why):
    """For tests that no existing cluster should have to bear."""
    return unittest.skipIf(existing(), f"on an existing cluster: {why}")


class TestCluster:
    """etcd, API server and the controllers; started when none is given, and then taken down."""

    def __init__(self):
        self.name = which_cluster()
        given = os.environ.get("KUBECONFIG") if existing() else os.environ.get("ARCHIPELAGO_TEST_KUBECONFIG")
        self.own = not given
        self.kubeconfig = given or self.run("up", self.name, "control", "controllers")
        self.install()
        self.api = Api(self.kubeconfig)
        wait_until("the CRD to be served", lambda: self.api.find(GROUP))

    def install(self):
        """The CRD; one that an existing cluster has is used as it is."""
        if not existing():
            self.kubectl("apply", "-f", str(CRD))
            return
        there = self.kubectl("get", "crd", CRD.stem, "-o", "name", "--ignore-not-found").stdout.strip()
        if not there:
            self.kubectl("apply", "-f", str(CRD))
            atexit.register(self.kubectl, "delete", "-f", str(CRD), "--ignore-not-found")
        elif self.kubectl("diff", "-f", str(CRD), check=False).returncode != 0:
            raise RuntimeError(f"the cluster's CRD is not that of {CRD}: kubectl apply -f it first, if no run there needs the other")

    @staticmethod
    def missing():
        """Why there is no cluster to test on; empty when there is."""
        if existing():
            return "" if os.environ.get("KUBECONFIG") else "ARCHIPELAGO_TEST_CLUSTER=existing wants KUBECONFIG, one file"
        if which_cluster() not in NAMES:
            return f"ARCHIPELAGO_TEST_CLUSTER: '{which_cluster()}' given, allowed: {', '.join(NAMES)}, existing"
        if os.environ.get("ARCHIPELAGO_TEST_KUBECONFIG"):
            return ""
        if os.geteuid() != 0:
            return "starting a cluster needs root (or give ARCHIPELAGO_TEST_KUBECONFIG)"
        if not CLUSTER.exists():
            return f"{CLUSTER} is missing"
        for program in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl"):
            if not (CACHE / "bin" / program).exists():
                return f"{CACHE}/bin/{program} is missing: run tests/cluster/cluster build"
        return ""

    def run(self, *arguments):
        done = subprocess.run([str(CLUSTER), *arguments], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"cluster {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""

    def kubectl(self, *arguments, text=None, check=True):
        return subprocess.run([kubectl_path(), "--kubeconfig", str(self.kubeconfig), *arguments], input=text, check=check,
                              capture_output=True, text=True, timeout=120)

    def down(self):
        if self.own:
            self.run("down", self.name)


_cluster = None


def cluster():
    """The cluster of this test run: every test gets a namespace of its own."""
    global _cluster
    if _cluster is None:
        _cluster = TestCluster()
        atexit.register(_cluster.down)
    return _cluster


_count = 0


def new_namespace(api, labels=None):
    global _count
    _count += 1
    name = f"t{os.getpid()}-{_count}"
    api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
    wait_until("the default account", lambda: api.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    return name


def scratch():
    return tempfile.mkdtemp(prefix="archipelago-api-")
