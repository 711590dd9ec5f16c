#!/usr/bin/env python3
"""Runs bench/pytorch_eager.py and training_step_bench in turn, several times, and prints the ratio of the medians.

  python3 bench/training_step.py BUILD/bin/training_step_bench   (the python of an environment with the wheel's torch)
"""
import json
import pathlib
import statistics
import subprocess
import sys


def one(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["tokens_per_second"]


def main():
    ours = sys.argv[1]
    eager = pathlib.Path(__file__).parent / "pytorch_eager.py"
    threads = sys.argv[2] if len(sys.argv) > 2 else "2"
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    for precision in ("fp32", "bf16"):
        a, b = [], []
        for _ in range(repeats):
            a.append(one([ours, precision, threads]))
            b.append(one([sys.executable, str(eager), "--precision", precision, "--threads", threads]))
        a, b = statistics.median(a), statistics.median(b)
        print(f"{precision}, {threads} threads: learner {a:.0f} tokens/s, PyTorch eager {b:.0f}, ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
