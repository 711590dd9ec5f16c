#!/usr/bin/env python3
"""The quality experiments' program on a few steps: same tokens data parallel and on islands, same bits twice.

usage: quality_smoke.py QUALITY_RUN SPEC
"""
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

STEPS, TOKENS = 12, 4 * 8 * 32  # four islands, batch 8, context 32


def main():
    program, spec = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        draw = random.Random(1)
        words = ["island", "harbour", "tide", "ferry", "lantern", "rope", "gull", "chart"]
        for name, count in (("train", 20000), ("val", 2000)):
            (pathlib.Path(folder) / name).write_text(" ".join(draw.choice(words) for _ in range(count)))

        def run(*arguments):
            sets = [f"data.train.path={folder}/train", f"data.validation[0].path={folder}/val", "data.validation[0].sequences=64",
                    "model.contextLength=32", "model.hiddenSize=32", "model.intermediateSize=64",
                    f"budget.globalSteps={STEPS}", "inner.warmupSteps=2"]
            command = [program, spec, "--threads", "1", *arguments]
            for one in sets:
                command += ["--set", one]
            got = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            row = json.loads(got.stdout)
            row.pop("seconds")
            assert math.isfinite(row["validationLoss"]) and row["validationLoss"] < math.log(256), row
            return row

        whole = run("--data-parallel")
        assert whole["tokens"] == STEPS * TOKENS and whole["learnerSteps"] == STEPS, whole
        islands = run()
        assert islands == run(), "two runs differ"
        assert islands["islands"] == islands["incarnations"] == 4 and islands["meanParticipants"] > 3, islands
        assert 0.5 * STEPS * TOKENS < islands["tokens"] < 1.5 * STEPS * TOKENS, islands
        rough = run("--availability", "0.5", "--away", "3")
        assert rough["incarnations"] > 4, rough
        wrong = subprocess.run([program, spec, "--step-times", "1,2"], stderr=subprocess.PIPE, check=False, text=True)
        assert wrong.returncode == 1 and wrong.stderr, wrong


if __name__ == "__main__":
    main()
