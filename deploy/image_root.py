#!/usr/bin/env python3
"""Lays out the root file system of an image: one program, the shared libraries that it loads, and nothing else.

  image_root.py operator|outer-optimizer|learner --bin DIR --output DIR [--libtorch DIR] [--data DIR]

OUTPUT/libraries holds what changes rarely, OUTPUT/program the rest: two layers. The Dockerfile and the tests' archives
(tests/cluster/images) use the same layout.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

PROGRAMS = {"operator": "archipelago-operator", "outer-optimizer": "archipelago-outer-optimizer", "learner": "archipelago-learner"}
USER = 65532
LIBRARIES = "usr/lib/x86_64-linux-gnu"  # where the loader of Debian looks without a cache or a search path
LOADER = "ld-linux-x86-64.so.2"
DEMO = "usr/share/archipelago/demo"


class LayoutError(Exception):
    pass


def libtorch_paths(libtorch):
    if not libtorch:
        return ""
    return ":".join(str(path) for path in [libtorch / "torch/lib", *sorted(libtorch.glob("nvidia/*/lib"))])


def closure(program, libtorch=None):
    """{name as it is asked for: file} of every shared library that the program loads, the loader included."""
    environment = dict(os.environ, LD_LIBRARY_PATH=libtorch_paths(libtorch), LC_ALL="C")
    answer = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False, env=environment)
    if answer.returncode != 0:
        raise LayoutError(f"{program}: ldd says {answer.stderr.strip() or answer.stdout.strip()}")
    found = {}
    for line in answer.stdout.splitlines():
        if "not found" in line:
            raise LayoutError(f"{program}: {line.strip()}; is --libtorch missing?")
        match = re.match(r"\s*(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            path = pathlib.Path(match.group(2))
            found[(match.group(1) or path.name).rsplit("/", 1)[-1]] = path.resolve()
    if LOADER not in found:
        raise LayoutError(f"{program}: not a dynamically linked x86-64 program")
    return found


def lay_libraries(root, libraries):
    folder = root / LIBRARIES
    folder.mkdir(parents=True)
    (root / "usr/lib64").mkdir()
    for name, file in sorted(libraries.items()):
        target = root / "usr/lib64" / name if name == LOADER else folder / name
        shutil.copyfile(file, target)
        target.chmod(0o755)
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")


def lay_program(root, program, data):
    (root / "usr/bin").mkdir(parents=True)
    shutil.copyfile(program, root / "usr/bin" / program.name)
    (root / "usr/bin" / program.name).chmod(0o755)
    etc = root / "etc"
    etc.mkdir()
    (etc / "passwd").write_text(f"root:x:0:0:root:/:/nonexistent\narchipelago:x:{USER}:{USER}:archipelago:/tmp:/nonexistent\n")
    (etc / "group").write_text(f"root:x:0:\narchipelago:x:{USER}:\n")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    license_file = pathlib.Path(__file__).resolve().parents[1] / "LICENSE"
    (root / "usr/share/doc/archipelago").mkdir(parents=True)
    shutil.copyfile(license_file, root / "usr/share/doc/archipelago/LICENSE")
    if data:
        (root / DEMO).mkdir(parents=True)
        for name in ("train", "val"):
            shutil.copyfile(data / f"fortunes-{name}.txt", root / DEMO / f"{name}.txt")


def lay_out(target, bin_folder, output, libtorch, data):
    program = bin_folder / PROGRAMS[target]
    if not program.is_file():
        raise LayoutError(f"{program} does not exist; build it first")
    for part in ("libraries", "program"):
        shutil.rmtree(output / part, ignore_errors=True)
    lay_libraries(output / "libraries", closure(program, libtorch))
    lay_program(output / "program", program, data if target == "learner" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=sorted(PROGRAMS))
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--libtorch", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, help="folder with fortunes-train.txt and fortunes-val.txt (learner)")
    args = parser.parse_args()
    if args.target == "learner" and not args.data:
        parser.error("--data is needed for the learner's image: it carries the demo's text")
    os.umask(0o022)
    try:
        lay_out(args.target, args.bin, args.output, args.libtorch, args.data)
    except (LayoutError, OSError) as error:
        sys.exit(f"image_root: {error}")


if __name__ == "__main__":
    main()
