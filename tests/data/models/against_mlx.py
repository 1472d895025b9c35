#!/usr/bin/env python3
"""Writes a section of docs/internals/model-checks.md: models in MLX's integers, as MLX and this crate compute them. scripts/mlx-check runs it.

The last ones are written by `bitnet quantize --format mlx`, and loaded by mlx-lm. MLX reads the very files that this crate reads. It computes in the type of their scales, so these become floats of 32 bits after loading: the same numbers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import llama, qwen3
from mlx_lm.utils import load_model
from tiny import BASE, LENGTH, YARN, drawn, ours, perplexity, perturbed, put_section, tensors, write

HEADING = "Beside MLX"
# Of a logit; the largest are about 20. Activations are rounded here by at most 2^-14.98 of the largest of 128.
NEAR = 5e-3
# Where embedding and head have more bits than two, they are decoded to 16 bits here, and to 32 there.
DECODED = 2e-2

MLX = {"quantization": {"group_size": 128, "bits": 2}}
ENDS = {"model.embed_tokens": {"group_size": 64, "bits": 4}, "lm_head": {"group_size": 32, "bits": 8}}
MIXED = {"quantization": MLX["quantization"] | ENDS}
CASES = [
    ("Qwen3, YaRN, tied head", BASE | YARN | MLX | {"model_type": "qwen3", "tie_word_embeddings": True}),
    ("Qwen3, head of its own", BASE | MLX | {"model_type": "qwen3"}),
    ("Qwen3, embedding of 4 bits, head of 8", BASE | MIXED | {"model_type": "qwen3"}),
    ("Llama, rotary frequencies / 2", BASE | MLX | {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}),
]
# Floats that are ternary by groups of 128 columns, written here for MLX.
WRITTEN = [
    ("Qwen3, written here", BASE | {"model_type": "qwen3"}),
    ("Qwen3, tied head, written here", BASE | {"model_type": "qwen3", "tie_word_embeddings": True}),
    ("Llama, written here", BASE | {"model_type": "llama"}),
]


def loaded(directory, ids):
    """Logits after every token, of a directory that mlx-lm opens as it is."""
    model, _ = load_model(directory)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0], np.float64)


def theirs(directory, ids):
    """Logits after every token."""
    config = json.loads((directory / "config.json").read_text())
    graph = {"qwen3": qwen3, "llama": llama}[config["model_type"]]
    model = graph.Model(graph.ModelArgs.from_dict(config))
    settings = config["quantization"]
    nn.quantize(model, settings["group_size"], settings["bits"], class_predicate=lambda name, module: hasattr(module, "to_quantized") and settings.get(name, True))
    model.load_weights(str(directory / "model.safetensors"))
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([ids]))[0], np.float64)


def row(program, folder, case, seed):
    name, config = case
    rng = np.random.default_rng(seed)
    own = tensors(config, config["quantization"]["group_size"], rng)
    for kind, weights in (("model", own), ("perturbed", perturbed(own))):
        write(folder / kind, config, weights)
    ids = drawn(program, folder / "model", config, rng)
    found = ours(program, folder / "model", ids)
    near = DECODED if len(config["quantization"]) > 2 else NEAR
    return judged(name, found, theirs(folder / "model", ids), theirs(folder / "perturbed", ids), ids, near)


def written_row(program, command, folder, case, seed):
    name, config = case
    rng = np.random.default_rng(seed)
    own = tensors(config, 128, rng)
    for kind, weights in (("model", own), ("perturbed", perturbed(own))):
        write(folder / kind, config, weights)
        subprocess.run([command, "quantize", folder / kind, folder / f"{kind}-mlx", "--format", "mlx", "--json"], check=True, stdout=subprocess.DEVNULL)
    ids = drawn(program, folder / "model", config, rng)
    found = ours(program, folder / "model", ids)
    return judged(name, found, loaded(folder / "model-mlx", ids), loaded(folder / "perturbed-mlx", ids), ids, NEAR)


def judged(name, found, reference, other, ids, near):
    """Whether logits are near those of MLX and far from those of another model, and a row that says so."""
    difference, control = (float(np.abs(logits - found).max()) for logits in (reference, other))
    same = int((reference.argmax(-1) == found.argmax(-1)).sum())
    perplexities = perplexity(found, ids), perplexity(reference, ids)
    good = difference < near < control and same == LENGTH and abs(perplexities[0] - perplexities[1]) < NEAR
    cells = [name, f"{np.abs(found).max():.0f}", f"{difference:.0e}", f"{control:.1f}", f"{same} of {LENGTH}", *(f"{value:.4f}" for value in perplexities)]
    line = f"| {' | '.join(cells)} |"
    print(line + ("" if good else " not as it should be"), flush=True)
    return good, line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="the example model_row")
    parser.add_argument("command", type=Path, help="the command bitnet")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for seed, case in enumerate(CASES):
            place = Path(folder) / str(seed)
            place.mkdir()
            results.append(row(args.program, place, case, seed))
        for seed, case in enumerate(WRITTEN):
            place = Path(folder) / f"written-{seed}"
            place.mkdir()
            results.append(written_row(args.program, args.command, place, case, seed))
    words = (
        "Tiny random models of 2-bit integers with an f16 scale for every 128 columns, from the same safetensors. Embedding and LM head are quantized too, "
        f"unless the row says otherwise. This crate ran on the CPU, and so did MLX {mx.__version__} (PyPI's wheel for Linux) with the graphs of mlx-lm. Scales "
        "were widened to 32 bits in MLX. An embedding and an LM head of 4 or 8 bits are decoded to 16 bits here. *|Δ|* is the largest difference of a logit after "
        f"each of {LENGTH} tokens of a text that was drawn from the model's logits. The next column has this for a file with one scale half as large again. "
        "*Tokens* counts equal most likely tokens. The perplexities are of that text. The last models were written by `bitnet quantize --format mlx` from floats with a scale for every 128 columns, "
        "with float embeddings, and mlx-lm opened them. `scripts/mlx-check` writes this section, and fails if a row is wrong."
    )
    head = ["| model | largest logit | \\|Δ\\| | scale changed | tokens | perplexity | MLX's |", "| --- | --: | --: | --: | --: | --: | --: |"]
    paragraph = textwrap.fill(words, 150, break_long_words=False, break_on_hyphens=False)
    put_section(HEADING, paragraph + "\n\n" + "\n".join([*head, *(line for _, line in results)]) + "\n")
    sys.exit(not all(good for good, _ in results))


if __name__ == "__main__":
    main()
