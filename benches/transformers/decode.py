#!/usr/bin/env python3
"""Times torch + transformers on the CPU, for comparison: greedy decode after a short prompt, and prefill. Prints one JSON object.

    pip install torch transformers accelerate
    benches/transformers/decode.py MODEL_DIR [--threads N] [--variants auto-float32-eager,...]

A variant is weights-dtype-execution. Weights: `auto` is the model as transformers loads it (BitLinear layers that quantise their input);
`dense` replaces every BitLinear by a plain linear layer with dequantised weights. That skips the quantisation of activations, so results
differ, but it is what torch runs fastest. Execution: `eager` with a growing cache, or `compiled` (torch.compile) with a static one.
Rates are the median and the best of warm runs. Ids are read back at every step, as a generator must do.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

VARIANTS = [f"{weights}-{dtype}-{execution}" for weights in ("auto", "dense") for dtype in ("float32", "bfloat16")
            for execution in ("eager", "compiled")]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--prompt", type=int, default=8, help="tokens in the prompt before decoding")
    parser.add_argument("--decode", type=int, default=64, help="tokens to decode")
    parser.add_argument("--prefill", type=int, default=128, help="tokens of the timed prefill")
    parser.add_argument("--runs", type=int, default=7)
    return parser.parse_args()


def dense(model):
    """Replaces BitLinear layers by linear layers with their dequantised weights."""
    from transformers.integrations.bitnet import AutoBitLinear, BitLinear, WeightQuant, unpack_weights

    for name, module in list(model.named_modules()):
        if not isinstance(module, (AutoBitLinear, BitLinear)):
            continue
        dtype = model.get_input_embeddings().weight.dtype
        if isinstance(module, BitLinear):
            weight = unpack_weights(module.weight, dtype=torch.float32) / module.weight_scale.float()
        elif module.online_quant:
            weight = WeightQuant.apply(module.weight.float())
        else:
            weight = module.weight.float() * module.weight_scale.float()
        linear = torch.nn.Linear(module.in_features, module.out_features, bias=False, dtype=dtype)
        linear.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        model.set_submodule(name, linear)


def load(path, weights, dtype):
    dtype = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").eval()
    # For a quantized model, transformers ignores `dtype` and keeps the checkpoint's types.
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point() and tensor.dim() > 0:
            tensor.data = tensor.data.to(dtype)
    if weights == "dense":
        dense(model)
    return model


class Runner:
    def __init__(self, path, variant, length):
        weights, dtype, execution = variant.split("-")
        torch.compiler.reset()
        self.model, self.compiled, self.length = load(path, weights, dtype), execution == "compiled", length
        self.forward = torch.compile(self.model.forward, dynamic=False) if self.compiled else self.model.forward
        self.static = StaticCache(config=self.model.config, max_cache_len=length) if self.compiled else None

    def cache(self):
        if not self.compiled:
            return DynamicCache(config=self.model.config)
        self.static.reset()
        return self.static

    def step(self, ids, cache, position):
        positions = torch.arange(position, position + ids.shape[1])[None]
        output = self.forward(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return int(output.logits[0, -1].argmax())

    def prefill(self, prompt):
        """Returns the seconds for the prompt, the first new token, and the cache."""
        cache = self.cache()
        start = time.perf_counter()
        token = self.step(prompt, cache, 0)
        return time.perf_counter() - start, token, cache

    def decode(self, prompt, count):
        """Returns the seconds for `count` steps, and their tokens."""
        _, token, cache = self.prefill(prompt)
        tokens, start = [], time.perf_counter()
        for i in range(count):
            token = self.step(torch.tensor([[token]]), cache, prompt.shape[1] + i)
            tokens.append(token)
        return time.perf_counter() - start, tokens


def rates(tokens, seconds):
    return {"median": round(tokens / statistics.median(seconds), 1), "best": round(tokens / min(seconds), 1)}


@torch.inference_mode()
def measure(args, variant):
    runner = Runner(args.model, variant, max(args.prefill, args.prompt + args.decode + 1))
    torch.manual_seed(0)
    ids = torch.randint(0, runner.model.config.vocab_size, (1, max(args.prefill, args.prompt)))
    prompt, long = ids[:, : args.prompt], ids[:, : args.prefill]
    for _ in range(2):
        _, warm = runner.decode(prompt, args.decode)
        runner.prefill(long)
    decodes = [runner.decode(prompt, args.decode) for _ in range(args.runs)]
    assert all(tokens == warm for _, tokens in decodes)
    prefills = [runner.prefill(long)[0] for _ in range(args.runs)]
    return {
        "decode_tok_s": rates(args.decode, [seconds for seconds, _ in decodes]), "prefill_tok_s": rates(args.prefill, prefills),
        "load_average": round(os.getloadavg()[0], 2), "first_tokens": warm[:8],
    }


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    results = {}
    for variant in args.variants.split(","):
        print(variant, file=sys.stderr)
        try:
            results[variant] = measure(args, variant)
        except Exception as error:  # a variant that torch cannot compile is a result too
            results[variant] = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps({
        "model": args.model, "torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine(),
        "threads": args.threads, "prompt": args.prompt, "decode": args.decode,
        "prefill": args.prefill, "runs": args.runs, "variants": results,
    }, indent=2))


if __name__ == "__main__":
    main()
