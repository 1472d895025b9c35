#!/usr/bin/env python3
"""Makes qwen3/hadamard.safetensors: logits of the model qwen3 if its weights were stored rotated, by transformers.

    pip install torch transformers safetensors scipy    # made with torch 2.15, transformers 5.23, on a CPU
    tests/data/models/hadamard.py

What enters a linear layer W is rotated: W · (H · (s ∘ x)) / √block, in blocks along x. That is the product of x with W · H · diag(s) / √block, which
transformers is given as floats. So with the head, which is the embedding; and the embedding's rows e are s ∘ (H · e) / √block.

    signs.64, .144, .152         int32, the signs of inputs of these widths
    prompt{0,1,2}.last_logits    f32 [vocab], after the ids of golden.safetensors
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.linalg import hadamard
from transformers import AutoModelForCausalLM

DIRECTORY, BLOCK = Path(__file__).parent / "qwen3", 8

model = AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype=torch.float32, attn_implementation="eager").eval()
rng, out, rotations = np.random.default_rng(0), {}, {}
for width in (64, 144, 152):
    signs = rng.choice([-1, 1], width)
    blocks = np.kron(np.eye(width // BLOCK), hadamard(BLOCK) / np.sqrt(BLOCK))
    rotations[width] = torch.from_numpy(blocks * signs).double()  # of columns: first the signs, then H
    out[f"signs.{width}"] = torch.tensor(signs, dtype=torch.int32)
with torch.no_grad():
    for name, weight in model.named_parameters():
        # The head is the same parameter as the embedding.
        if name.endswith("_proj.weight") or name == "model.embed_tokens.weight":
            weight.copy_(weight.double() @ rotations[weight.shape[1]])
    golden = load_file(DIRECTORY / "golden.safetensors")
    for prompt in ["prompt0", "prompt1", "prompt2"]:
        logits = model(golden[f"{prompt}.ids"].long()[None], use_cache=False).logits[0, -1]
        assert (logits - golden[f"{prompt}.last_logits"]).abs().max() > 1
        out[f"{prompt}.last_logits"] = logits.clone()
save_file(out, DIRECTORY / "hadamard.safetensors")
