#!/usr/bin/env python3
"""Makes qwen3/embeddings.safetensors and gemma3/embeddings.safetensors: vectors of the texts of golden.safetensors, by transformers and
sentence-transformers.

    pip install torch transformers sentence-transformers safetensors    # made with torch 2.15, transformers 5.23, sentence-transformers 6.2, on a CPU
    tests/data/models/embeddings.py [name ...]

    prompt{0,1,2}.{cls,mean,last}             f32 [hidden]: states after the final norm, pooled
    prompt{0,1,2}.{cls,mean,last}.normalized  f32 [hidden]: divided by their length
"""

import sys
from pathlib import Path

from make import load  # before torch, whose environment it sets

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

HERE = Path(__file__).parent
MODES = {"cls": "cls", "mean": "mean", "last": "lasttoken"}

for name in sys.argv[1:] or ["qwen3", "gemma3"]:
    directory = HERE / name
    model = load(directory).model
    golden = load_file(directory / "golden.safetensors")
    vectors = {}
    for prompt in ["prompt0", "prompt1", "prompt2"]:
        ids = golden[f"{prompt}.ids"].long()[None]
        mask = torch.ones_like(ids)
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        for pooling, mode in MODES.items():
            features = {"token_embeddings": states, "attention_mask": mask}
            features = Pooling(states.shape[-1], pooling_mode=mode)(features)
            vectors[f"{prompt}.{pooling}"] = features["sentence_embedding"][0].clone()
            vectors[f"{prompt}.{pooling}.normalized"] = Normalize()(features)["sentence_embedding"][0].clone()
    save_file(vectors, directory / "embeddings.safetensors")
