"""What the API server and the way to it do wrong: stale answers, limits, lost connections, and an operator that dies between two
writes. Whatever happens, charges and incarnations come out right and nothing is made twice."""
import json
import time
import unittest

from api_server import wait_until
from fault_proxy import FaultProxy, query, status_answer
from scene import Scene

RUNS = r"/decoupledtrainings"


class Faults(Scene):
    def setUp(self):
        super().setUp()
        self.proxy = FaultProxy(self.api)
        self.addCleanup(self.proxy.stop)

    def start(self, *arguments, **options):
        return self.start_operator(*arguments, kubeconfig=self.proxy.kubeconfig(self.folder), **options)

    def created_pods(self):
        return [json.loads(r.body)["metadata"]["name"] for r in self.proxy.requests("POST", r"/pods$|/pods\?") if r.code == 201]

    def whole(self, name="islands", learners=4):
        """All is well, and every pod was made once."""
        self.wait_running(name, 90)
        wait_until("all learners", lambda: len(self.names(name=name, role="learner")) == learners, 60)
        made = self.created_pods()
        self.assertEqual(len(made), len(set(made)), "a pod was made twice")
        status = self.status(name)
        self.assertEqual([status["restarts"], [u["charged"] for u in status["units"]]], [0, [0] * learners])

    # --- conflicts

    def test_three_conflicts_on_status_with_a_foreign_change_between(self):
        self.start()
        conflict = status_answer(409, "Conflict", "the object has been modified")
        rule = self.proxy.add("PUT", RUNS + ".*/status", 3, answer=conflict)
        self.create()
        wait_until("three conflicts", lambda: rule.hits == 3)
        self.api.merge(f"{self.runs}/islands", {"metadata": {"annotations": {"example.org/a": "b"}}})
        self.whole()
        self.assertEqual(self.condition("Failed").get("status", "False"), "False")

    def test_conflicts_in_a_restart_charge_once(self):
        self.start()
        self.create()
        self.wait_running()
        rule = self.proxy.add("PUT", RUNS + ".*/status", 3, answer=status_answer(409, "Conflict"))
        self.end_pod("islands-dc0-0-i1")
        self.wait_pod("islands-dc0-0-i2")
        self.assertEqual(rule.hits, 3)
        self.assertEqual([self.unit("dc0-0")[k] for k in ("charged", "restarts", "incarnation")], [1, 1, 2])

    def test_a_create_whose_answer_is_lost(self):
        self.start()
        self.proxy.add("POST", r"/pods", 3, cut="after")
        self.proxy.add("POST", r"/persistentvolumeclaims", 1, cut="after")
        self.create()
        self.wait_running(seconds=90)
        wait_until("all learners", lambda: len(self.names(role="learner")) == 4)
        self.assertEqual(self.condition("NameConflict").get("status", "False"), "False")
        self.assertEqual([u["incarnation"] for u in self.status()["units"]], [1] * 4)

    def test_a_status_write_whose_answer_is_lost(self):
        self.start()
        self.create()
        self.wait_running()
        self.proxy.add("PUT", RUNS + ".*/status", 1, cut="after")
        self.end_pod("islands-dc0-0-i1")
        self.wait_pod("islands-dc0-0-i2")
        self.assertEqual([self.unit("dc0-0")[k] for k in ("charged", "restarts", "incarnation")], [1, 1, 2])

    # --- limits

    def too_many(self, code, reason, **options):
        self.start()
        rules = [self.proxy.add("POST", r"/pods", 3, answer=status_answer(code, reason, **options)),
                 self.proxy.add("PUT", r"/status", 3, answer=status_answer(code, reason, **options)),
                 self.proxy.add("GET", r"watch=", 2, answer=status_answer(code, reason, **options))]
        self.create()
        self.proxy.cut_all()   # watches begin anew, into the refusals
        self.whole()
        wait_until("all faults", lambda: all(rule.left == 0 for rule in rules), 40)

    def test_429_with_retry_after(self):
        self.too_many(429, "TooManyRequests", retry_after=1)

    def test_429_with_a_date(self):
        when = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))
        self.too_many(429, "TooManyRequests", retry_after=when)

    def test_503(self):
        self.too_many(503, "ServiceUnavailable")

    def test_retry_after_is_kept(self):
        self.start()
        self.proxy.add("POST", r"/pods", 1, answer=status_answer(429, "TooManyRequests", retry_after=4))
        self.create()
        wait_until("the next try", lambda: len(self.proxy.requests("POST", r"/pods")) >= 6, 60)
        first, *others = self.proxy.requests("POST", r"/pods")
        same = [r for r in others if json.loads(r.body)["metadata"]["name"] == json.loads(first.body)["metadata"]["name"]]
        self.assertGreaterEqual(same[0].time - first.time, 3.9)

    def test_401_reads_credentials_again(self):
        self.start()
        self.proxy.add("POST", r"/pods", 1, answer=status_answer(401, "Unauthorized"))
        self.proxy.add("PUT", r"/status", 1, answer=status_answer(401, "Unauthorized"))
        self.create()
        self.whole()

    # --- watches

    def changed_is_seen(self, seconds=40):
        before = len(self.proxy.requests("GET", r"watch="))
        self.end_pod("islands-dc0-0-i1")
        self.wait_pod("islands-dc0-0-i2", seconds)
        return before

    def test_410_at_the_start_of_a_watch(self):
        self.start()
        self.create()
        self.wait_running()
        rule = self.proxy.add("GET", r"watch=", 4, answer=status_answer(410, "Expired", "too old resource version"))
        self.proxy.cut_all()
        self.changed_is_seen(60)
        self.assertGreater(rule.hits, 0)
        lists = [r for r in self.proxy.requests("GET") if not r.watch and "limit=" in r.path]
        self.assertTrue(any(query(r.path).get("resourceVersion", "") in ("", "0") for r in lists[4:]))

    def error_event(self, status):
        line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
        self.start()
        self.create()
        self.wait_running()
        rule = self.proxy.add("GET", r"watch=", 5, lines=lambda _, n: [line] if n == 1 else "cut")
        self.proxy.cut_all()
        self.changed_is_seen(60)
        self.assertGreater(rule.hits, 0)
        self.assertEqual(self.status()["phase"], "Running")

    def test_410_as_an_event(self):
        self.error_event({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410})

    def test_500_as_an_event_without_metadata(self):
        self.error_event({"kind": "Status", "status": "Failure", "message": "etcdserver: no leader", "code": 500})

    def test_an_expired_page_of_a_list_starts_over(self):
        for number in range(3):
            self.create(name=f"r{number}", units=(1,))
        self.proxy.add("GET", RUNS + r"\?", 1, call=self.first_page_only)
        rule = self.proxy.add("GET", r"continue=", 1, answer=status_answer(410, "Expired"))
        self.start()
        for number in range(3):
            self.wait_running(f"r{number}", 60)
        self.assertEqual(rule.hits, 1)

    def first_page_only(self, request):
        """A list as a server with more than a page would begin it."""
        whole = self.api.get(request.path)
        whole["items"] = whole["items"][:1]
        whole["metadata"]["continue"] = "expired-token"
        return 200, {"Content-Type": "application/json"}, json.dumps(whole).encode()

    def test_deletions_during_an_outage_are_noticed(self):
        self.start()
        self.create()
        self.create(name="other", units=(1,))
        self.wait_running()
        self.wait_running("other")
        self.proxy.refusing = True
        self.proxy.cut_all()
        self.api.delete(f"{self.core}/pods/islands-dc0-0-i1?gracePeriodSeconds=0")
        self.api.delete(f"{self.runs}/other")
        # Watches can't go on where they were: their versions are too old.
        self.proxy.add("GET", r"watch=", 6, answer=status_answer(410, "Expired"))
        time.sleep(3)
        self.proxy.refusing = False
        self.wait_pod("islands-dc0-0-i2", 60)
        self.assertEqual(self.unit("dc0-0")["restarts"], 0)

    def test_connections_cut_again_and_again(self):
        self.start()
        self.create()
        for _ in range(20):
            self.proxy.cut_all()
            time.sleep(0.2)
        self.whole()

    def test_events_that_come_late(self):
        """Answers to writes come at once, the watch of pods five seconds later, while the run changes all the time."""
        def late(line, _):
            time.sleep(1)
            return [line]
        self.proxy.add("GET", r"/pods.*watch=", -1, lines=late)
        self.start()
        self.create()
        for number in range(20):
            self.api.merge(f"{self.runs}/islands", {"metadata": {"annotations": {"example.org/n": str(number)}}})
            time.sleep(0.1)
        self.whole()
        deleted = [r for r in self.proxy.requests("DELETE", r"/pods/")]
        self.assertEqual(deleted, [])

    def test_half_lines_junk_and_hollow_bookmarks(self):
        junk = [b"\n", b"not json\n", b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"%s"}}}\n',
                b'{"type":"ADDED","object":{"kind":"Pod"}}\n', b'{"type":"ADDED","object":"two"}\n', b'[1]\n']

        def lines(line, number):
            version = json.loads(line)["object"]["metadata"]["resourceVersion"].encode()
            made = junk[number % len(junk)]
            return [(made % version if b"%s" in made else made) + line[:20], line[20:]]
        self.proxy.add("GET", r"watch=", -1, lines=lines)
        self.start()
        self.create()
        self.whole()

    def test_silence_of_a_watch(self):
        """A connection that says nothing more without ending is given up within two minutes."""
        self.start()
        self.create()
        self.wait_running()
        self.proxy.add("GET", r"/pods.*watch=", 1, lines=lambda _line, _n: "stall")
        self.proxy.cut_all()
        self.end_pod("islands-dc0-0-i1")
        self.end_pod("islands-dc0-1-i1")
        self.wait_pod("islands-dc0-0-i2", 150)
        self.wait_pod("islands-dc0-1-i2", 30)

    def test_two_hundred_reconnects_leak_nothing(self):
        operator = self.start()
        self.create()
        self.wait_running()
        time.sleep(2)
        import os
        folder = f"/proc/{operator.process.pid}/fd"
        before = len(os.listdir(folder))
        for _ in range(200):
            self.proxy.cut_all()
            time.sleep(0.05)
        self.changed_is_seen(60)
        time.sleep(2)
        self.assertLess(len(os.listdir(folder)) - before, 10)


class Killed(Scene):
    """The operator is killed just before and just after each write of a restart; its successor finishes the work."""

    def restart_with_a_kill(self, number, when):
        """True: the operator was killed at that write. False: the restart has fewer."""
        proxy = FaultProxy(self.api)
        kubeconfig = proxy.kubeconfig(self.folder, f"proxy-{number}-{when}")
        first = self.start_operator(kubeconfig=kubeconfig)
        name = f"k{number}{when[0]}"
        self.create(name=name, units=(2,))
        self.wait_running(name)
        wait_until("all to step", lambda: self.status(name)["learners"]["stepping"] == 2)
        time.sleep(1.2)   # the writes of its birth are through
        count, killed = [0], [False]

        def at(request, _code=0):
            if request.lease or request.event or f"/{name}" not in request.path + request.body.decode(errors="replace"):
                return
            count[0] += 1
            if count[0] == number and not killed[0]:
                killed[0] = True
                first.kill()
        proxy.add("POST|PUT|PATCH|DELETE", "", -1, **({"call": at} if when == "before" else {"after": at}))
        self.end_pod(f"{name}-dc0-0-i1", code=1)
        deadline = time.monotonic() + 8
        while not killed[0] and time.monotonic() < deadline and not (self.pod(f"{name}-dc0-0-i2") and when == "after" and count[0] < number):
            time.sleep(0.1)
        if killed[0]:
            proxy.clear()
            self.start_operator(kubeconfig=kubeconfig)
        self.wait_pod(f"{name}-dc0-0-i2")
        unit = wait_until("the charge", lambda: (u := self.unit("dc0-0", name)).get("restarts") and u)
        self.assertEqual([unit["incarnation"], unit["charged"], unit["restarts"], unit["disruptions"]], [2, 1, 1, 0], f"{when} write {number}")
        self.assertEqual(unit["lastFailure"]["exitCode"], 1)
        time.sleep(1)
        learners = self.names(name=name, role="learner")
        self.assertEqual(learners, [f"{name}-dc0-0-i2", f"{name}-dc0-1-i1"], f"{when} write {number}")
        self.api.delete(f"{self.runs}/{name}")
        for operator in self.operators:
            operator.kill()
        proxy.stop()
        return killed[0]

    def test_killed_at_every_write_of_a_restart(self):
        for when in ("before", "after"):
            for number in range(1, 6):
                with self.subTest(f"{when} write {number}"):
                    killed = self.restart_with_a_kill(number, when)
                if not killed:
                    break
            self.assertGreater(number, 2, "a restart takes a status write and a pod")

    def test_killed_at_every_write_of_a_birth(self):
        for number in range(1, 14):
            with self.subTest(f"write {number}"):
                proxy = FaultProxy(self.api)
                kubeconfig = proxy.kubeconfig(self.folder, f"birth-{number}")
                first = self.start_operator(kubeconfig=kubeconfig)
                count, killed = [0], [False]

                def at(request, _code):
                    if request.lease or request.event:
                        return
                    count[0] += 1
                    if count[0] == number:
                        killed[0] = True
                        first.kill()
                proxy.add("POST|PUT|PATCH|DELETE", "", -1, after=at)
                name = f"b{number}"
                self.create(name=name, units=(2,))
                wait_until("the kill or the run", lambda: killed[0] or self.status(name).get("phase") == "Running")
                if not killed[0]:
                    proxy.stop()
                    break
                proxy.clear()
                second = self.start_operator(kubeconfig=kubeconfig)
                self.wait_running(name)
                wait_until("two learners", lambda: self.names(name=name, role="learner") == [f"{name}-dc0-0-i1", f"{name}-dc0-1-i1"])
                self.assertEqual([u["incarnation"] for u in self.status(name)["units"]], [1, 1])
                self.assertEqual(self.condition("NameConflict", name).get("status", "False"), "False")
                second.kill()
                self.api.delete(f"{self.runs}/{name}")
                proxy.stop()
        self.assertGreater(number, 5)


if __name__ == "__main__":
    unittest.main()
