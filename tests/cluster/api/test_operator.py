"""The operator as a process: leadership, rights, the CRD that is missing or old, objects of another schema."""
import json
import re
import signal
import time
import unittest

from api_server import CRD, ROOT, ApiError, needs_the_server, wait_until
from fault_proxy import FaultProxy
from scene import BASE, Scene

CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/decoupledtrainings.archipelago.training"


class Leadership(Scene):
    def lease(self):
        return self.api.find(f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/archipelago-operator") or {}

    def holder(self):
        return self.lease().get("spec", {}).get("holderIdentity", "")

    def replica(self, name):
        proxy = FaultProxy(self.api)
        self.addCleanup(proxy.stop)
        operator = self.start_operator("--leader-elect", "--lease-namespace", self.namespace, kubeconfig=proxy.kubeconfig(self.folder, name),
                                       name=name, ready=False)
        return operator, proxy

    def test_a_stopped_leader_writes_nothing_when_it_goes_on(self):
        first, first_proxy = self.replica("first")
        wait_until("a leader", self.holder)
        held = self.holder()
        self.create()
        self.wait_running()
        second, _ = self.replica("second")
        wait_until("the second to run", second.running)
        first.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        # Work for whoever leads, and work that the first has in hand when it goes on.
        self.end_pod("islands-dc0-0-i1")
        wait_until("another leader", lambda: self.holder() not in ("", held), 60, 0.5)
        self.wait_pod("islands-dc0-0-i2", 60)
        time.sleep(max(0.0, 40 - (time.monotonic() - stopped)))
        before = len(first_proxy.writes())
        self.end_pod("islands-dc1-0-i1")
        first.signal(signal.SIGCONT)
        wait_until("the old leader to end", lambda: not first.running(), 30)
        self.assertNotEqual(first.process.returncode, 0)
        self.assertEqual(first_proxy.writes()[before:], [], "the old leader wrote")
        self.wait_pod("islands-dc1-0-i2", 60)
        self.assertEqual([self.unit("dc0-0")["restarts"], self.unit("dc1-0")["restarts"]], [1, 1])

    def test_a_leader_cut_off_ends_before_the_other_begins(self):
        first, proxy = self.replica("first")
        wait_until("a leader", self.holder)
        held = self.holder()
        second, _ = self.replica("second")
        proxy.refusing = True
        proxy.cut_all()
        ended = wait_until("the old leader to end", lambda: not first.running() and time.monotonic(), 40)
        self.assertEqual(self.holder(), held, "the other began before the old one had ended")
        wait_until("another leader", lambda: self.holder() not in ("", held), 40)
        self.assertGreater(time.monotonic(), ended)
        self.assertTrue(second.running())

    def test_a_clean_stop_hands_over_at_once(self):
        first, _ = self.replica("first")
        wait_until("a leader", self.holder)
        held = self.holder()
        self.replica("second")
        time.sleep(3)
        self.assertEqual(first.stop(), 0)
        wait_until("another leader", lambda: self.holder() not in ("", held), 8)


@needs_the_server("it makes cluster roles")
class Rights(Scene):
    """A service account with the rights of deploy/operator.yaml, or fewer."""

    def rules(self):
        text = (ROOT / "deploy/operator.yaml").read_text(encoding="utf-8")
        part = next(p for p in text.split("\n---") if re.search(r"^kind: ClusterRole$", p, re.M))
        found = re.findall(r"- apiGroups: \[(.*?)\].*\n  resources: \[(.*?)\].*\n  verbs: \[(.*?)\]", part)

        def words(listed):
            return [w.strip().strip('"') for w in listed.split(",")]
        return [{"apiGroups": words(g), "resources": words(r), "verbs": words(v)} for g, r, v in found]

    def account(self, rules):
        """A token of a new account; its role, to be changed later."""
        name = f"operator-{self.namespace}"
        self.api.post(f"{self.core}/serviceaccounts", {"metadata": {"name": "operator"}})
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        self.api.post(f"{rbac}/clusterroles", role)
        self.api.post(f"{rbac}/clusterrolebindings", {
            "metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": self.namespace}]})
        self.addCleanup(self.api.delete, f"{rbac}/clusterroles/{name}")
        self.addCleanup(self.api.delete, f"{rbac}/clusterrolebindings/{name}")
        token = self.api.post(f"{self.core}/serviceaccounts/operator/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        return token, f"{rbac}/clusterroles/{name}", role

    def start(self, token, **options):
        proxy = FaultProxy(self.api)
        self.addCleanup(proxy.stop)
        return self.start_operator(kubeconfig=proxy.kubeconfig(self.folder, token=token), **options), proxy

    def test_the_manifest_gives_what_a_life_needs(self):
        token, _, _ = self.account(self.rules())
        operator, proxy = self.start(token)
        self.create(units=(2,), ttlSecondsAfterFinished=1)
        self.wait_running()
        self.end_pod("islands-dc0-0-i1")
        self.wait_pod("islands-dc0-0-i2")
        self.change({"suspend": True})
        self.wait_phase("Suspended")
        self.change({"suspend": False, "datacenters": [{"name": "dc0", "learnerUnits": 1}]})
        self.wait_running()
        self.script(document={"phase": "finished", "globalStep": 2000})
        self.wait_phase("Succeeded")
        wait_until("no children", lambda: not self.pods(alive=False))
        self.assertEqual([r for r in proxy.requests() if r.code == 403], [])
        self.assertTrue(operator.running())

    def test_a_right_that_is_missing_is_named(self):
        rules = self.rules()
        fewer = json.loads(json.dumps(rules))
        for rule in fewer:
            if "pods" in rule["resources"]:
                rule["verbs"].remove("create")
        token, path, role = self.account(fewer)
        operator, _ = self.start(token)
        self.create(units=(1,))
        forbidden = self.wait_condition("Forbidden")
        self.assertRegex(forbidden["message"], r"create.*(pods|persistentvolumeclaims)")
        self.assertRegex(operator.text(), r"create (pods|persistentvolumeclaims)")
        role["rules"] = rules
        self.api.call("PUT", path, role)
        self.wait_running(seconds=120)
        self.wait_condition("Forbidden", "False", seconds=60)

    def test_a_watch_that_is_forbidden_is_logged(self):
        fewer = self.rules()
        for rule in fewer:
            if "nodes" in rule["resources"]:
                rule["verbs"] = []
        token, _, _ = self.account([r for r in fewer if r["verbs"]])
        operator, _ = self.start(token, ready=False)
        wait_until("the log", lambda: re.search(r"list nodes|nodes.*list", operator.text()))
        self.assertTrue(operator.running())


@needs_the_server("it removes and replaces the CRD")
class Schema(Scene):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.restore)

    def restore(self):
        self.cluster.kubectl("apply", "-f", str(CRD))
        wait_until("the CRD to be served", lambda: self.served())

    def served(self):
        return self.api.find("/apis/archipelago.training/v1alpha1") and self.api.find(self.runs)

    def test_without_the_crd_it_is_not_ready_and_says_what_to_do(self):
        self.api.delete(CRD_PATH)
        wait_until("the CRD to go", lambda: not self.api.find(CRD_PATH), 60)
        wait_until("discovery to know", lambda: not self.api.find("/apis/archipelago.training/v1alpha1"), 60)
        operator = self.start_operator(ready=False)
        code, _ = wait_until("the command that helps", lambda: (a := operator.http("/readyz")) and "kubectl apply" in a[1] and a)
        self.assertNotEqual(code, 200)
        self.assertEqual(operator.http("/healthz")[0], 200)
        self.restore()
        wait_until("ready", operator.ready, 60)
        self.create()
        self.wait_running(seconds=60)

    def loosen(self):
        crd = self.api.get(CRD_PATH)
        crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        self.api.call("PUT", CRD_PATH, crd)

    def store(self, name, spec):
        def attempt():
            try:
                return self.api.post(self.runs, {"apiVersion": "archipelago.training/v1alpha1", "kind": "DecoupledTraining",
                                                 "metadata": {"name": name}, "spec": spec})
            except ApiError:
                return None
        wait_until(f"{name} to be stored", attempt)

    def broken(self, **changes):
        spec = json.loads(json.dumps(BASE["spec"]))
        spec.update(changes)
        return spec

    def test_objects_of_another_schema_stop_nobody(self):
        self.loosen()
        huge = self.broken(budget={"globalSteps": 9223372036854775807})
        wrong = self.broken(datacenters=[{"name": "dc0", "learnerUnits": "two"}])
        rules = self.broken(sync={"quorum": 9}, restart={"backoffSeconds": 10, "maxBackoffSeconds": 5})
        for name, spec in (("huge", huge), ("wrong", wrong), ("rules", rules), ("array", []), ("nothing", None)):
            self.store(name, spec)
        self.restore()
        wait_until("the rules to be back", lambda: self.refused())
        operator = self.start_operator()
        self.create()
        self.wait_running()
        # A rule broken: all errors in the condition. Types: the server takes no status; an Event, a line, a metric.
        told = self.wait_condition("SpecValid", "False", name="rules")
        self.assertIn("spec.restart.maxBackoffSeconds", told["message"])
        self.assertIn("spec.sync.quorum", told["message"])
        for name in ("wrong", "nothing"):
            wait_until(f"an Event about {name}", lambda n=name: [e for e in self.api.items(
                f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events") if e["regarding"]["name"] == n], 60)
        self.assertTrue(operator.running())
        # Served also when they come as events of a watch, and an edit heals.
        self.api.merge(f"{self.runs}/rules", {"spec": {"sync": {"quorum": 1}, "restart": {"maxBackoffSeconds": 60}}})
        self.wait_running("rules", 60)

    def refused(self):
        try:
            self.api.post(self.runs + "?dryRun=All", {"apiVersion": "archipelago.training/v1alpha1", "kind": "DecoupledTraining",
                                                      "metadata": {"name": "probe"}, "spec": {}})
        except ApiError as error:
            return error.code == 422
        return False

    def test_status_under_an_older_schema(self):
        """A schema that lacks a status field drops it in silence: the operator says so and goes on."""
        old = self.api.get(CRD_PATH)
        status = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        del status["mergedFraction"]
        del status["units"]["items"]["properties"]["attempt"]
        self.api.call("PUT", CRD_PATH, old)
        time.sleep(3)
        operator = self.start_operator(ready=False)
        self.create()
        self.wait_running(seconds=60)
        time.sleep(3)
        # Nothing changes any more: a field that never comes back must not make it write for ever.
        self.script(stepsPerSecond=0.0)
        time.sleep(15)
        before = operator.metric("archipelago_operator_api_requests_total", verb="update")
        time.sleep(25)
        # Goodput falls with time: that much is progress, at most every ten seconds.
        self.assertLessEqual(operator.metric("archipelago_operator_api_requests_total", verb="update") - before, 3)
        self.assertTrue(operator.running())


if __name__ == "__main__":
    unittest.main()
