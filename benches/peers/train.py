#!/usr/bin/env python3
"""Trains a ternary model with `bitnet train` and in PyTorch, from the same weights, on the same text in the same order, and compares losses and speed.

    benches/peers/train.py --bitnet target/release/bitnet --model assets/tales-22m [--steps 10] [--batch 8] [--context 256] [--activations int8|float]
        [--precision f32|mixed] [--rate 1e-3] [--held-out 16] [--data FILES..] [--bf16] [--compile] [--cpu] [--layers N]

The shape is that of config.json (bitnet, llama or qwen3), the tokenizer that of the same folder; the weights are random. Without --data, the text is the
source of Python's own standard library: files below 32 KB, one a line of JSON. --bf16 has PyTorch's products in bf16 with float weights beside, --compile
uses torch.compile. Prints one JSON object.

Needs torch, tokenizers, safetensors. Quantizers and their gradients are written out here: round, and a gradient that goes straight through
(arXiv:1308.3432, arXiv:2402.17764).
"""

import argparse
import json
import math
import pathlib
import subprocess
import sysconfig
import tempfile
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

MASK = (1 << 64) - 1


def mixed(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def permutation(seed, epoch, count):
    """The order of windows in an epoch: Fisher-Yates by SplitMix64, as the command has it."""
    state = (mixed(seed) + mixed(~(1 << 63 | epoch) & MASK)) & MASK
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        j = mixed(state) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def standard_library(path):
    """Writes the texts of Python's standard library as JSON Lines."""
    with open(path, "w") as lines:
        for file in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
            if "site-packages" in file.parts or not 0 < file.stat().st_size < 32 << 10:
                continue
            try:
                lines.write(json.dumps({"text": file.read_text("utf-8")}) + "\n")
            except UnicodeDecodeError:
                continue


class Text:
    """Windows of tokens: those to learn, in the command's order, and those that are held out."""

    def __init__(self, lines, tokenizer, config, context, held_out):
        bos, end = config.get("bos_token_id"), config["eos_token_id"]
        end = end[0] if isinstance(end, list) else end
        texts = [json.loads(line)["text"] for line in open(lines)]
        ids = []
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            ids += [bos] * (bos is not None and bos != end) + encoding.ids + [end]
        self.ids, self.context = torch.tensor(ids), context
        windows = (len(ids) - 1) // context
        self.train, self.held = range(windows - held_out), range(windows - held_out, windows)
        self.epoch = self.order = None

    def windows(self, numbers, device):
        rows = torch.stack([self.ids[n * self.context : (n + 1) * self.context + 1] for n in numbers]).to(device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]

    def batch(self, step, size, device):
        numbers = []
        for at in range(step * size, (step + 1) * size):
            epoch, place = divmod(at, len(self.train))
            if epoch != self.epoch:
                self.epoch, self.order = epoch, permutation(0, epoch, len(self.train))
            numbers.append(self.order[place])
        return self.windows(numbers, device)


def shapes(c):
    """The names and shapes of all weights."""
    h, inner, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    dim = c.get("head_dim") or h // heads
    kv = c.get("num_key_value_heads", heads) * dim
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "self_attn.q_proj.weight", (heads * dim, h)
        yield p + "self_attn.k_proj.weight", (kv, h)
        yield p + "self_attn.v_proj.weight", (kv, h)
        yield p + "self_attn.o_proj.weight", (h, heads * dim)
        if c["model_type"] == "bitnet":
            yield p + "self_attn.attn_sub_norm.weight", (heads * dim,)
            yield p + "mlp.ffn_sub_norm.weight", (inner,)
        if c["model_type"] == "qwen3":
            yield p + "self_attn.q_norm.weight", (dim,)
            yield p + "self_attn.k_norm.weight", (dim,)
        yield p + "post_attention_layernorm.weight", (h,)
        yield p + "mlp.gate_proj.weight", (inner, h)
        yield p + "mlp.up_proj.weight", (inner, h)
        yield p + "mlp.down_proj.weight", (h, inner)
    yield "model.norm.weight", (h,)
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", (c["vocab_size"], h)


def ternary(w):
    scale = w.abs().mean().clamp(min=1e-5)
    return w + ((w / scale).round().clamp(-1, 1) * scale - w).detach()


def int8(x):
    scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return x + ((x * scale).round().clamp(-128, 127) / scale - x).detach()


class Model(torch.nn.Module):
    def __init__(self, c, weights, activations, context, device):
        super().__init__()
        self.c, self.activations = c, activations
        self.names = {name: name.replace(".", "/") for name in weights}
        for name, weight in weights.items():
            self.register_parameter(self.names[name], torch.nn.Parameter(weight.to(device)))
        self.dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
        rates = theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float().to(device))
        self.register_buffer("sin", angles.sin().float().to(device))

    def weight(self, name):
        return getattr(self, self.names[name])

    def norm(self, x, name):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight(name), self.c["rms_norm_eps"])

    def linear(self, x, *names):
        x = int8(x) if self.activations == "int8" else x
        return [F.linear(x, ternary(self.weight(name))) for name in names]

    def rotated(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def layer(self, x, p):
        c, is_bitnet = self.c, self.c["model_type"] == "bitnet"
        heads = lambda x: x.unflatten(-1, (-1, self.dim)).transpose(1, 2)
        q, k, v = map(heads, self.linear(self.norm(x, p + "input_layernorm.weight"), *(f"{p}self_attn.{s}_proj.weight" for s in "qkv")))
        if c["model_type"] == "qwen3":
            q, k = self.norm(q, p + "self_attn.q_norm.weight"), self.norm(k, p + "self_attn.k_norm.weight")
        q, k = self.rotated(q), self.rotated(k)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        y = self.norm(y, p + "self_attn.attn_sub_norm.weight") if is_bitnet else y
        x = x + self.linear(y, p + "self_attn.o_proj.weight")[0]
        gate, up = self.linear(self.norm(x, p + "post_attention_layernorm.weight"), p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight")
        y = (F.relu(gate).square() if is_bitnet else F.silu(gate)) * up
        y = self.norm(y, p + "mlp.ffn_sub_norm.weight") if is_bitnet else y
        return x + self.linear(y, p + "mlp.down_proj.weight")[0]

    def forward(self, ids, targets):
        x = F.embedding(ids, self.weight("model.embed_tokens.weight"))
        for n in range(self.c["num_hidden_layers"]):
            x = self.layer(x, f"model.layers.{n}.")
        head = "model.embed_tokens.weight" if self.c.get("tie_word_embeddings") else "lm_head.weight"
        logits = F.linear(self.norm(x, "model.norm.weight"), self.weight(head))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def rate_at(step, args):
    """Warm-up of a tenth, then a cosine to a tenth, as the command has it."""
    warm = args.steps // 10
    if step <= warm:
        return args.rate * step / warm
    done = (step - warm) / max(args.steps - warm, 1)
    return args.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def in_torch(args, config, weights, text, device):
    model = Model(config, weights, args.activations, args.context, device)
    call = torch.compile(model) if args.compile else model
    gains = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}],
        lr=args.rate, betas=(0.9, 0.95), eps=1e-8, fused=device == "cuda",
    )
    cast = lambda: torch.autocast(device, torch.bfloat16, enabled=args.bf16)
    losses, seconds = [], []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step in range(args.steps):
        start = time.perf_counter()
        with cast():
            loss = call(*text.batch(step, args.batch, device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step + 1, args)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    held = [text.windows([n], device) for n in text.held]
    with torch.no_grad(), cast():
        held = sum(model(*window).item() for window in held) / len(held)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"losses": losses, "seconds": seconds, "held_out_loss": held, "bytes": peak}


def by_command(args, folder, lines):
    out = folder / "out"
    command = [args.bitnet, "train", "--init", folder / "init", "--tokenizer", args.model, "--data", lines, "--out", out, "--steps", args.steps]
    command += ["--batch", args.batch, "--context", args.context, "--lr", args.rate, "--activations", args.activations]
    command += ["--precision", args.precision]
    command += ["--held-out", args.held_out, "--save-every", args.steps, "--log-every", max(args.steps // 20, 1), "--json"]
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    log = [json.loads(line) for line in open(out / "log.jsonl")]
    steps = [line for line in log if "loss" in line]
    return {"losses": [s["loss"] for s in steps], "seconds": [s["seconds"] for s in steps], "held_out_loss": report["held_out_loss"], "adapter": report["adapter"]}


def rate(run, tokens):
    """Tokens a second, without the first fifth of the steps."""
    seconds = run["seconds"][len(run["seconds"]) // 5 :]
    return tokens * len(seconds) / sum(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bitnet", required=True)
    parser.add_argument("--model", type=pathlib.Path, default="assets/tales-22m")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--activations", choices=["int8", "float"], default="int8")
    parser.add_argument("--precision", choices=["f32", "mixed"], default="f32", help="of the command's products")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=int, default=16)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="another number of layers than config.json's")
    for flag in ["bf16", "compile", "cpu"]:
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() and not args.cpu else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = pathlib.Path(tempfile.mkdtemp())
    config = json.loads((args.model / "config.json").read_text())
    config.pop("quantization_config", None)
    config["num_hidden_layers"] = args.layers or config["num_hidden_layers"]
    if args.data is None:
        args.data = folder / "text.jsonl"
        standard_library(args.data)
    torch.manual_seed(0)
    weights = {name: torch.randn(shape) * 0.02 if len(shape) > 1 else torch.ones(shape) for name, shape in shapes(config)}
    (folder / "init").mkdir()
    save_file(weights, folder / "init/model.safetensors")
    (folder / "init/config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    text = Text(args.data, tokenizer, config, args.context, args.held_out)
    ours = by_command(args, folder, args.data)
    theirs = in_torch(args, config, weights, text, device)
    tokens = args.batch * args.context
    apart = [abs(a / b - 1) for a, b in zip(ours["losses"], theirs["losses"])]
    print(json.dumps({
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda" else "CPU", "adapter": ours["adapter"],
        "tokens_of_text": len(text.ids), "steps": args.steps, "tokens_per_step": tokens, "activations": args.activations, "precision": args.precision,
        "losses": {"bitnet": ours["losses"][:10], "torch": theirs["losses"][:10], "apart": apart[:10]},
        "last_loss": [sum(run["losses"][-20:]) / len(run["losses"][-20:]) for run in (ours, theirs)],
        "held_out_perplexity": [math.exp(run["held_out_loss"]) for run in (ours, theirs)],
        "tokens_per_second": [rate(run, tokens) for run in (ours, theirs)], "torch_peak_bytes": theirs["bytes"],
    }, indent=1))


if __name__ == "__main__":
    main()
