#!/usr/bin/env python3
"""Checks image archives (docker save): image_test.py ARCHIVE... Each is unpacked and its program is run in it, as its user.

No shell, no package manager, no setuid file; runs as 65532; every shared library is inside; the program starts; the
learner carries the demo's text. Prints each image's size and the start time of its program.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

FORBIDDEN = {"sh", "bash", "dash", "ash", "busybox", "apt", "apt-get", "dpkg", "python3", "perl", "su", "sudo", "curl", "wget"}
LOADER = "/usr/lib64/ld-linux-x86-64.so.2"
USER = 65532


def unpack(archive, folder):
    """Extracts the layers in order; returns the image's config."""
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))
        assert len(manifest) == 1, f"{archive}: {len(manifest)} images"
        config = json.load(tar.extractfile(manifest[0]["Config"]))
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=tar.extractfile(name), mode="r|*") as layer:
                layer.extractall(folder, numeric_owner=True)
    return config


def inside(root, *command, user=USER):
    def enter():
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)

    return subprocess.run(command, preexec_fn=enter, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin"})


class ImageTest(unittest.TestCase):
    archive = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        os.chmod(cls.root, 0o755)  # the image's user passes
        cls.config = unpack(cls.archive, cls.root)
        cls.program = cls.config["config"]["Entrypoint"][0]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def files(self):
        for path in pathlib.Path(self.root).rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path

    def test_holds_no_shell_and_nothing_that_gains_rights(self):
        for path in self.files():
            self.assertNotIn(path.name, FORBIDDEN)
            self.assertFalse(path.stat().st_mode & 0o6000, f"{path} is setuid or setgid")
            self.assertFalse(path.stat().st_mode & 0o002, f"{path} is writable by all")

    def test_holds_one_program(self):
        programs = [p.name for p in (pathlib.Path(self.root) / "usr/bin").iterdir()]
        self.assertEqual(programs, [pathlib.Path(self.program).name])

    def test_runs_as_nobody_special(self):
        self.assertEqual(self.config["config"]["User"], f"{USER}:{USER}")
        self.assertEqual(self.config["config"]["Entrypoint"], [self.program])
        self.assertEqual(self.config["config"].get("StopSignal"), "SIGTERM")
        self.assertIn("org.opencontainers.image.title", self.config["config"]["Labels"])

    def test_every_shared_library_is_inside(self):
        answer = inside(self.root, LOADER, "--list", self.program)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        self.assertNotIn("not found", answer.stdout)
        for path in re.findall(r"=> (/\S+)", answer.stdout):
            self.assertTrue(os.path.exists(self.root + path), path)

    def test_holds_no_library_that_nothing_loads(self):
        answer = inside(self.root, LOADER, "--list", self.program)
        loaded = {os.path.basename(p) for p in re.findall(r"(\S+) \(0x", answer.stdout)}
        held = {p.name for p in (pathlib.Path(self.root) / "usr/lib/x86_64-linux-gnu").iterdir()}
        self.assertEqual(held - loaded, set())

    def test_the_program_starts(self):
        seconds = []
        for _ in range(3):
            start = time.monotonic()
            answer = inside(self.root, self.program, "--help")
            seconds.append(time.monotonic() - start)
            self.assertEqual(answer.returncode, 0, answer.stderr)
        size = sum(p.stat().st_size for p in self.files())
        print(f"{pathlib.Path(self.program).name}: {size / 1e6:.1f} MB, {sum(1 for _ in self.files())} files, "
              f"--help in {min(seconds) * 1000:.0f} ms (first {seconds[0] * 1000:.0f} ms)")

    def test_the_learner_carries_the_demo(self):
        demo = pathlib.Path(self.root) / "usr/share/archipelago/demo"
        self.assertEqual(demo.exists(), self.program.endswith("-learner"))
        if demo.exists():
            self.assertGreater((demo / "train.txt").stat().st_size, 1_000_000)
            self.assertGreater((demo / "val.txt").stat().st_size, 50_000)


def main():
    if os.geteuid() != 0:
        print("SKIPPED: images are unpacked and entered as root")
        sys.exit(77)
    suite = unittest.TestSuite()
    loader = unittest.TestLoader()
    if not sys.argv[1:]:
        sys.exit(__doc__)
    for archive in sys.argv[1:]:
        suite.addTests(loader.loadTestsFromTestCase(type("Test_" + pathlib.Path(archive).stem.replace("-", "_"), (ImageTest,), {"archive": archive})))
    sys.exit(0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1)


if __name__ == "__main__":
    main()
