"""The CRD on a real API server: the tables that common/config is tested with, and what clients see."""
import copy
import json
import re
import time
import unittest

from api_server import CRD, GROUP, ROOT, ApiError, TestCluster, cluster, needs_the_server, new_namespace, wait_until


def table(name):
    return json.loads((ROOT / f"tests/config/cases/{name}.json").read_text(encoding="utf-8"))


def place(document, path):
    """The container and the key of "sync/quorum" (below spec) or "/metadata/name"."""
    parts = (path if path.startswith("/") else "/spec/" + path)[1:].split("/")
    for part in parts[:-1]:
        document = document[int(part)] if isinstance(document, list) else document.setdefault(part, {})
    return document, int(parts[-1]) if isinstance(document, list) else parts[-1]


def changed(base, change):
    document = copy.deepcopy(base)
    for path, value in change.get("set", {}).items():
        parent, key = place(document, path)
        if isinstance(parent, list) and key == len(parent):
            parent.append(value)
        else:
            parent[key] = value
    for path, count in change.get("fill", {}).items():
        parent, key = place(document, path)
        parent[key] = [{"name": f"d{i}"} for i in range(count)]
    for path in change.get("remove", []):
        parent, key = place(document, path)
        del parent[key]
    return document


def refusals(error):
    """[(field, text)] of an ApiError; what was not looked at because of others is left out."""
    strict = re.findall(r'unknown field "([^"]*)"', error.status.get("message", ""))
    if strict:
        return [(field, "unknown field") for field in strict]
    found = [(cause.get("field", ""), cause.get("message", "")) for cause in error.causes]
    found = [(field, text) for field, text in found if "some validation rules were not checked" not in text]
    return found or [("", error.status.get("message", ""))]


def lies_in(path, ancestor):
    return ancestor in ("", "<nil>") or path == ancestor or path.startswith((ancestor + ".", ancestor + "["))


def difference(found, expected, exact):
    """Text of what differs; empty: nothing. exact: fields must be named as expected, else an ancestor will do."""
    def match(path, text, field, said):
        return text in said and (field == path or (field in ("", "<nil>") and path == "") if exact else lies_in(path, field))

    missing = [p for p, t in expected.items() if not any(match(p, t, f, s) for f, s in found)]
    # Two rules may find the same field wrong: a message about an expected field is never surplus.
    surplus = [(f, s) for f, s in found if not any(lies_in(p, f) or lies_in(f, p) for p in expected)]
    return "".join(f"not refused: {p}\n" for p in missing) + "".join(f"not expected: {f}: {s}\n" for f, s in surplus)


@unittest.skipIf(TestCluster.missing(), TestCluster.missing())
class InNamespace(unittest.TestCase):
    """A namespace for the class; no test of its own."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster()
        cls.api = cls.cluster.api
        cls.namespace = new_namespace(cls.api)
        cls.addClassCleanup(cls.api.delete, f"/api/v1/namespaces/{cls.namespace}")
        cls.path = f"{GROUP}/namespaces/{cls.namespace}/decoupledtrainings"


class Tables(InNamespace):
    def judge(self, verb, path, document, expected, exact):
        try:
            self.api.call(verb, path, document)
            found = []
        except ApiError as error:
            found = refusals(error)
        said = "".join(f"  {f}: {s}\n" for f, s in found)
        self.assertEqual(difference(found, expected, exact), "", f"the server said:\n{said}")

    def test_what_a_new_resource_may_say(self):
        data = table("create")
        for case in data["cases"]:
            with self.subTest(case["case"]):
                expected = case.get("server", case.get("refused", {}))
                self.judge("POST", self.path + "?dryRun=All&fieldValidation=Strict", changed(data["base"], case), expected, "server" in case)

    def test_what_may_change_on_a_run_that_exists(self):
        data = table("update")
        for number, case in enumerate(data["cases"]):
            with self.subTest(case["case"]):
                before, after = (changed(data["base"], case.get(key, {})) for key in ("from", "to"))
                # A name of its own, as long as the table's.
                name = before["metadata"]["name"][:-3] + f"{number:03d}"
                before["metadata"]["name"] = after["metadata"]["name"] = name
                stored = self.api.post(self.path, before)
                after["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
                expected = case.get("server", case.get("refused", {}))
                self.judge("PUT", f"{self.path}/{name}?dryRun=All&fieldValidation=Strict", after, expected, "server" in case)
                self.api.delete(f"{self.path}/{name}")


class Clients(InNamespace):
    """What people and tools see."""

    def kubectl(self, *arguments, **options):
        return self.cluster.kubectl("-n", self.namespace, *arguments, **options)

    def test_client_side_apply_twice(self):
        for _ in range(2):
            self.assertIn("decoupledtrainings.archipelago.training", self.kubectl("apply", "-f", str(CRD)).stdout)

    def test_every_field_explains_itself(self):
        text = self.kubectl("explain", "dt.spec", "--recursive").stdout
        for field in ("hiddenSize", "learnerUnits", "existingClaim", "nodeLostSeconds"):
            self.assertIn(field, text)
        self.assertIn("in global steps", self.kubectl("explain", "dt.spec.sync.interval").stdout)
        self.assertIn("seconds", self.kubectl("explain", "dt.spec.restart.maxBackoffSeconds").stdout)

    def test_columns_and_short_names(self):
        document = changed(table("create")["base"], {"set": {"/metadata/name": "columns"}})
        self.kubectl("apply", "-f", "-", text=json.dumps(document))
        status = {"phase": "Running", "globalStep": 812, "tokens": 53215232, "loss": "2.1187", "goodput": "0.912", "restarts": 3,
                  "learners": {"summary": "3/4"}, "outerOptimizer": {"pod": "columns-outer-i1"}}
        self.api.merge(f"{self.path}/columns/status", {"status": status})
        narrow = self.kubectl("get", "dt", "columns").stdout.splitlines()
        self.assertEqual(narrow[0].split(), ["NAME", "PHASE", "LEARNERS", "STEP", "LOSS", "GOODPUT", "AGE"])
        self.assertEqual(narrow[1].split()[:6], ["columns", "Running", "3/4", "812", "2.1187", "0.912"])
        wide = self.kubectl("get", "dt", "columns", "-o", "wide").stdout.splitlines()
        self.assertEqual(wide[0].split()[-3:], ["TOKENS", "RESTARTS", "OUTER"])
        self.assertEqual(wide[1].split()[-3:], ["53215232", "3", "columns-outer-i1"])
        self.assertIn("columns", self.kubectl("get", "all").stdout)

    def test_kubectl_names_unknown_fields(self):
        document = changed(table("create")["base"], {"set": {"/metadata/name": "strict", "sync/qourum": 2}})
        done = self.kubectl("apply", "-f", "-", text=json.dumps(document), check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('unknown field "spec.sync.qourum"', done.stderr)

    def test_status_is_a_subresource(self):
        document = changed(table("create")["base"], {"set": {"/metadata/name": "sub", "/status": {"phase": "Failed"}}})
        self.assertNotIn("status", self.api.post(self.path, document))
        self.api.merge(f"{self.path}/sub/status", {"status": {"phase": "Running"}, "spec": {"suspend": True}})
        self.assertFalse(self.api.get(f"{self.path}/sub")["spec"]["suspend"])

    def test_what_kubectl_prints_can_be_replaced_again(self):
        document = changed(table("create")["base"], {"set": {"/metadata/name": "again"}})
        self.kubectl("apply", "-f", "-", text=json.dumps(document))
        printed = self.kubectl("get", "dt", "again", "-o", "json").stdout
        self.kubectl("replace", "-f", "-", text=printed)
        self.assertEqual(self.api.get(f"{self.path}/again")["spec"], json.loads(printed)["spec"])


@needs_the_server("it replaces the CRD")
class StoredBefore(InNamespace):
    """Objects stored under a schema without the rules of today can still be given a status."""

    def setUp(self):
        self.crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/decoupledtrainings.archipelago.training"
        self.addCleanup(self.cluster.kubectl, "apply", "-f", str(CRD))

    def loosen(self):
        """Nothing is checked, all is kept."""
        crd = self.api.get(self.crd)
        crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        self.api.call("PUT", self.crd, crd)

    def store(self, name, spec, wanted):
        """Stores an object that today's schema refuses; the server takes a moment to change schemas."""
        for _ in range(100):
            try:
                return self.api.post(self.path, {"apiVersion": "archipelago.training/v1alpha1", "kind": "DecoupledTraining",
                                                 "metadata": {"name": name}, "spec": spec})
            except ApiError as error:
                if error.code != 422:
                    raise
                time.sleep(0.1)
        self.fail(f"{wanted} could not be stored")

    def tighten(self):
        self.cluster.kubectl("apply", "-f", str(CRD))
        for _ in range(100):
            try:
                self.api.post(self.path + "?dryRun=All", {"apiVersion": "archipelago.training/v1alpha1", "kind": "DecoupledTraining",
                                                          "metadata": {"name": "probe"}, "spec": {}})
            except ApiError as error:
                if error.code == 422:
                    return
            time.sleep(0.1)
        self.fail("the schema did not come back")

    def test_status_of_what_breaks_a_rule(self):
        base = table("create")["base"]["spec"]
        bad = copy.deepcopy(base)
        bad["sync"] = {"interval": 10, "fragments": 3, "quorum": 9}
        self.loosen()
        self.store("breaks-rules", bad, "an object that breaks rules")
        self.store("1-breaks-the-name-rule-" + "x" * 30, base, "an object with a bad name")
        self.tighten()
        for name in ("breaks-rules", "1-breaks-the-name-rule-" + "x" * 30):
            status = {"phase": "Failed", "conditions": [{"type": "SpecValid", "status": "False", "reason": "InvalidSpec", "message": "x",
                                                         "lastTransitionTime": "2026-01-01T00:00:00.123Z"}]}
            stored = self.api.merge(f"{self.path}/{name}/status", {"status": status})
            self.assertEqual(stored["status"]["phase"], "Failed")

    def test_status_of_another_schema_is_refused_by_the_server(self):
        """What the operator must live with: then only an Event, a log line and a metric are left."""
        spec = copy.deepcopy(table("create")["base"]["spec"])
        spec["datacenters"][0]["learnerUnits"] = "two"
        self.loosen()
        self.store("other-types", spec, "an object of other types")
        self.tighten()
        with self.assertRaises(ApiError) as caught:
            self.api.merge(f"{self.path}/other-types/status", {"status": {"phase": "Failed"}})
        self.assertEqual(caught.exception.code, 422)

    def test_an_older_schema_drops_a_status_field(self):
        old = json.loads(self.cluster.kubectl("get", "crd", "decoupledtrainings.archipelago.training", "-o", "json").stdout)
        status = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        del status["mergedFraction"]
        old["metadata"].pop("managedFields", None)
        self.api.call("PUT", self.crd, old)
        self.api.post(self.path, changed(table("create")["base"], {"set": {"/metadata/name": "pruned"}}))
        wait_until("the field to be dropped", lambda: "mergedFraction" not in self.api.merge(
            f"{self.path}/pruned/status", {"status": {"phase": "Running", "mergedFraction": "1"}})["status"])


if __name__ == "__main__":
    unittest.main()
