#!/usr/bin/env python3
"""Makes tests/golden/llama/*.safetensors: an independent Llama-family decoder in plain PyTorch, in float64.

Explicit attention (scores, mask, softmax), explicit rotate_half RoPE, explicit RMSNorm, torch.optim.AdamW and
clip_grad_norm_. Needs the torch of the pinned wheel, nothing else:  python3 make_llama_fixture.py
Each file holds weights ("weight."), the tokens, logits, loss, all gradients ("gradient.") and the weights after three
clipped AdamW steps on the same batch ("after.").
"""
import json
import pathlib
import struct

import torch

HIDDEN, LAYERS, HEADS, KV_HEADS, INTER, VOCAB, CONTEXT, BATCH = 32, 2, 4, 2, 48, 64, 16, 4
RATES = [1e-3, 2e-3, 1.5e-3]
HEAD = HIDDEN // HEADS


def make_weights(tied):
    torch.manual_seed(7 if tied else 8)
    w = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN) * 0.3}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, rows, cols in [("self_attn.q_proj", HEADS * HEAD, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN),
                                 ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN), ("self_attn.o_proj", HIDDEN, HEADS * HEAD),
                                 ("mlp.gate_proj", INTER, HIDDEN), ("mlp.up_proj", INTER, HIDDEN),
                                 ("mlp.down_proj", HIDDEN, INTER)]:
            w[p + name + ".weight"] = torch.randn(rows, cols) * 0.2
        w[p + "input_layernorm.weight"] = 1 + torch.randn(HIDDEN) * 0.2
        w[p + "post_attention_layernorm.weight"] = 1 + torch.randn(HIDDEN) * 0.2
    w["model.norm.weight"] = 1 + torch.randn(HIDDEN) * 0.2
    if not tied:
        w["lm_head.weight"] = torch.randn(VOCAB, HIDDEN) * 0.3
    return {k: v.double().requires_grad_() for k, v in w.items()}  # fp32 values, exact in fp64


def rms_norm(x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def rotate_half(x):
    return torch.cat([-x[..., HEAD // 2:], x[..., :HEAD // 2]], -1)


def rope(x):  # [batch, heads, time, head]
    time = x.shape[2]
    inverse = 1.0 / (10000.0 ** (torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD))
    angle = torch.outer(torch.arange(time, dtype=torch.float64), inverse)
    angle = torch.cat([angle, angle], -1)
    return x * angle.cos() + rotate_half(x) * angle.sin()


def forward(w, ids):
    batch, time = ids.shape
    h = w["model.embed_tokens.weight"][ids]
    mask = torch.full((time, time), float("-inf"), dtype=torch.float64).triu(1)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        x = rms_norm(h, w[p + "input_layernorm.weight"])

        def heads(name, count):
            return (x @ w[p + f"self_attn.{name}.weight"].T).view(batch, time, count, HEAD).transpose(1, 2)

        q, k, v = rope(heads("q_proj", HEADS)), rope(heads("k_proj", KV_HEADS)), heads("v_proj", KV_HEADS)
        k = torch.stack([k[:, j // (HEADS // KV_HEADS)] for j in range(HEADS)], 1)
        v = torch.stack([v[:, j // (HEADS // KV_HEADS)] for j in range(HEADS)], 1)
        attention = torch.softmax(q @ k.transpose(2, 3) / HEAD ** 0.5 + mask, -1) @ v
        h = h + attention.transpose(1, 2).reshape(batch, time, HIDDEN) @ w[p + "self_attn.o_proj.weight"].T
        x = rms_norm(h, w[p + "post_attention_layernorm.weight"])
        gate = x @ w[p + "mlp.gate_proj.weight"].T
        h = h + (gate * torch.sigmoid(gate) * (x @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    h = rms_norm(h, w["model.norm.weight"])
    return h @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def mean_loss(logits, targets):
    return (torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]).mean()


def save(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + 4 * t.numel()]}
        at += 4 * t.numel()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.detach().float().contiguous().numpy().tobytes())


def main():
    folder = pathlib.Path(__file__).parent / "llama"
    folder.mkdir(exist_ok=True)
    for tied in (True, False):
        w = make_weights(tied)
        tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT + 1))
        out = {f"weight.{k}": v.detach().clone() for k, v in w.items()}
        out["tokens"] = tokens.double()
        logits = forward(w, tokens[:, :-1])
        loss = mean_loss(logits, tokens[:, 1:])
        loss.backward()
        out["logits"], out["loss"] = logits, loss.reshape(1)
        out.update({f"gradient.{k}": v.grad.clone() for k, v in w.items()})
        plain = [v for k, v in w.items() if v.dim() == 1 or "embed_tokens" in k]
        decayed = [v for k, v in w.items() if not (v.dim() == 1 or "embed_tokens" in k)]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                                      lr=1.0, betas=(0.9, 0.95), eps=1e-8)
        for rate in RATES:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            mean_loss(forward(w, tokens[:, :-1]), tokens[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(list(w.values()), 1.0)
            optimizer.step()
        out.update({f"after.{k}": v for k, v in w.items()})
        save(folder / ("tied.safetensors" if tied else "untied.safetensors"), out)
        print("tied" if tied else "untied", "loss", loss.item())


if __name__ == "__main__":
    main()
