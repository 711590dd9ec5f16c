#!/usr/bin/env python3
"""Quality at equal tokens: islands against data parallel, cell by cell (docs/quality.md).

usage: bench/quality/quality.py run BIN_DIR [--stage noise|a|b|smoke] [--only TEXT] [--limit SECONDS] [--steps T]
       bench/quality/quality.py table [--stage ...]
       bench/quality/quality.py list [--stage ...]

Each cell is one run of quality_run; its line goes to results.jsonl beside this script as soon as it ends, and a cell that
is there is not run again: the work can stop at any moment and go on later. Without the data, `run` makes them from
Debian's dict-gcide. --steps makes all cells shorter or longer (another size, another result). One process at a time.
"""
import argparse
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results.jsonl"
SPEC = HERE / "quality.yaml"
SOURCE = pathlib.Path("/usr/share/dictd/gcide.dict.dz")
CHUNK, HELD_OUT = 4096, 100  # every 100th chunk of 4 KiB is for validation

DATA_PARALLEL = ["--data-parallel"]
UNEQUAL = ["--step-times", "1,1,1.22,1.22"]  # half of the islands at 0.82 of the speed
MUON = ["inner.optimizer=muon"]


def lr(value):
    return [f"inner.learningRate={value}"]


def seeds(n):
    return [f"inner.seed={n}", f"model.initFrom.seed={n}"]


def islands(m):
    """As many islands over the same tokens a global step: the batch is split."""
    return [f"datacenters[0].learnerUnits={m // 2}", f"datacenters[1].learnerUnits={m - m // 2}", f"inner.batchSize={32 // m}"]


def cell(name, sets=(), arguments=(), longer=1.0):
    """longer: global steps as a multiple, so that islands that are away part of the time see the same tokens."""
    return {"cell": name, "sets": list(sets), "arguments": list(arguments), "longer": longer}


def noise():
    for n in range(1, 6):
        yield cell(f"dp seed {n}", seeds(n), DATA_PARALLEL)
        yield cell(f"m4 seed {n}", seeds(n), ["--schedule-seed", str(n)])


def stage_a():
    for optimizer, name, rates in (([], "adamw", (1e-3, 2e-3, 8e-3)), (MUON, "muon", (1e-3, 2e-3, 4e-3, 8e-3))):
        for rate in rates:  # adamw at 4e-3: seed 1 of the noise
            yield cell(f"dp {name} {rate:g}", optimizer + lr(rate), DATA_PARALLEL)
            yield cell(f"m4 {name} {rate:g}", optimizer + lr(rate))
    for m in (2, 8):
        yield cell(f"m{m}", islands(m))
    yield cell("original DiLoCo", ["sync.fragments=1", "sync.quorum=4", "sync.uplink=fp32", "sync.downlink=fp32",
                                   "sync.merge=mean", "outer.learningRate=0.7"])
    yield cell("merge mean", ["sync.merge=mean", "outer.learningRate=0.4"])
    yield cell("merge mean, outer 0.7", ["sync.merge=mean", "outer.learningRate=0.7"])
    yield cell("fp32 both", ["sync.uplink=fp32", "sync.downlink=fp32"])
    yield cell("int4 up", ["sync.downlink=fp32"])
    yield cell("int4 down", ["sync.uplink=fp32"])
    yield cell("goodput 0.88", arguments=["--availability", "0.88"], longer=1 / 0.88)
    yield cell("goodput 0.58", arguments=["--availability", "0.58"], longer=1 / 0.58)
    yield cell("unequal, grace", arguments=UNEQUAL, longer=1.1)
    yield cell("unequal, no grace", ["sync.grace.rule=off"], UNEQUAL, longer=1.1)
    yield cell("blend 0.5", ["sync.blend=0.5"])
    yield cell("H 6", ["sync.fragments=6", "sync.interval=6"])
    yield cell("H 96", ["sync.interval=96"])
    for overlap in (4, 8):
        yield cell(f"overlap {overlap}", [f"sync.overlap={overlap}"])
    for rate in (0.25, 0.5, 0.7, 1.0):
        yield cell(f"outer lr {rate}", [f"outer.learningRate={rate}"])
    for momentum in (0.3, 0.6):
        yield cell(f"outer momentum {momentum}", [f"outer.momentum={momentum}"])


def smoke():
    yield cell("smoke dp", ["inner.warmupSteps=2"], DATA_PARALLEL)
    yield cell("smoke m4", ["inner.warmupSteps=2"], ["--availability", "0.7", "--away", "5"])


STAGES = {"noise": noise, "a": stage_a, "smoke": smoke}


def cells(stages, only, steps):
    for stage in stages:
        for one in STAGES[stage]():
            if only and only not in one["cell"]:
                continue
            one["stage"] = stage
            one["steps"] = round(steps * one["longer"])
            yield one


def key(one):
    return (one["cell"], one["steps"])


def read_results(path):
    if not path.exists():
        return {}
    out = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn by an end in mid-write
        out[key(row)] = row
    return out


def prepare():
    train, held = ROOT / "data/gcide-train.txt", ROOT / "data/gcide-val.txt"
    if train.exists() and held.exists():
        return
    if not SOURCE.exists():
        sys.exit(f"quality.py: {SOURCE} is missing: apt-get install dict-gcide")
    text = gzip.decompress(SOURCE.read_bytes())
    train.parent.mkdir(exist_ok=True)
    chunks = [text[i:i + CHUNK] for i in range(0, len(text), CHUNK)]
    for path, part in ((train, [c for i, c in enumerate(chunks) if i % HELD_OUT]), (held, chunks[::HELD_OUT])):
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(b"".join(part))
        temporary.rename(path)


def run(arguments):
    prepare()
    done = read_results(arguments.results)
    todo = [one for one in cells(arguments.stage, arguments.only, arguments.steps) if key(one) not in done]
    print(f"{len(todo)} cells to run", flush=True)
    begin = time.monotonic()
    for one in todo:
        if arguments.limit and time.monotonic() - begin > arguments.limit:
            return print("the time is up; run again to go on")
        command = [str(pathlib.Path(arguments.bin_dir) / "quality_run"), str(SPEC), "--cell", one["cell"],
                   "--threads", str(arguments.threads), *one["arguments"]]
        for assignment in [*one["sets"], f"budget.globalSteps={one['steps']}"]:
            command += ["--set", assignment]
        got = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if got.returncode:
            print(f"{one['cell']}: {got.stderr.strip()}", flush=True)  # the others go on; a later call tries it again
            continue
        row = {**json.loads(got.stdout), "stage": one["stage"], "steps": one["steps"], "arguments": one["arguments"]}
        with arguments.results.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{one['cell']}: {row['validationLoss']:.4f} ({row['tokens'] / 1e6:.2f} M tokens, {row['seconds']:.0f} s)", flush=True)


def spread(rows, prefix):
    losses = [r["validationLoss"] for r in rows if r["cell"].startswith(prefix)]
    return statistics.mean(losses), (statistics.stdev(losses) if len(losses) > 1 else float("nan")), len(losses)


def table(arguments):
    done = read_results(arguments.results)
    rows = [done[key(one)] for one in cells(arguments.stage, arguments.only, arguments.steps) if key(one) in done]
    print("| cell | validation loss | tokens | mean participants | merged share of tokens | seconds |\n|---|---|---|---|---|---|")
    for r in rows:
        participants = f"{r['meanParticipants']:.2f}" if "meanParticipants" in r else ""
        merged = f"{r['mergedFraction']:.3f}" if "mergedFraction" in r else ""
        print(f"| {r['cell']} | {r['validationLoss']:.4f} | {r['tokens'] / 1e6:.2f} M | {participants} | {merged} | {r['seconds']:.0f} |")
    for prefix in ("dp seed", "m4 seed"):
        if any(r["cell"].startswith(prefix) for r in rows):
            mean, deviation, n = spread(rows, prefix)
            print(f"\n{prefix}: mean {mean:.4f}, standard deviation {deviation:.4f} ({n} seeds)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, act in (("run", run), ("table", table), ("list", None)):
        sub = commands.add_parser(name)
        if name == "run":
            sub.add_argument("bin_dir")
            sub.add_argument("--limit", type=float, help="no new cell after so many seconds")
            sub.add_argument("--threads", type=int, default=2)
        sub.add_argument("--stage", action="append", choices=sorted(STAGES))
        sub.add_argument("--only", default="")
        sub.add_argument("--steps", type=int, default=600)
        sub.add_argument("--results", type=pathlib.Path, default=RESULTS)
        sub.set_defaults(act=act or (lambda a: print("\n".join(one["cell"] for one in cells(a.stage, a.only, a.steps)))))
    arguments = parser.parse_args()
    arguments.stage = arguments.stage or ["noise", "a"]
    arguments.act(arguments)


if __name__ == "__main__":
    main()
