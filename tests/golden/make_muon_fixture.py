#!/usr/bin/env python3
"""Makes tests/golden/muon.safetensors with torch.optim.Muon: three steps on a wide, a tall and a square matrix.

Needs the torch of the pinned wheel, nothing else:  python3 make_muon_fixture.py
For each matrix: "weight.", "gradient.<step>.", "after.". PyTorch's iterations run in bf16.
"""
import pathlib

import torch

from make_llama_fixture import save

SHAPES = {"wide": (24, 40), "tall": (40, 24), "square": (32, 32)}
RATES = [1e-2, 2e-2, 1.5e-2]


def main():
    torch.manual_seed(11)
    out = {}
    for name, shape in SHAPES.items():
        w = torch.nn.Parameter(torch.randn(shape) * 0.1)
        out[f"weight.{name}"] = w.detach().clone()
        optimizer = torch.optim.Muon([w], lr=RATES[0], weight_decay=0.1, momentum=0.95, nesterov=True,
                                     adjust_lr_fn="match_rms_adamw")
        for i, rate in enumerate(RATES):
            w.grad = torch.randn(shape)
            out[f"gradient.{i}.{name}"] = w.grad.clone()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        out[f"after.{name}"] = w.detach().clone()
    save(pathlib.Path(__file__).parent / "muon.safetensors", out)


if __name__ == "__main__":
    main()
