#!/usr/bin/env python3
"""Five SIGKILLs of random islands in 120 s: what a kill costs, from one run's own records.

usage: bench/kills.py BIN_DIR [--islands 4|2] [--seed N] [--output DIR]

Prints goodput in unit-seconds and useful goodput, unit-seconds lost per kill, the time until the killed island steps
again (median; split into detection, start, recovery) and until it contributes to a round, and the survivors' p99 step
time over their median. Quotas keep a dead island's core from speeding the others up: half a core for each of four,
a whole one for each of two.
"""
import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
WARM, WINDOW, AFTER, KILLS = 45, 120, 20, 5  # seconds after the first step
INTERVAL = 24  # of kills.yaml: so many steps until the fragments' counters are full


def read_lines(path):
    out = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            pass  # a torn last line
    return out


def train(arguments, output):
    chaos = output.with_suffix(".chaos.yaml")
    chaos.parent.mkdir(parents=True, exist_ok=True)
    chaos.write_text(json.dumps({"seed": arguments.seed, "events": [
        {"rate": {"count": KILLS, "durationSeconds": WINDOW, "startSeconds": WARM, "seed": arguments.seed},
         "action": "kill", "target": "random"}]}))
    command = [str(pathlib.Path(arguments.bin_dir) / "archipelago"), "run", str(HERE / "kills.yaml"), "--plain", "--trace-steps",
               "--chaos", str(chaos), "--output", str(output)]
    if arguments.islands == 2:
        for i in (0, 1):
            command += ["--set", f"datacenters[{i}].learnerUnits=1",
                        "--set", f"datacenters[{i}].template={{resources: {{limits: {{cpu: 1}}}}}}"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=HERE.parent)
    deadline = time.monotonic() + 60 + WARM + WINDOW + AFTER
    while run.poll() is None and time.monotonic() < deadline:
        record = output / "record.json"
        try:
            saved = json.loads(record.read_text())
            if saved["firstStep"] is not None and saved["lastT"] > saved["firstStep"] + WARM + WINDOW + AFTER:
                break
        except (OSError, ValueError):
            pass
        time.sleep(1)
    run.send_signal(signal.SIGINT)
    run.wait(timeout=60)


def survivors_tail(output, kills):
    """p99 of a step over the median, from the learners' own samples of the islands that live."""
    values = [s for line in read_lines(output / "steps.jsonl")
              for unit, s in line["stepSeconds"].items()
              if not any(k["unit"] == unit and k["t"] - 1 < line["t"] < k["t"] + 20 for k in kills)]
    if len(values) < 100:
        return None
    values.sort()
    return values[int(len(values) * 0.99)] / statistics.median(values)


def judge(output):
    events = read_lines(output / "events.jsonl")
    kills = [e for e in events if e["kind"] == "chaos"]
    record = json.loads((output / "record.json").read_text())
    tape = read_lines(output / "metrics.jsonl")
    start = time.mktime(time.strptime(events[0]["time"][:19], "%Y-%m-%dT%H:%M:%S"))
    wall = lambda text: time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + float(text[19:-1]) - start + events[0]["t"]
    rows = []
    for kill in kills:
        unit, t = kill["unit"], kill["t"]
        started = [e["t"] for e in events if e["unit"] == unit and e["reason"] == "Started" and e["t"] > t]
        segments = [s for s in record["units"][unit]["segments"] if s[0] > t]
        answers = [s[0] for s in segments if s[2] != 3]
        steps = [s[0] for s in segments if s[2] in (0, 1)]
        merged = [wall(line["time"]) for line in tape
                  if any(m["unit"] == unit for m in line["members"]) and steps and wall(line["time"]) > steps[0]]
        if started and steps and answers:
            rows.append({"detection": started[0] - t, "start": answers[0] - started[0], "recovery": steps[0] - answers[0],
                         "again": steps[0] - t, "contributes": merged[0] - t if merged else None})
    return kills, rows


def useful(output):
    """Merged tokens from the first possible kill on, over the rate before it."""
    tape = read_lines(output / "metrics.jsonl")
    seconds = lambda line: time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S")) + float(line["time"][19:-1])
    first = seconds(tape[0])
    calm = [(seconds(l), l["mergedTokens"]) for l in tape if l["t"] > 2 * INTERVAL and seconds(l) < first + WARM]
    rest = [(seconds(l), l["mergedTokens"]) for l in tape if seconds(l) >= first + WARM]
    if len(calm) < 20 or len(rest) < 20:
        return None
    rate = (calm[-1][1] - calm[0][1]) / (calm[-1][0] - calm[0][0])
    return (rest[-1][1] - rest[0][1]) / (rest[-1][0] - rest[0][0]) / rate


def median(rows, key):
    values = [r[key] for r in rows if r[key] is not None]
    return round(statistics.median(values), 2) if values else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir")
    parser.add_argument("--islands", type=int, default=4, choices=(2, 4))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="bench-kills")
    parser.add_argument("--judge-only", action="store_true", help="figures of a run that was made before")
    arguments = parser.parse_args()
    output = pathlib.Path(arguments.output).resolve()
    if not arguments.judge_only:
        if output.exists():
            sys.exit(f"{output} exists already")
        train(arguments, output)
    summary = json.loads((output / "summary.json").read_text())
    kills, rows = judge(output)
    lost = (1 - summary["goodput"]) * summary["secondsSinceFirstStep"] * len(summary["learners"])
    tail = survivors_tail(output, kills) if (output / "steps.jsonl").exists() else None
    print(json.dumps({
        "islands": len(summary["learners"]), "kills": len(kills), "seed": arguments.seed,
        "goodput": round(summary["goodput"], 4), "usefulGoodput": useful(output),
        "usefulGoodputOfTheSummary": summary["usefulGoodput"],
        "unitSecondsNotInSteps": round(lost, 2), "perKill": round(lost / max(1, len(kills)), 2),
        "stepsAgainSeconds": median(rows, "again"), "detection": median(rows, "detection"),
        "start": median(rows, "start"), "recovery": median(rows, "recovery"),
        "contributesSeconds": median(rows, "contributes"), "survivorsP99OverMedian": tail, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
