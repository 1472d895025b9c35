"""Tiny random models in the layout of published ones, and what this crate makes of them: for the scripts that compare with other programs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

DOCUMENT = Path(__file__).parents[3] / "docs/internals/model-checks.md"
TALES = Path(__file__).parents[3] / "assets/tales-22m"
LENGTH = 48

BASE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 2048, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": 2046,
    "eos_token_id": 2047, "tie_word_embeddings": False,
}
OFFLINE = {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}


def tensors(config, group, rng):
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    mlx = "quantization" in config

    def gains(n):
        return rng.normal(1, 0.1, n).astype(np.float16)

    def linear(name, rows, columns, gain):
        codes = rng.choice(3, (rows, columns), p=[0.3, 0.4, 0.3]).astype(np.uint8)
        beta = gain / np.sqrt(0.6 * columns)
        if group <= 0:
            scale = np.array([beta], np.float32)
            if group == 0:
                scale = scale.astype(np.float16)
            own[f"{name}.weight"] = sum(quarter << 2 * i for i, quarter in enumerate(codes.reshape(4, -1, columns)))
            own[f"{name}.weight_scale"] = scale
            return
        scales = (beta * rng.uniform(0.5, 1.5, (rows, columns // group))).astype(np.float16)
        if mlx:
            affine(name, codes, 2, scales, -scales)
        else:
            own[f"{name}.weight"] = (codes.astype(np.float16) - 1) * np.repeat(scales, group, 1)

    def affine(name, integers, bits, scales, biases):
        words = integers.astype(np.uint32).reshape(len(integers), -1, 32 // bits) << (bits * np.arange(32 // bits, dtype=np.uint32))
        own.update({f"{name}.weight": np.bitwise_or.reduce(words, -1), f"{name}.scales": scales, f"{name}.biases": biases})

    def table(name, bits, group):
        """Integers of more than two bits, in weights of the size that others have."""
        scales = (rng.uniform(0.5, 1.5, (vocab, hidden // group)) / 2**bits).astype(np.float16)
        affine(name, rng.integers(0, 2**bits, (vocab, hidden)), bits, scales, (-scales * 2 ** (bits - 1)).astype(np.float16))

    own = {"model.norm.weight": gains(hidden)}
    for name in ["model.embed_tokens"] + ["lm_head"] * (not config["tie_word_embeddings"]):
        if settings := mlx and config["quantization"].get(name):
            table(name, settings["bits"], settings["group_size"])
        elif mlx:
            linear(name, vocab, hidden, 0.25 * np.sqrt(0.6 * hidden))
        else:
            own[f"{name}.weight"] = rng.normal(0, 0.25, (vocab, hidden)).astype(np.float16)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if config["model_type"] == "bitnet":
            norms |= {"self_attn.attn_sub_norm": q, "mlp.ffn_sub_norm": inner}
        if config["model_type"] == "qwen3":
            norms |= {"self_attn.q_norm": config["head_dim"], "self_attn.k_norm": config["head_dim"]}
        own |= {f"{prefix}{name}.weight": gains(n) for name, n in norms.items()}
        shapes = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
        for name, shape in shapes.items():
            linear(f"{prefix}self_attn.{name}_proj", *shape, 3.0 if name == "o" else 1.5)
        for name, shape in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
            linear(f"{prefix}mlp.{name}_proj", *shape, 3.0 if name == "down" else 1.5)
    return {name: np.ascontiguousarray(tensor) for name, tensor in own.items()}


def write(directory, config, own):
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    save_file(own, directory / "model.safetensors", {"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALES / name, directory)


def perturbed(own):
    name = "model.layers.1.mlp.down_proj."
    parts = [part for part in ("weight_scale", "scales", "biases") if name + part in own] or ["weight"]
    return own | {name + part: (own[name + part] * 1.5).astype(own[name + part].dtype) for part in parts}


def ours(program, path, ids):
    """Logits after every token."""
    words = [program, path, "--cpu", "--every", ",".join(map(str, ids))]
    result = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if "error" in result:
        sys.exit(f"{path}: {result['error']}")
    return np.array(result["logits"][0], np.float64)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def perplexity(logits, ids):
    return float(np.exp(-np.mean([log_softmax(row)[id] for row, id in zip(logits[:-1], ids[1:])])))


def drawn(program, path, config, rng):
    """A text as the model has it: each token drawn from its logits."""
    ids = [int(config["bos_token_id"])]
    while len(ids) < LENGTH:
        probabilities = np.exp(log_softmax(ours(program, path, ids)[-1]))
        ids.append(int(rng.choice(len(probabilities), p=probabilities)))
    return ids


def put_section(title, body):
    """Writes a section of docs/internals/model-checks.md in the place of the one with its title, or behind all others."""
    text, heading = DOCUMENT.read_text(), f"\n## {title}\n"
    start = text.find(heading)
    start = len(text) if start < 0 else start
    end = text.find("\n## ", start + 1)
    rest = "" if end < 0 else text[end:]
    DOCUMENT.write_text(f"{text[:start]}{heading}\n{body}{rest}")
