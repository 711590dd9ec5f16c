#!/usr/bin/env python3
"""Exported models in Hugging Face's transformers.

usage: check_export.py BIN_DIR

For each family: `archipelago run` trains a small model of bytes for a few steps, transformers loads its export, and the
likeliest continuation of a prompt must be the one that `archipelago sample --temperature 0` gives, byte for byte. The same folder
then starts a second run (initFrom.path). Needs transformers and torch.
"""
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers

FAMILIES = {
    "LlamaForCausalLM": ["model.attentionBias=all",
                         "model.rope={theta: 500, scaling: llama3, factor: 4, originalContextLength: 32}"],
    "Qwen2ForCausalLM": ["model.attentionBias=qkv", "model.rope={scaling: linear, factor: 2}"],
    "Qwen3ForCausalLM": ["model.qkNorm=true", "model.headDim=24", "model.rmsNormEps=1.0e-6", "model.tieEmbeddings=false"],
}
PROMPT, TOKENS = "island ", 24
WORDS = ["island ", "ocean ", "never ", "waits ", "for ", "another. "]


def run(binaries, folder, name, sets):
    command = [binaries / "archipelago", "run", pathlib.Path(__file__).parents[2] / "examples/one-island.yaml", "--plain",
               "--output", folder / name, "--set", f"data.train.path={folder}/train.txt", "--set",
               f"data.validation.main.path={folder}/val.txt"]
    for one in sets:
        command += ["--set", one]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        sys.exit(f"{name}: the run failed\n{done.stdout}{done.stderr}")
    return folder / name / "model"


def ours(binaries, model):
    command = [binaries / "archipelago", "sample", model, "--prompt", PROMPT, "--tokens", str(TOKENS), "--temperature", "0"]
    return subprocess.run(command, capture_output=True, check=True).stdout[:len(PROMPT) + TOKENS]


def theirs(model):
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = list(PROMPT.encode())
    with torch.no_grad():
        for _ in range(TOKENS):
            ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
    return type(network).__name__, bytes(ids)


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    words = random.Random(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in ("train.txt", "val.txt"):
            (folder / name).write_text("".join(words.choice(WORDS) for _ in range(20_000)))
        for family, sets in FAMILIES.items():
            model = run(binaries, folder, family, sets + ["budget.globalSteps=40"])
            mine, (loaded, text) = ours(binaries, model), theirs(model)
            if loaded != family or text != mine:
                sys.exit(f"{family}: transformers loads a {loaded} and goes on {text!r}, archipelago sample {mine!r}")
            run(binaries, folder, family + "-more", sets + ["budget.globalSteps=4", "inner.warmupSteps=1",
                                                            f"model.initFrom={{path: {model}}}"])
            print(f"{family}: {text!r} from both")


if __name__ == "__main__":
    main()
