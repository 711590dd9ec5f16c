#!/usr/bin/env python3
"""Pod-level tests: run.py [--keep] smoke|all|NAME...   NAME: faults, limits, live, docs, or faults.Faults.test_eviction.

Starts a cluster of two nodes, installs CRD and operator, tests, and takes the cluster down, also on failure and on
SIGTERM. --keep leaves it up and uses one that is up. Exit status 77: skipped, with the reason.
"""
import argparse
import signal
import sys
import unittest

import harness

SUITES = {"smoke": ["smoke"], "all": ["live", "limits", "faults", "docs"]}  # docs removes the operator at its end


def give_cluster(suite, cluster):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            give_cluster(test, cluster)
        else:
            type(test).cluster = cluster


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    reason = harness.missing()
    if reason:
        print(f"SKIPPED: pod-level tests: {reason}")
        sys.exit(77)
    names = [name for given in args.names for name in SUITES.get(given, [given])]
    suite = unittest.defaultTestLoader.loadTestsFromNames("test_" + name for name in names)
    cluster = harness.Cluster()
    give_cluster(suite, cluster)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unittest goes on after any other exception
    try:
        if args.keep and cluster.tool("kubeconfig", cluster.name, check=False):
            cluster.adopt()
        else:
            cluster.up()
        cluster.install_operator()
        good = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    finally:
        if not args.keep:
            cluster.down()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
