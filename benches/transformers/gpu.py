#!/usr/bin/env python3
"""Times torch and transformers on a CUDA GPU beside `bitnet bench` on the same GPU, in turns: the shape of BitNet b1.58 2B4T with random weights, whose linear
layers are dense in bf16 there. Prints one JSON object.

    benches/transformers/gpu.py [--bitnet target/release/bitnet] [--rounds 3] [--compiled]

Prompts and greedy decoding by the host's clock, ids read back at every step, as a generator must; products by cuBLAS and attention by torch's
scaled_dot_product_attention, in microseconds of the GPU's clock, where the weights of a product take turns so that no cache has them. --compiled adds
decoding after a token by torch.compile with CUDA graphs and a static cache, which takes minutes to compile.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
import transformers
from transformers import BitNetConfig, BitNetForCausalLM, DynamicCache, StaticCache

PREFILL, CONTEXTS, TOKENS = [128, 512, 2048], [0, 256, 2048], 64
LAYERS = [(3840, 2560), (2560, 2560), (13824, 2560), (6912, 2560), (2560, 6912)]
SHAPE = {
    "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5, "vocab_size": 128256,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "hidden_act": "relu2",
}


def clocked(work, rounds=7):
    """The median of seconds that `work` takes by the host's clock, after two tries."""
    seconds = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def gpu_time(work, calls):
    """The least microseconds of a call, of many in a row, by the GPU's clock."""
    best = float("inf")
    for _ in range(7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(calls):
            work(i)
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / calls)
    return round(best, 1)


def ids(count):
    return torch.arange(count, device="cuda")[None] * 7919 % SHAPE["vocab_size"]


@torch.inference_mode()
def prefill(model):
    def run(prompt):
        return int(model(input_ids=prompt, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())

    return {str(count): round(count / clocked(lambda prompt=ids(count): run(prompt))) for count in PREFILL}


@torch.inference_mode()
def decode(model, compiled=False):
    rates = {}
    for context in CONTEXTS[:1] if compiled else CONTEXTS:
        prompt, longest = ids(max(context, 1)), max(context, 1) + TOKENS + 1
        static = StaticCache(config=model.config, max_cache_len=longest) if compiled else None
        forward = torch.compile(model.forward, mode="reduce-overhead", dynamic=False, fullgraph=True) if compiled else model.forward

        def run():
            """Seconds of the tokens after the first."""
            cache = static if compiled else DynamicCache(config=model.config)
            if compiled:
                cache.reset()
            token = model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for i in range(TOKENS):
                at = torch.tensor([[prompt.shape[1] + i]], device="cuda")
                logits = forward(input_ids=token, position_ids=at, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                token = logits[:, -1:].argmax(-1).clone()
                int(token)
            return time.perf_counter() - start

        seconds = [run() for _ in range(5)]
        rates[str(context)] = round(TOKENS / statistics.median(seconds[2:]), 1)
    return rates


@torch.inference_mode()
def products():
    found = {}
    for rows, columns in LAYERS:
        copies = 4 * 2**28 // (2 * rows * columns)
        weights = [torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for tokens in [1, 16, 128, 512, 2048]:
            x = torch.randn(tokens, columns, device="cuda", dtype=torch.bfloat16)
            found[f"{tokens} x {rows} x {columns}"] = gpu_time(lambda i: torch.nn.functional.linear(x, weights[i % copies]), 200)
    return found


@torch.inference_mode()
def attention():
    found = {}
    for tokens in [128, 512, 2048]:
        q = torch.randn(1, 20, tokens, 128, device="cuda", dtype=torch.float16)
        k, v = (torch.randn(1, 5, tokens, 128, device="cuda", dtype=torch.float16) for _ in range(2))
        call = torch.nn.functional.scaled_dot_product_attention
        found[str(tokens)] = gpu_time(lambda _: call(q, k, v, is_causal=True, enable_gqa=True), 50)
    return found


def ours(command):
    lists = ["--prefill", ",".join(map(str, PREFILL)), "--context-lengths", ",".join(map(str, CONTEXTS)), "--decode-tokens", str(TOKENS)]
    out = {}
    for name, options in {"f32 attention": [], "f16 attention": ["--f16-attention"]}.items():
        run = subprocess.run([command, "bench", "--json", *lists, *options], check=True, capture_output=True, text=True)
        found = json.loads(run.stdout)
        out[name] = {key: found[key] for key in ("adapter", "prefill", "decode") if key in found}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bitnet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    args = parser.parse_args()
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = BitNetForCausalLM(BitNetConfig(**SHAPE)).eval()
    rounds = []
    for _ in range(args.rounds):
        found = {"transformers": {"prefill": prefill(model), "decode": decode(model)}}
        if args.bitnet:
            found["bitnet-wgpu"] = ours(args.bitnet)
        rounds.append(found)
    found = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda,
        "rounds": rounds, "products_us": products(), "attention_us": attention(),
    }
    if args.compiled:
        # What there is, in case the compiler does not end.
        print(json.dumps(found), file=sys.stderr)
        try:
            found["decode_compiled"] = decode(model, compiled=True)
        except Exception as error:  # what torch cannot compile is a result too
            found["decode_compiled"] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
