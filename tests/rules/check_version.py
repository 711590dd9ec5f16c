#!/usr/bin/env python3
"""The version stands in the top CMakeLists.txt; what else names it names the same one.

    check_version.py ROOT | --self-test"""
import pathlib
import re
import sys

NUMBER = r"(\d+\.\d+\.\d+)"
# Each place and what stands before the number there; every match must be the version, and one must exist.
PLACES = [
    ("CHANGELOG.md", rf"\A# Changelog\s+## {NUMBER}"),
    ("README.md", rf"\bVersion {NUMBER}"),
    ("Dockerfile", rf'image\.version="{NUMBER}"'),
    ("Dockerfile", rf"archipelago-\w+:{NUMBER}"),
    ("deploy/operator.yaml", rf"archipelago-[a-z-]+:{NUMBER}"),
    ("docs/kubernetes.md", rf"archipelago-[a-z$-]+:{NUMBER}"),
    ("tests/cluster/image_build", rf"archipelago-\$target:{NUMBER}"),
    ("tests/cluster/images", rf"archipelago-\{{target\}}:{NUMBER}"),
]
ROOMS = ("cli", "common", "learner", "operator", "outer-optimizer", "replay", "simulator")


def check(root):
    found = re.search(rf"^project\(archipelago VERSION {NUMBER}", (root / "CMakeLists.txt").read_text(encoding="utf-8"), re.M)
    if not found:
        return ["CMakeLists.txt: no project(archipelago VERSION ...)"]
    version = found.group(1)
    problems = []
    for name, pattern in PLACES:
        given = re.findall(pattern, (root / name).read_text(encoding="utf-8"))
        if not given:
            problems.append(f"{name}: nothing matches {pattern}")
        problems += [f"{name}: {number} given, the version is {version}" for number in given if number != version]
    for room in ROOMS:   # programs ask version() of common/base/version.h
        for path in sorted((root / room).rglob("*")):
            if path.suffix not in (".cc", ".h"):
                continue
            for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if f'"{version}"' in text.split("//")[0] or re.search(rf'archipelago[a-z -]*[ :/]{re.escape(version)}', text.split("//")[0]):
                    problems.append(f"{path.relative_to(root)}:{line}: the version as text")
    return problems


def self_test():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        texts = {"CMakeLists.txt": "project(archipelago VERSION 1.2.3 LANGUAGES CXX)\n", "CHANGELOG.md": "# Changelog\n\n## 1.2.3, unreleased\n",
                 "README.md": "Version 1.2.3.\n", "Dockerfile": 'archipelago-learner:1.2.3 image.version="1.2.3"\n',
                 "deploy/operator.yaml": "image: archipelago-operator:1.2.3\n", "docs/kubernetes.md": "archipelago-$target:1.2.3\n",
                 "tests/cluster/image_build": "archipelago-$target:1.2.3\n", "tests/cluster/images": "archipelago-{target}:1.2.3\n",
                 "operator/a.cc": 'set_version_flag("x " + version());  // "1.2.3"\n'}
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        assert not check(root), check(root)
        for name, text in texts.items():
            bad = 'const char k[] = "1.2.3";' if name.endswith(".cc") else text.replace("1.2.3", "1.2.4")
            (root / name).write_text(bad, encoding="utf-8")
            assert check(root), name
            (root / name).write_text(text, encoding="utf-8")
    print("the checker finds what it should")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    problems = check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(problems) or "one version")
    sys.exit(1 if problems else 0)
