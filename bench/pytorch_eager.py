#!/usr/bin/env python3
"""The bar for the learner: PyTorch eager of the same wheel, the usual modules, AdamW fused, clip 1.

Prints one JSON line {"precision", "threads", "tokens_per_second"}; bench/training_step.py runs both and prints the ratio.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, LAYERS, HEADS, KV, INTER, VOCAB, CONTEXT, BATCH = 256, 6, 8, 4, 688, 256, 256, 16
HEAD = HIDDEN // HEADS


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.k = nn.Linear(HIDDEN, KV * HEAD, bias=False)
        self.v = nn.Linear(HIDDEN, KV * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, INTER, bias=False)
        self.up = nn.Linear(HIDDEN, INTER, bias=False)
        self.down = nn.Linear(INTER, HIDDEN, bias=False)
        self.norm1 = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-5)

    def forward(self, h, cos, sin):
        b, t, _ = h.shape
        x = self.norm1(h)
        q = self.q(x).view(b, t, HEADS, HEAD).transpose(1, 2)
        k = self.k(x).view(b, t, KV, HEAD).transpose(1, 2)
        v = self.v(x).view(b, t, KV, HEAD).transpose(1, 2)
        q = q * cos.to(q.dtype) + rotate_half(q) * sin.to(q.dtype)
        k = k * cos.to(k.dtype) + rotate_half(k) * sin.to(k.dtype)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        h = h + self.o(a.transpose(1, 2).reshape(b, t, HIDDEN))
        x = self.norm2(h)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        inverse = 1.0 / (10000.0 ** (torch.arange(0, HEAD, 2).float() / HEAD))
        angle = torch.outer(torch.arange(CONTEXT).float(), inverse)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h, self.cos, self.sin)
        return F.linear(self.norm(h), self.embed.weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Model()
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1))
    times = []
    for _ in range(args.steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, VOCAB), tokens[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times[2:])
    print(json.dumps({"precision": args.precision, "threads": args.threads,
                      "tokens_per_second": round(BATCH * CONTEXT / seconds, 1), "loss": loss.item()}))


if __name__ == "__main__":
    main()
