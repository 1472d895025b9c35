#!/usr/bin/env python3
"""Makes {qwen3,qwen35}/hadamard.safetensors: logits of these models if their weights were stored rotated, by transformers.

    pip install torch transformers safetensors scipy    # made with torch 2.15, transformers 5.23 and 5.24, on a CPU
    tests/data/models/hadamard.py [name ...]

What enters a linear layer W is rotated: W · (H · (s ∘ x)) / √block, in blocks along x. That is the product of x with W · H · diag(s) / √block, which
transformers is given as floats. So with the head, which may be the embedding; and the embedding's rows e are s ∘ (H · e) / √block.

    signs.WIDTH                  int32, the signs of inputs of these widths
    prompt{0,1,2}.last_logits    f32 [vocab], after the ids of golden.safetensors
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.linalg import hadamard
from transformers import AutoModelForCausalLM

# The widths of inputs, and the size of blocks.
MODELS = {"qwen3": ((64, 144, 152), 8), "qwen35": ((48, 60, 80), 4)}
# A head that is the embedding is the same parameter.
ROTATED = ("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight", "embed_tokens.weight", "lm_head.weight")

for folder in sys.argv[1:] or MODELS:
    directory, (widths, block) = Path(__file__).parent / folder, MODELS[folder]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    rng, out, rotations = np.random.default_rng(0), {}, {}
    for width in widths:
        signs = rng.choice([-1, 1], width)
        blocks = np.kron(np.eye(width // block), hadamard(block) / np.sqrt(block))
        rotations[width] = torch.from_numpy(blocks * signs).double()  # of columns: first the signs, then H
        out[f"signs.{width}"] = torch.tensor(signs, dtype=torch.int32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(ROTATED):
                weight.copy_(weight.double() @ rotations[weight.shape[1]])
        golden = load_file(directory / "golden.safetensors")
        for prompt in ["prompt0", "prompt1", "prompt2"]:
            logits = model(golden[f"{prompt}.ids"].long()[None], use_cache=False).logits[0, -1]
            assert (logits - golden[f"{prompt}.last_logits"]).abs().max() > 1
            out[f"{prompt}.last_logits"] = logits.clone()
    save_file(out, directory / "hadamard.safetensors")
