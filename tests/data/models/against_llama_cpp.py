#!/usr/bin/env python3
"""Writes the last section of docs/models.md: GGUF files that `bitnet quantize` writes, as llama.cpp reads them. scripts/llama-cpp-check runs it.

Tiny random models in the layout of published ones are written as GGUF files and run by both. llama.cpp quantises activations in blocks of its own (256
values for TQ2_0, 32 for Q2_0), also where the model has 8-bit activations of whole tokens, or floats. So logits are near each other, not equal: a row
says how near, beside the same for a file of which one scale is half as large again.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import llama_cpp as package
import numpy as np
from llama_cpp import Llama, llama_cpp
from safetensors.numpy import save_file

DOCUMENT = Path(__file__).parents[3] / "docs/models.md"
HEADING = "\n## Written here, read by llama.cpp\n"
TALES = Path(__file__).parents[3] / "assets/tales-22m"
LENGTH, STEPS = 48, 16
# The root mean square of differences of logits over their standard deviation; and how far perplexities may be apart.
NEAR, RATIO = 0.08, 0.05

BASE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 2048, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": 2046,
    "eos_token_id": 2047, "tie_word_embeddings": False,
}
OFFLINE = {"quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
# Name, config.json, columns of a group (0: one scale a matrix), format.
CASES = [
    ("Llama", BASE | OFFLINE | {"model_type": "llama"}, 0, "gguf-tq2_0"),
    ("Llama", BASE | OFFLINE | {"model_type": "llama"}, 0, "gguf-q2_0"),
    ("Llama, scales that are no halves", BASE | OFFLINE | {"model_type": "llama"}, -1, "gguf-tq2_0"),
    ("Llama, rotary frequencies / 2", BASE | OFFLINE | {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}, 0, "gguf-q2_0"),
    ("1bitLLM's BitNet", BASE | OFFLINE | {"model_type": "bitnet", "tie_word_embeddings": True}, 0, "gguf-tq2_0"),
    ("Qwen3, groups of 128, YaRN", BASE | YARN | {"model_type": "qwen3"}, 128, "gguf-q2_0"),
    ("Qwen3, MLX's integers, head and embedding too", BASE | YARN | {"model_type": "qwen3", "quantization": {"group_size": 128, "bits": 2}}, 128, "gguf-q2_0"),
    ("MiniCPM", BASE | {"model_type": "minicpm", "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 128}, 128, "gguf-q2_0"),
]


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
            words = codes.astype(np.uint32).reshape(rows, -1, 16) << (2 * np.arange(16, dtype=np.uint32))
            own.update({f"{name}.weight": np.bitwise_or.reduce(words, -1), f"{name}.scales": scales, f"{name}.biases": -scales})
        else:
            own[f"{name}.weight"] = (codes.astype(np.float16) - 1) * np.repeat(scales, group, 1)

    own = {"model.norm.weight": gains(hidden)}
    for name in ["model.embed_tokens"] + ["lm_head"] * (not config["tie_word_embeddings"]):
        if mlx:
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


def load(path):
    return Llama(str(path), n_ctx=512, n_threads=1, logits_all=True, verbose=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)


def theirs(path, ids):
    """Logits after every token."""
    model = load(path)
    model.eval(ids)
    return np.array(model.scores[: len(ids)], np.float64)


def ours(program, path, prompts):
    ids = [",".join(map(str, prompt)) for prompt in prompts]
    result = json.loads(subprocess.run([program, path, "--cpu", "--steps", "1", *ids], check=True, stdout=subprocess.PIPE, text=True).stdout)
    if "error" in result:
        sys.exit(f"{path}: {result['error']}")
    return np.array(result["last_logits"], np.float64)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def perplexity(logits, ids):
    return float(np.exp(-np.mean([log_softmax(row)[id] for row, id in zip(logits[:-1], ids[1:])])))


def row(arguments, folder, case, seed):
    name, config, group, form = case
    rng, bitnet, program = np.random.default_rng(seed), arguments.bitnet, arguments.program
    own = tensors(config, group, rng)
    files = {}
    for kind, weights in (("model", own), ("perturbed", perturbed(own))):
        write(folder / kind, config, weights)
        files[kind] = folder / f"{kind}.gguf"
        subprocess.run([bitnet, "quantize", folder / kind, files[kind], "--format", form], check=True, stdout=subprocess.DEVNULL)
    # A text as the model has it: each token drawn from its logits.
    ids = [int(config["bos_token_id"])]
    while len(ids) < LENGTH:
        probabilities = np.exp(log_softmax(ours(program, folder / "model", [ids])[0]))
        ids.append(int(rng.choice(len(probabilities), p=probabilities)))
    prompts = [ids[: n + 1] for n in range(LENGTH)]
    source, written = ours(program, folder / "model", prompts), ours(program, files["model"], prompts)
    reference, other = theirs(files["model"], ids), theirs(files["perturbed"], ids)
    spread = float(source.std())
    difference, control = (float(np.sqrt(((logits - source) ** 2).mean())) / spread for logits in (reference, other))
    same = int((reference.argmax(-1) == source.argmax(-1)).sum())
    mean, mean_of = perplexity(source, ids), perplexity(reference, ids)
    equal = bool((source == written).all())
    good = equal and difference < NEAR < control / 2 and abs(mean_of / mean - 1) < RATIO
    cells = [name, form, "yes" if equal else "**no**", f"{difference:.3f}", f"{control:.2f}", f"{same} of {LENGTH}", f"{mean:.2f}", f"{mean_of:.2f}"]
    line = f"| {' | '.join(cells)} |"
    print(line + ("" if good else " not as it should be"), flush=True)
    return good, files["model"], line


def same_tokens(program, path):
    """How many texts have the same tokens in both, of how many."""
    texts = (TALES / "golden/heldout_own.txt").read_text().split("\n\n")[:20]
    texts += ["a  b\n\n c", "12345 6.7", "don't  WE'LL", "naïve café – 東京 🙂", "\t\ttab", " ", "<|end_of_text|>", "x<|begin_of_text|>y"]
    arguments = [word for text in texts for word in ("--text", text)]
    own = json.loads(subprocess.run([program, path, "--cpu", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout)["tokens"]
    model = load(path)
    count = sum(ids == model.tokenize(text.encode(), add_bos=True, special=True) for ids, text in zip(own, texts))
    print(f"{count} of {len(texts)} texts have the same tokens")
    return count, len(texts)


def section(lines, same, texts):
    words = [
        f"Tiny random models (of {BASE['num_hidden_layers']} layers, {BASE['hidden_size']} wide, heads of {BASE['head_dim']}), written by `bitnet "
        f"quantize --format` and read by llama.cpp (llama-cpp-python {package.__version__}, from PyPI) on the CPU. To make this section again: "
        "`scripts/llama-cpp-check`, which fails if a row is not as it should be.",
        "*Same bits*: this crate's logits of the file are those of what it was made from. *Off* is the root mean square of the differences between "
        "llama.cpp's logits and those, over the logits' standard deviation, and beside it the same for a file of which one scale is half as large "
        f"again. *Tokens* counts the most likely next tokens that are the same, after each of {LENGTH} tokens of a text that was drawn from the model's "
        "own logits; the perplexities are of that text. llama.cpp quantises activations in blocks of its own (256 values for TQ2_0, 32 for Q2_0), also "
        "where a model has 8-bit activations of whole tokens, or floats, so that its numbers are near these and not equal.",
        f"Of {texts} texts (stories, numbers, spaces, emoji, names of special tokens), {same} have the same tokens in both.",
    ]
    head = ["| model | format | same bits | off | scale changed | tokens | perplexity | llama.cpp's |", "| --- | --- | --- | --: | --: | --: | --: | --: |"]
    paragraphs = [textwrap.fill(paragraph, 150, break_long_words=False, break_on_hyphens=False) for paragraph in words]
    return HEADING + "\n" + "\n\n".join(paragraphs) + "\n\n" + "\n".join([*head, *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bitnet", type=Path)
    parser.add_argument("program", type=Path, help="the example model_row")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for seed, case in enumerate(CASES):
            (Path(folder) / str(seed)).mkdir()
            results.append(row(arguments, Path(folder) / str(seed), case, seed))
        same, texts = same_tokens(arguments.program, results[0][1])
    DOCUMENT.write_text(DOCUMENT.read_text().partition(HEADING)[0] + section([line for *_, line in results], same, texts))
    sys.exit(not (same == texts and all(good for good, *_ in results)))


if __name__ == "__main__":
    main()
