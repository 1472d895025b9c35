#!/usr/bin/env python3
"""Writes a section of docs/internals/model-checks.md: random models of about 100 million weights, as transformers and this crate compute them. scripts/large-models-check runs it.

The layouts are those of make.py's small models; only sizes differ.
"""

import argparse
import json
import sys
import tempfile
import textwrap
from pathlib import Path

import make  # before torch, whose environment it sets

import numpy as np
import torch
import transformers
from make import FACTORS, GEMMA3, MINICPM, OFFLINE, QWEN3, WHOLE, WINDOW, load, make_tensors, shape
from tiny import DOCUMENT, LENGTH, log_softmax, ours, perplexity, put_section
from safetensors.torch import save_file

HEADING = "Of a hundred million weights"
SIZES = shape(768, 2560, 12, 12, 4, 64, 8192)
COMMON = {"torch_dtype": "bfloat16", "bos_token_id": 8190, "eos_token_id": 8191, "max_position_embeddings": 2048, "rope_theta": 10000.0}
FLOATS, CODES = "floats", "8 bits"
# The root mean square of what logits differ by, over their standard deviation. Activations in floats are rounded here by at most 2^-14.98 of the largest of 128;
# of those in 8 bits some lie so near to a boundary that two correct implementations give them different codes.
NEAR = {FLOATS: 2e-3, CODES: 0.05}

QWEN = {
    "config": QWEN3 | SIZES | COMMON | {
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    },
    "side": torch.bfloat16, "groups": 128, "seed": 0,
}
QUANTIZED = {"quantization_config": OFFLINE | {"use_rms_norm": True, "rms_norm_eps": 1e-6}}
NORMED = {
    "config": QWEN3 | SIZES | COMMON | QUANTIZED | {"rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    "side": torch.bfloat16, "reciprocal": False, "seed": 1,
}
GEMMA = {
    "config": GEMMA3 | SIZES | COMMON | {
        "query_pre_attn_scalar": 64, "sliding_window": 24, "layer_types": [WINDOW, WINDOW, WHOLE] * 4,
        "rope_parameters": {WHOLE: {"rope_type": "default", "rope_theta": 1000000.0}, WINDOW: {"rope_type": "default", "rope_theta": 10000.0}},
    },
    "side": torch.bfloat16, "groups": 128, "seed": 2,
}
MINI = {
    "config": MINICPM | SIZES | COMMON | {
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "scale_emb": 3, "scale_depth": 2.4, "dim_model_base": 256,
        "rope_scaling": {
            "rope_type": "longrope", "short_factor": FACTORS + 25 * FACTORS[-1:], "long_factor": FACTORS + 25 * FACTORS[-1:],
            "original_max_position_embeddings": 512,
        },
    },
    "side": torch.bfloat16, "groups": 128, "seed": 3,
}
CASES = [
    ("Qwen3, groups of 128, YaRN", FLOATS, QWEN),
    ("Qwen3, a norm in every linear layer", CODES, NORMED),
    ("Gemma 3, groups of 128", FLOATS, GEMMA),
    ("Gemma 3, a norm in every linear layer", CODES, GEMMA | {"config": GEMMA["config"] | QUANTIZED, "groups": 0, "reciprocal": False}),
    ("MiniCPM, groups of 128", FLOATS, MINI),
]


def perturbed(tensors):
    """The same tensors, the gates' scales half as large again (where there are none, the matrices). Gemma norms what other matrices make."""
    gates = {name: tensor for name, tensor in tensors.items() if ".mlp.gate_proj.weight" in name and tensor.dtype != torch.uint8}
    return tensors | {name: (tensor.float() * 1.5).to(tensor.dtype) for name, tensor in gates.items()}


def write(directory, config, tensors):
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def logits(model, ids):
    """After every token."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


@torch.no_grad()
def drawn(model, config, rng):
    """A text as the model has it: each token drawn from its logits."""
    ids, past = [int(config["bos_token_id"])], None
    while len(ids) < LENGTH:
        output = model(torch.tensor([ids[-1:]]), past_key_values=past, use_cache=True)
        past = output.past_key_values
        chances = np.exp(log_softmax(output.logits[0, -1].double().numpy()))
        ids.append(int(rng.choice(len(chances), p=chances / chances.sum())))
    return ids


def off(ours, theirs):
    return float(np.sqrt(((ours - theirs) ** 2).mean()) / theirs.std())


def row(program, folder, case):
    name, activations, spec = case
    config, tensors = spec["config"], make_tensors(spec)
    write(folder / "model", config, tensors)
    write(folder / "perturbed", config, perturbed(tensors))
    weights = sum(tensor.numel() * (4 if tensor.dtype == torch.uint8 else 1) for tensor in tensors.values())
    model = load(folder / "model")
    ids = drawn(model, config, np.random.default_rng(spec["seed"]))
    reference = logits(model, ids)
    del model
    found, other = (ours(program, folder / kind, ids) for kind in ("model", "perturbed"))
    difference, control = off(found, reference), off(other, reference)
    same = int((reference.argmax(-1) == found.argmax(-1)).sum())
    good = difference < NEAR[activations] < control
    cells = [name, f"{weights / 1e6:.0f} M", activations, f"{difference:.0e}", f"{control:.2f}", f"{same} of {LENGTH}"]
    line = f"| {' | '.join(cells + [f'{perplexity(values, ids):.4f}' for values in (found, reference)])} |"
    print(line + ("" if good else " not as it should be"), flush=True)
    return good, line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="the example model_row")
    program = parser.parse_args().program
    transformers.logging.set_verbosity_error()
    results = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            results.append(row(program, Path(folder), case))
    words = (
        f"Random models of {SIZES['num_hidden_layers']} layers, {SIZES['hidden_size']} wide, with a vocabulary of {SIZES['vocab_size']}, in files laid out as those "
        f"above. This crate ran on the CPU, and transformers {transformers.__version__} in f32 from the same bytes. MiniCPM was compared with Granite, which has the same "
        "factors. *Off* is the root mean square difference of the logits over their standard deviation. The next column has this for a file whose gates have "
        f"scales half as large again. *Tokens* counts equal most likely tokens after each of {LENGTH} tokens of a text that was drawn from the reference's logits. "
        "The perplexities are of that text. With 8-bit activations, some codes lie so near to a boundary that two correct implementations differ. "
        "`scripts/large-models-check` writes this section, and fails if a row is wrong."
    )
    head = ["| model | weights | activations | off | scales changed | tokens | perplexity | transformers' |", "| --- | --: | --- | --: | --: | --: | --: | --: |"]
    paragraph = textwrap.fill(words, 150, break_long_words=False, break_on_hyphens=False)
    put_section(HEADING, paragraph + "\n\n" + "\n".join([*head, *(line for _, line in results)]) + "\n")
    print(f"{DOCUMENT}: {sum(not good for good, _ in results)} rows not as they should be")
    sys.exit(not all(good for good, _ in results))


if __name__ == "__main__":
    main()
