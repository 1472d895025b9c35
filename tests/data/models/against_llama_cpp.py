#!/usr/bin/env python3
"""Writes a section of docs/internals/model-checks.md: GGUF files that `bitnet quantize` writes, as llama.cpp reads them. scripts/llama-cpp-check runs it.

Tiny random models in the layout of published ones are written as GGUF files and run by both. llama.cpp quantises activations in blocks of its own (256
values for TQ2_0, 32 for Q2_0), also where the model has 8-bit activations of whole tokens, or floats. So logits are near each other, not equal: a row
says how near, beside the same for a file of which one scale is half as large again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import llama_cpp as package
import numpy as np
from llama_cpp import Llama, llama_cpp
from tiny import BASE, LENGTH, OFFLINE, TALES, YARN, drawn, ours, perplexity, perturbed, put_section, tensors, write

DATA = Path(__file__).parents[1]
HEADING = "Written here, read by llama.cpp"
# The root mean square of differences of logits over their standard deviation; and how far perplexities may be apart.
NEAR, RATIO = 0.08, 0.05

FACTORS = [1 + 0.1 * pair for pair in range(32)]
LONGROPE = {"rope_scaling": {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS, "original_max_position_embeddings": 256}}
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
    ("MiniCPM, LongRoPE", BASE | LONGROPE | {"model_type": "minicpm", "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 128}, 128, "gguf-q2_0"),
    ("Llama, LongRoPE", BASE | OFFLINE | LONGROPE | {"model_type": "llama"}, 0, "gguf-tq2_0"),
]


def load(path):
    return Llama(str(path), n_ctx=512, n_threads=1, logits_all=True, verbose=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)


def theirs(path, ids):
    """Logits after every token."""
    model = load(path)
    model.eval(ids)
    return np.array(model.scores[: len(ids)], np.float64)


def row(arguments, folder, case, seed):
    name, config, group, form = case
    rng, bitnet, program = np.random.default_rng(seed), arguments.bitnet, arguments.program
    own = tensors(config, group, rng)
    files = {}
    for kind, weights in (("model", own), ("perturbed", perturbed(own))):
        write(folder / kind, config, weights)
        files[kind] = folder / f"{kind}.gguf"
        subprocess.run([bitnet, "quantize", folder / kind, files[kind], "--format", form], check=True, stdout=subprocess.DEVNULL)
    ids = drawn(program, folder / "model", config, rng)
    source, written = ours(program, folder / "model", ids), ours(program, files["model"], ids)
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


def write_pieces(directory):
    """The tokenizer of a directory: the small SentencePiece model of tests/data/text, as transformers writes one."""
    model = json.loads((DATA / "text/sentencepiece.json").read_text())
    ids = {token: id for id, token in enumerate(model["tokens"])}
    order = sorted(ids, key=lambda token: -model["scores"][ids[token]])
    normal = [token for token in order if model["token_types"][ids[token]] == 1]
    merges = [[token[:i], token[i:]] for token in normal for i in range(1, len(token)) if token[:i] in ids and token[i:] in ids]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    begin, a, b = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None,
        "added_tokens": [{"id": id, "content": token, **special} for token, id in ids.items() if model["token_types"][id] in (2, 3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced]},
        "post_processor": {
            "type": "TemplateProcessing", "single": [begin, a], "pair": [begin, a, b],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [model["bos"]], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": ids, "merges": merges},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    return len(ids), model["vectors"]


def same_pieces(arguments, folder):
    """As `same_tokens`, of a file with the vocabulary of a SentencePiece model."""
    config = BASE | OFFLINE | {"model_type": "llama", "vocab_size": 420, "bos_token_id": 1, "eos_token_id": 2}
    write(folder / "pieces", config, tensors(config, 0, np.random.default_rng(0)))
    size, vectors = write_pieces(folder / "pieces")
    assert size == config["vocab_size"]
    file = folder / "pieces.gguf"
    subprocess.run([arguments.bitnet, "quantize", folder / "pieces", file, "--format", "gguf-q2_0"], check=True, stdout=subprocess.DEVNULL)
    # What sentencepiece itself makes of them is known.
    model, texts = load(file), [vector["text"] for vector in vectors]
    right = [[1, *vector["ids"]] == model.tokenize(vector["text"].encode(), add_bos=True, special=False) for vector in vectors]
    print(f"{sum(right)} of {len(vectors)} texts have the tokens of sentencepiece in llama.cpp")
    same, count = same_tokens(arguments.program, file, texts + ["<s>", "a</s>b", "x <unk> y", "</s></s> z"])
    return (same, count) if all(right) else (0, count)


def same_tokens(program, path, more):
    """How many texts have the same tokens in both, of how many."""
    texts = (TALES / "golden/heldout_own.txt").read_text().split("\n\n")[:20]
    texts += ["a  b\n\n c", "12345 6.7", "don't  WE'LL", "naïve café – 東京 🙂", "\t\ttab", " ", *more]
    arguments = [word for text in texts for word in ("--text", text)]
    own = json.loads(subprocess.run([program, path, "--cpu", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout)["tokens"]
    model = load(path)
    others = [text for ids, text in zip(own, texts) if ids != model.tokenize(text.encode(), add_bos=True, special=True)]
    print(f"{len(texts) - len(others)} of {len(texts)} texts have the same tokens", *(f"not {text!r}" for text in others))
    return len(texts) - len(others), len(texts)


def section(lines, same, texts, pieces):
    words = [
        f"Tiny random models ({BASE['num_hidden_layers']} layers, {BASE['hidden_size']} wide, heads of {BASE['head_dim']}), written by `bitnet quantize "
        f"--format` and read by llama.cpp on the CPU (llama-cpp-python {package.__version__}, from PyPI). `scripts/llama-cpp-check` writes this section, and "
        "fails if a row is wrong.",
        "*Same bits*: the file gives the logits of the model that it was made from. *Off* is the root mean square difference between llama.cpp's logits and "
        "those, over the logits' standard deviation. The next column has this for a file with one scale half as large again. *Tokens* counts equal most "
        f"likely tokens after each of {LENGTH} tokens of a text that was drawn from the model's logits. The perplexities are of that text. llama.cpp "
        "quantizes activations in blocks of its own: 256 values for TQ2_0, 32 for Q2_0. Its numbers are therefore near these and not equal.",
        f"{same} of {texts} texts (stories, numbers, spaces, emoji, names of special tokens) have equal tokens in both. With the vocabulary of a small "
        f"SentencePiece model, {pieces[0]} of {pieces[1]} do.",
    ]
    head = ["| model | format | same bits | off | scale changed | tokens | perplexity | llama.cpp's |", "| --- | --- | --- | --: | --: | --: | --: | --: |"]
    paragraphs = [textwrap.fill(paragraph, 150, break_long_words=False, break_on_hyphens=False) for paragraph in words]
    return "\n\n".join(paragraphs) + "\n\n" + "\n".join([*head, *lines]) + "\n"


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
        same, texts = same_tokens(arguments.program, results[0][1], ["<|end_of_text|>", "x<|begin_of_text|>y"])
        pieces = same_pieces(arguments, Path(folder))
    put_section(HEADING, section([line for *_, line in results], same, texts, pieces))
    sys.exit(not (same == texts and pieces[0] == pieces[1] and all(good for good, *_ in results)))


if __name__ == "__main__":
    main()
