"""Runs from birth to end on a real API server: what is created, replaced, charged, kept and told."""
import time
import unittest

from api_server import GROUP, ApiError, needs_the_server, new_namespace, wait_until
from scene import ORDER, Scene, kubelet


class Lifecycle(Scene):
    def setUp(self):
        super().setUp()
        self.operator = self.start_operator()

    def test_a_run_comes_up_and_says_so(self):
        created = self.create()
        run = self.wait_running()
        status = run["status"]
        self.assertEqual(self.names(), ["islands-dc0-0-i1", "islands-dc0-1-i1", "islands-dc1-0-i1", "islands-dc1-1-i1", "islands-outer-i1"])
        self.assertEqual(status["runId"], created["metadata"]["uid"])
        self.assertEqual(status["observedGeneration"], run["metadata"]["generation"])
        wait_until("all four to step", lambda: self.status()["learners"]["summary"] == "4/4")
        for unit in self.status()["units"]:
            self.assertEqual([len(unit["podUids"]), unit["incarnation"]], [1, 1])
        first = self.status()["globalStep"]
        wait_until("progress", lambda: self.status()["globalStep"] > first + 5, 40)
        for kind in ("SpecValid", "OuterOptimizerReady", "QuorumAvailable"):
            self.wait_condition(kind)
        names = [name for _, name in self.uids()]
        self.assertIn("islands-outer", names)
        self.assertIn("islands-spec", names)
        claim = next(name for kind, name in self.uids() if kind == "persistentvolumeclaims")
        self.assertEqual(claim, "islands-outer-" + created["metadata"]["uid"].replace("-", "")[:8])
        for pod in self.pods():
            self.assertEqual(pod["metadata"]["ownerReferences"][0]["uid"], created["metadata"]["uid"])
        self.assertNotIn("ownerReferences", self.api.get(f"{self.core}/persistentvolumeclaims/{claim}")["metadata"])

    def test_a_crash_is_charged_and_replaced_alone(self):
        self.create()
        self.wait_running()
        shared, others = self.uids(), {p["metadata"]["uid"] for p in self.pods() if "dc0-0" not in p["metadata"]["name"]}
        self.end_pod("islands-dc0-0-i1", code=1, message="no memory left in the pool")
        self.wait_pod("islands-dc0-0-i2")
        unit = wait_until("the charge", lambda: (u := self.unit("dc0-0")).get("restarts") == 1 and u)
        self.assertEqual([unit["incarnation"], unit["charged"], unit["disruptions"]], [2, 1, 0])
        self.assertEqual(unit["lastFailure"]["exitCode"], 1)
        self.assertEqual(unit["lastFailure"]["incarnation"], 1)
        self.assertEqual(self.status()["restarts"], 1)
        self.assertEqual(self.uids(), shared, "objects that all share were made anew")
        self.assertLessEqual(others, {p["metadata"]["uid"] for p in self.pods()}, "another pod was replaced")

    def test_an_oom_kill_is_charged_and_named(self):
        self.create()
        self.wait_running()
        self.end_pod("islands-dc0-0-i1", code=137, reason="OOMKilled")
        self.wait_pod("islands-dc0-0-i2")
        unit = wait_until("the charge", lambda: (u := self.unit("dc0-0")).get("restarts") == 1 and u)
        self.assertEqual(unit["lastFailure"]["reason"], "OOMKilled")

    def test_disruptions_are_not_charged(self):
        self.create(restart={"backoffLimit": 1, "backoffSeconds": 0, "maxBackoffSeconds": 0})
        self.wait_running()
        reasons = ["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "TerminationByKubelet"]
        for number in range(1, 6):
            self.wait_pod(f"islands-dc1-0-i{number}")
            self.end_pod(f"islands-dc1-0-i{number}", code=137, disruption=reasons[number % 4])
        self.wait_pod("islands-dc1-0-i6")
        unit = wait_until("five disruptions", lambda: (u := self.unit("dc1-0")).get("disruptions") == 5 and u)
        self.assertEqual([unit["restarts"], unit["charged"], unit["incarnation"]], [0, 0, 6])

    def test_a_deleted_pod_is_replaced_and_not_charged(self):
        self.create()
        self.wait_running()
        self.api.delete(f"{self.core}/pods/islands-dc0-1-i1")
        self.wait_pod("islands-dc0-1-i2")
        unit = wait_until("the disruption", lambda: (u := self.unit("dc0-1")).get("disruptions") == 1 and u)
        self.assertEqual(unit["restarts"], 0)

    def test_the_budget_of_restarts_ends_a_unit_and_degrades_the_run(self):
        self.create(restart={"backoffLimit": 2, "backoffSeconds": 0, "maxBackoffSeconds": 0})
        self.wait_running()
        for number in (1, 2, 3):
            self.wait_pod(f"islands-dc0-0-i{number}")
            self.end_pod(f"islands-dc0-0-i{number}", code=1)
        self.wait_phase("Degraded")
        self.assertEqual(self.unit("dc0-0")["phase"], "Failed")
        self.assertEqual(len(self.names(role="learner")), 3)

    def test_below_the_quorum_the_run_fails_and_stays_so(self):
        self.create(units=(1, 1), sync={"quorum": 2}, restart={"backoffLimit": 0})
        self.wait_running()
        self.end_pod("islands-dc0-0-i1", code=137, reason="OOMKilled")
        run = self.wait_phase("Failed")
        failed = self.wait_condition("Failed")
        self.assertIn("dc0-0", failed["message"])
        self.assertIn("OOM", failed["message"] + failed["reason"])
        wait_until("the rest to be cleaned up", lambda: not self.names(role="learner"))
        # Sticky, also for an operator that starts anew with nothing left.
        self.operator.kill()
        for pod in self.pods(alive=False):
            self.api.delete(f"{self.core}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0")
        self.start_operator()
        time.sleep(3)
        self.assertEqual(self.status()["phase"], "Failed")
        self.assertEqual(self.status()["units"][0]["restarts"], run["status"]["units"][0]["restarts"])
        self.assertEqual(self.names(), [])

    def test_success_is_sticky(self):
        self.create()
        self.wait_running()
        self.script(document={"phase": "finished", "globalStep": 2000})
        self.wait_phase("Succeeded")
        self.wait_condition("Complete")
        self.assertEqual(self.status()["globalStep"], 2000)
        self.operator.kill()
        for pod in self.pods(alive=False):
            self.api.delete(f"{self.core}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0")
        self.start_operator()
        time.sleep(3)
        self.assertEqual(self.status()["phase"], "Succeeded")
        self.assertEqual(self.names(role="learner"), [])

    def test_unschedulable_and_image_pull_are_shown_and_not_charged(self):
        self.create(datacenters=[{"name": "dc0", "learnerUnits": 1, "template": {"annotations": {ORDER: "hold"}}},
                                 {"name": "dc1", "learnerUnits": 1, "template": {"annotations": {ORDER: "pending"}}}])
        wait_until("both pods", lambda: len(self.names(role="learner")) == 2)
        self.api.merge(f"{self.core}/pods/islands-dc0-0-i1/status", {"status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes are available"}]}})
        self.api.merge(f"{self.core}/pods/islands-dc1-0-i1/status", {"status": {"containerStatuses": [
            {"name": "learner", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"waiting": {"reason": "ImagePullBackOff", "message": "back-off"}}}]}})
        wait_until("Unschedulable", lambda: self.unit("dc0-0").get("reason") == "Unschedulable")
        wait_until("ImagePullBackOff", lambda: self.unit("dc1-0").get("reason") == "ImagePullBackOff")
        self.assertEqual([self.unit("dc0-0")["restarts"], self.unit("dc1-0")["restarts"]], [0, 0])
        self.assertEqual(self.status()["phase"], "Pending")


class Changes(Scene):
    def setUp(self):
        super().setUp()
        self.operator = self.start_operator()

    def test_suspend_and_resume(self):
        self.create()
        self.wait_running()
        shared = self.uids()
        self.change({"suspend": True, "datacenters": [{"name": "dc0", "learnerUnits": 2, "template": {"nodeSelector": {"a": "b"}}},
                                                     {"name": "dc1", "learnerUnits": 2}]})
        self.wait_phase("Suspended")
        wait_until("no pods", lambda: not self.pods())
        status = self.status()
        self.assertEqual([status["learners"]["stepping"], status["restarts"]], [0, 0])
        self.assertNotIn("activeSince", status)
        active = status["activeSeconds"]
        time.sleep(2)
        self.assertEqual(self.status()["activeSeconds"], active, "the clock went on")
        self.assertEqual({k: v for k, v in self.uids().items() if k[0] == "persistentvolumeclaims"},
                         {k: v for k, v in shared.items() if k[0] == "persistentvolumeclaims"})
        self.change({"suspend": False})
        self.wait_running()
        self.assertEqual(self.pod("islands-dc0-0-i2")["spec"]["nodeSelector"].get("a"), "b")
        self.assertEqual(self.status()["restarts"], 0)

    def test_created_suspended(self):
        self.create(suspend=True)
        self.wait_phase("Suspended")
        time.sleep(1)
        self.assertEqual(self.pods(alive=False), [])
        self.change({"suspend": False})
        self.wait_running()

    def test_suspend_toggled_in_a_second(self):
        self.create()
        self.wait_running()
        for number in range(10):
            self.change({"suspend": number % 2 == 0})
            time.sleep(0.1)
        self.wait_running()
        wait_until("four learners", lambda: len(self.names(role="learner")) == 4)
        status = self.status()
        self.assertEqual([status["restarts"], [u["charged"] for u in status["units"]]], [0, [0] * 4])

    def test_two_units_to_three_to_one(self):
        self.create(units=(2,))
        self.wait_running()
        self.change({"datacenters": [{"name": "dc0", "learnerUnits": 3}]})
        self.wait_pod("islands-dc0-2-i1")
        self.change({"datacenters": [{"name": "dc0", "learnerUnits": 1}]})
        wait_until("one left", lambda: self.names(role="learner") == ["islands-dc0-0-i1"])
        retired = wait_until("retired units", lambda: self.status().get("retiredUnits"))
        self.assertEqual(sorted((r["name"], r["lastIncarnation"]) for r in retired), [("dc0-1", 1), ("dc0-2", 1)])
        self.change({"datacenters": [{"name": "dc0", "learnerUnits": 2}]})
        self.wait_pod("islands-dc0-1-i2")

    def test_budget_raised_and_other_settings_reach_the_outer_optimizer(self):
        self.create(budget={"globalSteps": 100000})
        run = self.wait_running()
        run = self.change({"budget": {"globalSteps": 200000}, "sync": {"quorum": 2}})
        generation = run["metadata"]["generation"]
        wait_until("the settings", lambda: any(s["generation"] == generation and s["budget"]["globalSteps"] == 200000 and s["quorum"] == 2
                                               for s in self.record()["settings"]))
        wait_until("the answer in status", lambda: self.status()["outerOptimizer"].get("settingsGeneration") == generation)
        with self.assertRaises(ApiError):
            self.change({"budget": {"globalSteps": 100000}})

    def test_time_to_live_deletes_children_only(self):
        self.create(ttlSecondsAfterFinished=1)
        self.wait_running()
        self.script(document={"phase": "finished", "globalStep": 2000})
        self.wait_phase("Succeeded")
        wait_until("no children", lambda: not self.pods(alive=False) and [k for k, _ in self.uids()] == ["persistentvolumeclaims"])
        self.assertEqual(self.status()["phase"], "Succeeded")

    def test_deadline(self):
        self.create(activeDeadlineSeconds=3)
        self.wait_phase("Failed")
        self.assertIn("eadline", self.wait_condition("Failed")["reason"])

    def test_foreign_annotations_stay(self):
        self.create()
        self.wait_running()
        self.api.merge(f"{self.runs}/islands", {"metadata": {"annotations": {"example.org/a": "b"}, "finalizers": ["example.org/keep"]}})
        self.api.merge(f"{self.core}/pods/islands-dc0-0-i1", {"metadata": {"annotations": {"example.org/a": "b"}}})
        self.end_pod("islands-dc0-1-i1")
        self.wait_pod("islands-dc0-1-i2")
        run = self.run_of()
        self.assertEqual(run["metadata"]["annotations"]["example.org/a"], "b")
        self.assertEqual(run["metadata"]["finalizers"], ["example.org/keep"])
        self.assertEqual(self.pod("islands-dc0-0-i1")["metadata"]["annotations"]["example.org/a"], "b")
        self.api.merge(f"{self.runs}/islands", {"metadata": {"finalizers": None}})

    def test_a_run_without_finalizers_goes_with_its_namespace(self):
        self.create()
        run = self.wait_running()
        self.assertNotIn("finalizers", run["metadata"])
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        wait_until("the namespace to go", lambda: self.api.find(f"/api/v1/namespaces/{self.namespace}") is None, 60)
        self.assertTrue(self.operator.running())


class Claims(Scene):
    def setUp(self):
        super().setUp()
        self.operator = self.start_operator()

    def claims(self):
        return {o["metadata"]["name"]: o for o in self.api.items(f"{self.core}/persistentvolumeclaims")}

    def gone(self):
        self.api.delete(f"{self.runs}/islands")
        wait_until("the pods to go", lambda: not self.pods(alive=False), 60)

    def test_delete_and_apply_again_gets_a_fresh_claim_and_keeps_the_old(self):
        first = self.create()
        self.wait_running()
        self.gone()
        old = self.claims()
        self.assertEqual(len(old), 1)
        second = self.create()
        self.wait_running()
        new = self.claims()
        self.assertEqual(len(new), 2)
        self.assertLess(set(old), set(new))
        uids = {c["metadata"]["labels"]["archipelago.training/run-uid"] for c in new.values()}
        self.assertEqual(uids, {first["metadata"]["uid"], second["metadata"]["uid"]})

    def test_retain_delete_goes_with_the_run(self):
        self.create(outerOptimizer={"storage": {"retain": "Delete"}})
        self.wait_running()
        self.gone()
        wait_until("the claim to go", lambda: not self.claims(), 60)

    def test_restored_without_status_goes_on_under_its_old_id(self):
        """A backup restored: new uid, no status, old claim adopted, learners still alive."""
        old_uid = self.create()["metadata"]["uid"]
        self.wait_running()
        self.end_pod("islands-dc0-0-i1")
        self.wait_pod("islands-dc0-0-i2")
        self.operator.stop()
        claim = next(iter(self.claims()))
        # The learners live on, as they would in a cluster that was only rebuilt; the outer optimizer is gone.
        self.api.delete(f"{self.runs}/islands?propagationPolicy=Orphan")
        wait_until("the run to go", lambda: self.api.find(f"{self.runs}/islands") is None)
        self.api.delete(f"{self.core}/pods/islands-outer-i1?gracePeriodSeconds=0")
        old_learners = {p["metadata"]["uid"] for p in self.pods(role="learner")}
        self.assertEqual(len(old_learners), 4)
        created = self.create(outerOptimizer={"storage": {"existingClaim": claim, "adopt": True}})
        self.assertNotEqual(created["metadata"]["uid"], old_uid)
        # What its outer optimizer finds on the claim.
        self.script(document={"runId": old_uid, "fenced": [{"name": "dc0-0", "highest": 2}, *({"name": n, "highest": 1} for n in ("dc0-1", "dc1-0", "dc1-1"))]})
        self.start_operator()
        wait_until("the old run id", lambda: self.status().get("runId") == old_uid, 60)
        self.wait_running()
        wait_until("all units", lambda: self.status()["learners"]["summary"] == "4/4")
        self.assertEqual([u["incarnation"] for u in self.status()["units"]], [3, 2, 2, 2])
        self.assertEqual(list(self.claims()), [claim], "a new claim was made")
        self.assertLessEqual(old_learners, {p["metadata"]["uid"] for p in self.pods()}, "what is not ours was touched")


class Trouble(Scene):
    def setUp(self):
        super().setUp()
        self.operator = self.start_operator()

    def test_foreign_objects_of_our_names_are_left_alone(self):
        foreign = self.api.post(f"{self.core}/pods", {"metadata": {"name": "islands-dc0-0-i1", "annotations": {ORDER: "hold"}},
                                                      "spec": {"containers": [{"name": "a", "image": "a"}]}})
        service = self.api.post(f"{self.core}/services", {"metadata": {"name": "islands-outer"}, "spec": {"ports": [{"port": 1}]}})
        self.create()
        conflict = self.wait_condition("NameConflict")
        self.assertIn("islands", conflict["message"])
        self.assertEqual(self.pod("islands-dc0-0-i1")["metadata"]["resourceVersion"], foreign["metadata"]["resourceVersion"])
        self.assertEqual(self.api.get(f"{self.core}/services/islands-outer")["metadata"]["resourceVersion"], service["metadata"]["resourceVersion"])

    def test_quota_is_told_and_heals(self):
        self.api.post(f"{self.core}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "3"}}})
        wait_until("the quota", lambda: self.api.get(f"{self.core}/resourcequotas/q").get("status", {}).get("hard"))
        self.create()
        rejected = self.wait_condition("PodRejected")
        self.assertIn("quota", rejected["message"])
        wait_until("the pods that fit", lambda: len(self.pods()) == 3)
        self.wait_running(seconds=60)
        before = self.operator.metric("archipelago_api_requests_total")
        time.sleep(5)
        self.api.merge(f"{self.core}/resourcequotas/q", {"spec": {"hard": {"pods": "10"}}})
        wait_until("the others", lambda: len(self.pods()) == 5, 90)
        self.wait_condition("PodRejected", "False", seconds=60)
        self.assertGreaterEqual(before, 0)

    def test_quota_makes_no_hot_loop(self):
        from fault_proxy import FaultProxy
        self.operator.stop()
        proxy = FaultProxy(self.api)
        self.addCleanup(proxy.stop)
        self.api.post(f"{self.core}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
        wait_until("the quota", lambda: self.api.get(f"{self.core}/resourcequotas/q").get("status", {}).get("hard"))
        self.start_operator(kubeconfig=proxy.kubeconfig(self.folder))
        self.create()
        self.wait_condition("PodRejected")
        time.sleep(5)
        before = len(proxy.writes())
        time.sleep(10)
        self.assertLess(len(proxy.writes()) - before, 60, "writes in ten seconds")
        statuses = [r for r in proxy.writes()[before:] if r.path.endswith("/status")]
        self.assertLess(len(statuses), 6)

    def test_pod_security(self):
        self.api.merge(f"/api/v1/namespaces/{self.namespace}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
        self.create()
        self.wait_running()
        self.create(name="host", data={"volume": {"hostPath": "/data"}})
        rejected = self.wait_condition("PodRejected", name="host")
        self.assertIn("PodSecurity", rejected["message"])

    def test_a_template_that_the_server_refuses(self):
        self.create(datacenters=[{"name": "dc0", "learnerUnits": 1, "template": {"tolerations": [{"operator": "Sometimes"}]}},
                                 {"name": "dc1", "learnerUnits": 1}])
        rejected = self.wait_condition("PodRejected")
        self.assertIn("toleration", rejected["message"].lower())
        self.wait_pod("islands-dc1-0-i1")

    @needs_the_server("its operator acts in all namespaces")
    def test_two_runs_two_namespaces(self):
        other = new_namespace(self.api)
        self.addCleanup(self.api.delete, f"/api/v1/namespaces/{other}")
        self.operator.stop()
        self.start_operator(everywhere=True)
        self.create()
        # Names that meet: run a of datacenter b-c, run a-b of datacenter c.
        self.create(name="a", datacenters=[{"name": "b-c", "learnerUnits": 1}])
        self.api.post(f"{GROUP}/namespaces/{other}/decoupledtrainings", self.document())
        self.wait_running()
        self.wait_running("a")
        wait_until("the other", lambda: self.api.get(f"{GROUP}/namespaces/{other}/decoupledtrainings/islands").get("status", {}).get("phase") == "Running")
        uids = {p["metadata"]["uid"] for p in self.pods()}
        self.api.delete(f"/api/v1/namespaces/{other}/pods/islands-dc0-0-i1")
        wait_until("its replacement", lambda: self.api.find(f"/api/v1/namespaces/{other}/pods/islands-dc0-0-i2"))
        self.assertEqual({p["metadata"]["uid"] for p in self.pods()}, uids)
        self.create(name="a-b", datacenters=[{"name": "c", "learnerUnits": 1}])
        self.wait_condition("NameConflict", name="a-b")
        self.assertEqual(self.status("a")["phase"], "Running")

    def test_silence_alone_is_no_failure(self):
        self.create(restart={"stallSeconds": 3})
        self.wait_running()
        self.script(units={"dc0-0": {"phase": "Silent", "lastHeardSeconds": 1000.0}}, probe="Waiting")
        wait_until("Unreachable", lambda: self.unit("dc0-0").get("phase") == "Unreachable", 60)
        time.sleep(5)
        unit = self.unit("dc0-0")
        self.assertEqual([unit["incarnation"], unit["restarts"]], [1, 0])


if __name__ == "__main__":
    unittest.main()
