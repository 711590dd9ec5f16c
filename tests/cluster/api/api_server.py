"""A Kubernetes API server as seen by these tests: JSON in, JSON out, every refusal an ApiError."""
import http.client
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import tempfile
import time
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


class Api:
    """One connection, kept alive; reconnects by itself. Not for several threads: call clone()."""

    def __init__(self, kubeconfig):
        self.kubeconfig = str(kubeconfig)
        view = json.loads(subprocess.run([kubectl_path(), "config", "view", "--raw", "--minify", "-o", "json", "--kubeconfig", self.kubeconfig],
                                         check=True, capture_output=True, text=True, timeout=30).stdout)
        cluster = view["clusters"][0]["cluster"]
        self.token = (view["users"][0]["user"] or {}).get("token", "")
        self.server = urllib.parse.urlsplit(cluster["server"])
        self.authority = cluster.get("certificate-authority")
        self.connection = None

    def clone(self):
        other = object.__new__(Api)
        other.__dict__.update(self.__dict__, connection=None)
        return other

    def connect(self, timeout=30):
        if self.server.scheme == "http":
            return http.client.HTTPConnection(self.server.hostname, self.server.port, timeout=timeout)
        context = ssl.create_default_context(cafile=self.authority)
        return http.client.HTTPSConnection(self.server.hostname, self.server.port, timeout=timeout, context=context)

    def headers(self, content="application/json"):
        return {"Authorization": "Bearer " + self.token, "Content-Type": content, "Accept": "application/json"}

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


class TestCluster:
    """etcd, API server and the controllers; started when no kubeconfig is given, and then taken down."""

    def __init__(self):
        self.name = os.environ.get("ARCHIPELAGO_TEST_CLUSTER", "c")
        given = os.environ.get("ARCHIPELAGO_TEST_KUBECONFIG")
        self.own = not given
        self.kubeconfig = given or self.run("up", self.name, "control", "controllers")
        self.kubectl("apply", "-f", str(CRD))
        self.api = Api(self.kubeconfig)
        wait_until("the CRD to be served", lambda: self.api.find(GROUP))

    @staticmethod
    def missing():
        """Why no cluster can be started here; empty when one can."""
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
        import atexit
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
