#!/usr/bin/env python3
"""Writes an image archive (as docker save does) from a folder, without a daemon. The same folder gives the same bytes."""
import argparse
import hashlib
import io
import json
import os
import pathlib
import tarfile


class HashingWriter:
    def __init__(self, file):
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data):
        self.hash.update(data)
        return self.file.write(data)


def write_layer(root, file):
    """One layer of everything under root, owned by root, without times; returns its digest."""
    writer = HashingWriter(file)

    def plain(info):
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(root.rglob("*")):
            layer.add(path, arcname=path.relative_to(root).as_posix(), recursive=False, filter=plain)
    return writer.hash.hexdigest()


def write_image(roots, tag, config, output):
    """roots: a layer of each. config: OCI image config's "config" part. The archive appears whole or not at all."""
    output = pathlib.Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    layers = []
    with tarfile.open(part, "w") as archive:
        def add(name, data):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

        for number, root in enumerate(roots):
            staged = output.with_name(f"{output.name}.layer{number}")
            with open(staged, "wb") as file:
                digest = write_layer(pathlib.Path(root), file)
            archive.add(staged, arcname=f"{digest}/layer.tar")
            staged.unlink()
            layers.append(digest)
        document = {"architecture": "amd64", "os": "linux", "config": config,
                    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest for digest in layers]}}
        text = json.dumps(document).encode()
        name = hashlib.sha256(text).hexdigest() + ".json"
        add(name, text)
        add("manifest.json", json.dumps([{"Config": name, "RepoTags": [tag],
                                          "Layers": [digest + "/layer.tar" for digest in layers]}]).encode())
    os.replace(part, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, action="append", help="folder of a layer; may be given again")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--entrypoint", required=True, nargs="+")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    write_image(args.root, args.tag, {"Entrypoint": args.entrypoint, "User": args.user}, args.output)


if __name__ == "__main__":
    main()
