#!/usr/bin/env python3
"""Makes tests/golden/hf/: tiny random models as Hugging Face's transformers saves them, and what it computes with them.

Each folder has config.json and the weights (fp32 in shards, bf16, fp16) as `save_pretrained` writes them, and
expected.safetensors: tokens, logits, the mean loss and all gradients in float64 of the very weights that were stored.
Needs transformers and torch:  python3 make_hf_fixture.py
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

HERE = pathlib.Path(__file__).resolve().parent / "hf"
BATCH, CONTEXT = 3, 16
SMALL = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=40, max_position_embeddings=32, bos_token_id=None, eos_token_id=None, pad_token_id=None)
MODELS = {
    "llama3": (LlamaForCausalLM, torch.float32, "12KB", LlamaConfig(
        **SMALL, attention_bias=True, tie_word_embeddings=False, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=16))),
    "mistral": (MistralForCausalLM, torch.float32, "5GB", MistralConfig(
        **SMALL, head_dim=6, sliding_window=None, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="linear", rope_theta=1000.0, factor=2.0))),
    "qwen2": (Qwen2ForCausalLM, torch.float16, "5GB", Qwen2Config(
        **SMALL, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "qwen3": (Qwen3ForCausalLM, torch.bfloat16, "5GB", Qwen3Config(
        **SMALL, head_dim=12, tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
}


def randomise(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) * 0.2
            parameter.copy_(noise + 1 if "norm" in name else noise)


def expected(model):
    """In float64, of the stored weights; eager attention, the plainest there is."""
    tokens = torch.randint(0, SMALL["vocab_size"], (BATCH, CONTEXT + 1))
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
    loss.backward()
    out = {"tokens": tokens, "logits": logits.reshape(-1, logits.shape[-1]), "loss": loss.reshape(1)}
    for name, parameter in model.named_parameters():
        out["gradient." + name] = parameter.grad
    return {name: value.detach().to(torch.float32).contiguous().clone() for name, value in out.items()}


def main():
    for name, (kind, dtype, shard, config) in MODELS.items():
        torch.manual_seed(len(name))
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        model = kind(config)
        randomise(model)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        (folder / "generation_config.json").unlink(missing_ok=True)
        stored = kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
        save_file(expected(stored), folder / "expected.safetensors")


if __name__ == "__main__":
    main()
