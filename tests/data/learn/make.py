"""Makes `golden.csv`: loss and gradient norm of the first steps of `examples/learn`, by PyTorch.

    python3 make.py            writes golden.csv beside this file
    python3 make.py 300        trains for so many steps and prints
    python3 make.py 100 large  the larger model of the example, on a GPU if there is one, with tokens a second

The golden has two models: with activations of 8 bits, and with floats. Rounding to 8 bits is chaotic: where two correct programs differ in the last bit,
a code is sometimes rounded the other way, and all that follows for this token differs by a percent. `python3 make.py noise` shows by how much PyTorch in
`f32` then differs from itself in `f64`: about 1e-3 of the loss and 1e-2 of the norm within 20 steps, and 1e-6 of both with floats.

It needs PyTorch and NumPy alone. Weights, batches and dropout masks come from the same counters as those of the example, so both begin with the same
bits. Quantisers and their gradients are written out here: round, and a gradient that goes straight through (arXiv:1308.3432, arXiv:2402.17764).
"""

import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
TEXT = (HERE / "../../../examples/learn/text.txt").read_bytes()
SMALL = dict(width=64, layers=2, heads=2, inner=128, context=64, batch=4)
LARGE = dict(width=1024, layers=2, heads=16, inner=2816, context=512, batch=16)
DROPOUT, LIMIT, EPS, THETA = 0.1, 1.0, 1e-5, 10000.0
RATE, WARM_UP, EPSILON = 5e-3, 100, 1e-8


def splitmix(count, seed):
    """The first words of SplitMix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(shape, bound, seed):
    """From -bound to bound, by 24 bits of each word."""
    words = splitmix(int(np.prod(shape)), seed) >> np.uint64(40)
    unit = words.astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    return torch.from_numpy(unit * np.float32(bound)).reshape(shape)


def philox(count, seed):
    """Philox 4x32-10 words of element 0 to count - 1 (Salmon et al. 2011)."""
    mask = np.uint64(0xFFFFFFFF)
    n = np.arange((count + 3) // 4, dtype=np.uint64)
    c = [n & mask, n >> np.uint64(32), np.zeros_like(n), np.zeros_like(n)]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ key[0], b & mask, (a >> np.uint64(32)) ^ c[3] ^ key[1], a & mask]
        key = [(key[0] + np.uint64(0x9E3779B9)) & mask, (key[1] + np.uint64(0xBB67AE85)) & mask]
    return np.stack(c, axis=1).reshape(-1)[:count]


def dropout(x, seed):
    keep = philox(x.numel(), seed) >= np.uint64(int(float(np.float32(DROPOUT)) * 2**32))
    factor = np.float32(1) / (np.float32(1) - np.float32(DROPOUT))
    return x * torch.from_numpy(keep.astype(np.float32) * factor).reshape(x.shape).to(x.device)


def straight_through(x, quantized):
    return x + (quantized - x).detach()


def bitlinear(x, w, int8):
    if int8:
        scale = 127 / x.detach().abs().amax(-1, keepdim=True)
        x = straight_through(x, (x.detach() * scale).round().clamp(-128, 127) / scale)
    scale = 1 / w.detach().abs().mean().clamp(min=1e-5)
    wq = straight_through(w, (w.detach() * scale).round().clamp(-1, 1) / scale)
    return x @ wq.T


def rms_norm(x, gain):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gain


def rotate(x, angles):
    low, high = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Model:
    def __init__(self, s, vocabulary, device, int8, dtype):
        self.s, self.vocabulary, self.int8 = s, vocabulary, int8
        width, inner = s["width"], s["inner"]
        self.parameters = []

        def weights(rows, columns):
            bound = np.float32(1) / np.sqrt(np.float32(columns))
            return parameter(uniform((rows, columns), bound, 1000 + len(self.parameters)))

        def parameter(tensor):
            self.parameters.append(tensor.to(device, dtype).requires_grad_())
            return self.parameters[-1]

        def ones(n):
            return parameter(torch.ones(n))

        self.embedding = weights(vocabulary, width)
        self.layers = [
            dict(norm=ones(width), qkv=weights(3 * width, width), out=weights(width, width), mlp_norm=ones(width),
                 up=weights(2 * inner, width), down_norm=ones(inner), down=weights(width, inner))
            for _ in range(s["layers"])
        ]
        self.norm = ones(width)
        self.head = weights(vocabulary, width)
        half = width // s["heads"] // 2
        frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
        self.angles = torch.outer(torch.arange(s["context"], dtype=torch.float64), frequencies).float().to(device, dtype)

    def loss(self, tokens, targets, seed, mask):
        s, int8 = self.s, self.int8
        x = self.embedding[tokens]
        b, t, width = x.shape
        for i, layer in enumerate(self.layers):
            qkv = bitlinear(rms_norm(x, layer["norm"]), layer["qkv"], int8)
            q, k, v = (part.reshape(b, t, s["heads"], -1).transpose(1, 2) for part in qkv.chunk(3, -1))
            y = F.scaled_dot_product_attention(rotate(q, self.angles), rotate(k, self.angles), v, is_causal=True)
            x = x + mask(bitlinear(y.transpose(1, 2).reshape(b, t, width), layer["out"], int8), seed + 2 * i)
            gate, up = bitlinear(rms_norm(x, layer["mlp_norm"]), layer["up"], int8).chunk(2, -1)
            gated = rms_norm(gate.relu().square() * up, layer["down_norm"])
            x = x + mask(bitlinear(gated, layer["down"], int8), seed + 2 * i + 1)
        logits = rms_norm(x, self.norm) @ self.head.T
        return F.cross_entropy(logits.reshape(-1, self.vocabulary), targets.reshape(-1))


def train(s, steps, device="cpu", int8=True, dtype=torch.float32, each=lambda *_: None, mask=dropout):
    characters = sorted(set(TEXT))
    data = np.array([characters.index(byte) for byte in TEXT], dtype=np.int64)
    model = Model(s, len(characters), device, int8, dtype)
    # As in the example, all weights decay.
    optimizer = torch.optim.AdamW(model.parameters, lr=RATE, eps=EPSILON, weight_decay=0.01)
    for step in range(1, steps + 1):
        starts = splitmix(s["batch"], step) % np.uint64(len(data) - s["context"])
        windows = np.stack([data[int(start):][: s["context"] + 1] for start in starts])
        windows = torch.from_numpy(windows).to(device)
        optimizer.zero_grad()
        loss = model.loss(windows[:, :-1], windows[:, 1:], step << 32, mask)
        loss.backward()
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / WARM_UP)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters, LIMIT)
        optimizer.step()
        each(step, loss, norm)


def first(int8, dtype=torch.float32):
    figures = []
    train(SMALL, 20, int8=int8, dtype=dtype, each=lambda step, loss, norm: figures.append((loss.item(), norm.item())))
    return figures


def tokens_a_second(steps):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, warm = [0.0], min(10, steps // 2)

    def clock(step, loss, norm):
        if step in (warm, steps):
            value = loss.item()  # Waits for the device.
            seconds = time.perf_counter() - start[0]
            start[0] = time.perf_counter()
            if step == steps:
                tokens = (steps - warm) * LARGE["batch"] * LARGE["context"]
                print(f"{device}: {tokens / seconds:.0f} tokens a second, loss {value:.4f}")

    train(LARGE, steps, device, each=clock, mask=lambda x, _: F.dropout(x, DROPOUT))


def main():
    match sys.argv[1:]:
        case []:
            rows = zip(first(int8=True), first(int8=False))
            lines = [f"{step},{a:.9g},{b:.9g},{c:.9g},{d:.9g}" for step, ((a, b), (c, d)) in enumerate(rows, 1)]
            (HERE / "golden.csv").write_text("\n".join(["step,int8_loss,int8_norm,float_loss,float_norm", *lines]) + "\n")
        case ["noise"]:
            for int8 in (True, False):
                pairs = zip(first(int8), first(int8, torch.float64))
                loss, norm = (max(abs(a[i] - b[i]) / b[i] for a, b in pairs) for i, pairs in enumerate([list(pairs)] * 2))
                print(f"int8 {int8}: loss {loss:.1e}, norm {norm:.1e}")
        case [steps, "large"]:
            tokens_a_second(int(steps))
        case [steps]:
            train(SMALL, int(steps), each=lambda step, loss, norm: print(step, loss.item(), norm.item()))


if __name__ == "__main__":
    main()
