"""Makes `golden.safetensors`: results and gradients of ops by PyTorch, in `f64`, which `tests/torch` compares with ours.

    python3 make.py

It needs PyTorch, NumPy and safetensors. A case has its inputs (`name/in0`, ..), the gradient of its result (`name/dy`), and what comes of them: its
result or results, then the gradients of its inputs (`name/out0`, ..). Seeds follow from names. Numbers of cases whose names end with `_f16` are halves, in
`f32`.
"""

import pathlib
import runpy
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

torch.set_default_dtype(torch.float64)
GOLDEN = {}


def rng(name):
    return np.random.default_rng(zlib.crc32(name.encode()))


def case(name, f, *inputs, gradients=True):
    """Inputs are shapes (numbers from -2 to 2), or arrays of `f32` or `u32`."""
    random = rng(name)

    def numbers(shape):
        return random.uniform(-2, 2, shape).astype(np.float16 if name.endswith("_f16") else np.float32).astype(np.float32)

    arrays = [numbers(x) if isinstance(x, tuple) else x for x in inputs]
    xs = [torch.from_numpy(a.astype(np.float64 if a.dtype == np.float32 else np.int64)) for a in arrays]
    floats = [x.requires_grad_() for x in xs if x.is_floating_point()] if gradients else []
    results = f(*xs)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    if gradients:
        dy = numbers(tuple(results[0].shape))
        GOLDEN[f"{name}/dy"] = dy
        results += torch.autograd.grad(results[0], floats, torch.from_numpy(dy.astype(np.float64)))
    for i, array in enumerate(arrays):
        GOLDEN[f"{name}/in{i}"] = array
    for i, result in enumerate(results):
        array = result.detach().numpy()
        GOLDEN[f"{name}/out{i}"] = np.asarray(array, np.float32 if result.is_floating_point() else np.uint32, order="C")


def positive(name, shape):
    return rng(name + "+").uniform(0.2, 4, shape).astype(np.float32)


def ids(name, count, below):
    return rng(name + "#").integers(0, below, count).astype(np.uint32)


def straight_through(x, quantized):
    return x + (quantized - x).detach()


def ternary(w, **over):
    """With a scale for all, or one over these dimensions."""
    scale = 1 / w.abs().mean(**over).clamp(min=1e-5)
    return straight_through(w, (w * scale).round().clamp(-1, 1) / scale)


def ternary_rows(w):
    return ternary(w, dim=-1, keepdim=True)


def ternary_groups(w, size=16):
    return ternary_rows(w.unflatten(-1, (-1, size))).flatten(-2)


def ternary_matrices(w):
    return ternary(w, dim=(-2, -1), keepdim=True).flatten(0, 1)


def block_floats(x):
    """Multiples of the smallest power of two of which the largest magnitude of a row is less than 127·2^8: rows are one block."""
    unit = 2 ** ((x.detach().abs().amax(-1, keepdim=True) / 32512).log2().floor() + 1)
    return straight_through(x, (x / unit).round() * unit)


def block_floats_of_groups(x):
    """A block for sixteen columns."""
    return block_floats(x.unflatten(-1, (-1, 16))).flatten(-2)


def rms_norm(x, gain):
    return F.rms_norm(x, x.shape[-1:], gain, 1e-5)


def rms_norm_heads(qkv, query_gain, key_gain):
    """Of two query heads and a key head; a value head stays."""
    q, k, v = qkv.unflatten(-1, (4, -1)).split([2, 1, 1], 1)
    return torch.cat([rms_norm(q, query_gain), rms_norm(k, key_gain), v], 1).flatten(1)


def rotate(x):
    """Halves of heads [.., tokens, heads, head_dim] by position / 10000^(i / half)."""
    low, high = x.chunk(2, -1)
    half = low.shape[-1]
    angles = torch.outer(torch.arange(x.shape[-3]).double(), 10000 ** (-torch.arange(half).double() / half))[:, None]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


def gelu_tanh_gate(x):
    gate, up = x.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def causal_softmax(x):
    n, m = x.shape[-2:]
    return x.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -torch.inf).softmax(-1)


def stepped(optimizer, steps, w, *gradients):
    w = w.detach().clone().requires_grad_()
    optimizer = optimizer([w])
    for gradient in gradients[:steps]:
        w.grad = gradient.clone()
        optimizer.step()
    return w


def lion(w, *gradients):
    """Chen et al. 2023, arXiv:2302.06675, which PyTorch has not."""
    mean = torch.zeros_like(w)
    for gradient in gradients:
        w = (1 - 0.02 * 0.1) * w - 0.02 * (0.9 * mean + 0.1 * gradient).sign()
        mean = 0.99 * mean + 0.01 * gradient
    return w


def clipped(limit, *gradients):
    parameters = [torch.zeros_like(g).requires_grad_() for g in gradients]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    return [norm] + [parameter.grad for parameter in parameters]


SHAPE = (3, 11)
for name, f in {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "square": torch.square, "scale": lambda x: 1.7 * x, "clamp": lambda x: x.clamp(-1, 1.5),
    "relu": F.relu, "leaky_relu": lambda x: F.leaky_relu(x, 0.01), "relu2": lambda x: F.relu(x) ** 2, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sigmoid": F.sigmoid, "tanh": torch.tanh, "softplus": F.softplus,
}.items():
    case(name, f, SHAPE)
for name, f in {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal}.items():
    case(name, f, positive(name, SHAPE))
for name, f in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "minimum": torch.minimum, "maximum": torch.maximum}.items():
    case(name, f, (3, 1, 5), (4, 1))
case("pow", torch.pow, positive("pow", (3, 1, 5)), (4, 1))
for name, f in {
    "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
}.items():
    some = [rng(name + side).integers(0, 3, (4, 6)).astype(np.float32) for side in "ab"]
    case(name, lambda a, b: f(a, b).long(), *some, gradients=False)
case("select", lambda c, a, b: torch.where(c > 0, a, b), ids("select", (3, 4), 2), (3, 4), (3, 4))

BOX = (2, 7, 3)
for name, f in {
    "sum": torch.sum, "mean": torch.mean, "norm": torch.linalg.vector_norm, "max": torch.amax, "min": torch.amin,
    "variance": lambda x, dim: torch.var(x, dim, correction=1),
}.items():
    case(name, lambda x: f(x, dim=1), BOX)
case("absmax", lambda x: x.abs().amax(1), BOX, gradients=False)
case("argmax", lambda x: x.argmax(1), BOX, gradients=False)
case("argmin", lambda x: x.argmin(1), BOX, gradients=False)
case("prefix_sum", lambda x: x.cumsum(-1), (3, 40))
case("prefix_sum_exclusive", lambda x: x.cumsum(-1) - x, (3, 40))
case("permute", lambda x: x.permute(2, 0, 1), BOX)
case("slice", lambda x: x[:, 2:5], BOX)
case("concat", lambda a, b: torch.cat([a, b], 1), (2, 3, 3), (2, 4, 3))
case("pad", lambda x: F.pad(x, (0, 2, 1, 0), value=0.5), (3, 4))
case("gather", lambda x, i: x[i], (5, 6), ids("gather", 9, 5))
case("one_hot", lambda i: F.one_hot(i, 7).double(), ids("one_hot", 6, 7), gradients=False)
case("softmax", lambda x: x.softmax(-1), SHAPE)
case("log_softmax", lambda x: x.log_softmax(-1), SHAPE)
case("causal_softmax", causal_softmax, (2, 4, 6))
case("masked_softmax", lambda x, mask: x.masked_fill(mask == 0, -torch.inf).softmax(-1), (2, 4, 6), ids("masked_softmax", 8, 2).reshape(2, 4, 1) | np.uint32([0, 1, 0, 1, 1, 0]))
case("cross_entropy", lambda x, i: F.cross_entropy(x, i, reduction="none", ignore_index=3, label_smoothing=0.1), (6, 9), ids("cross_entropy", 6, 9))
case("layer_norm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-5), (4, 19), (19,), (19,))
case("rms_norm", rms_norm, (4, 19), (19,))
case("rotate", rotate, (2, 5, 3, 8))
case("matmul", torch.matmul, (2, 5, 7), (2, 7, 6))
case("matmul_transposed", lambda a, b: a.mT @ b.mT, (7, 5), (6, 7))
case("bitlinear_float", lambda x, w: x @ ternary(w).T, (4, 37), (10, 37))
case("relu2_gate", lambda x: F.relu(x[:, :6]) ** 2 * x[:, 6:], (4, 12))
case("silu_gate", lambda x: F.silu(x[:, :6]) * x[:, 6:], (4, 12))
case("gelu_tanh_gate", gelu_tanh_gate, (4, 12))


def fake_quantized_weights(w):
    """Part of the way to ternary, and a gradient within their range alone."""
    scale = 1 / w.abs().mean()
    within = torch.where((w * scale).abs() <= 1, w, w.detach())
    return straight_through(within, w + 0.6 * ((w * scale).round().clamp(-1, 1) / scale - w))


def fake_quantized_activations(x):
    scale = 127 / x.abs().amax(-1, keepdim=True)
    return straight_through(x, (x * scale).round().clamp(-128, 127) / scale)


def quantized_rows(x, scale, zero, smallest, largest):
    """By PyTorch's fake quantisation, which is in `f32`; scale and zero point are one a row, or one for all."""
    scale, zero = scale.float().expand(len(x)), zero.int().expand(len(x))
    return torch.fake_quantize_per_channel_affine(x.float(), scale, zero, 0, smallest, largest).double()


def integers(w, bits, group=None, symmetric=False):
    """Steps of a row, or of `group` columns, and a gradient straight through them."""
    rows, most = w.detach().reshape(-1, group or w.shape[-1]), 2**bits - 1
    below, above = rows.amin(1).clamp(max=0), rows.amax(1).clamp(min=0)
    if symmetric:
        scale, zero = torch.maximum(-below, above) / (most // 2), torch.full_like(below, most // 2 + 1)
    else:
        scale = (above - below) / most
        zero = (-below / scale).round()
    return straight_through(w, quantized_rows(rows, scale, zero, 0, most).reshape(w.shape))


def signs(w, dim=None):
    """BitNet's binary weights, of the whole tensor or of its rows."""
    means = dict(dim=dim, keepdim=True) if dim else {}
    return straight_through(w, torch.where(w > w.mean(**means), 1, -1) * w.abs().mean(**means))


def codes_of_a_range(x, low, high):
    """Activations between two numbers, what they are multiplied by, and the code of 0."""
    scale = 255 / (high - low)
    zero = (-low * scale).round() - 128
    return quantized_rows(x, 1 / scale, zero, -128, 127), scale, zero


def absmax_codes(x, largest, levels):
    """Activations of as many levels on either side of 0, and what they are multiplied by."""
    scale = levels / largest
    return quantized_rows(x, 1 / scale, torch.zeros(()), -levels - 1, levels), scale


def stochastic(x, seed):
    """Codes of 8 bits, rounded up as often as what is left says, by the random words of `dropout`; and what they are multiplied by."""
    scale = 127 / x.abs().amax(1, keepdim=True)
    up = torch.from_numpy((philox(x.numel(), seed) >> np.uint64(8)).astype(np.float64) * 2**-24).reshape(x.shape)
    return ((x * scale + up).floor().clamp(-127, 127)) / scale, scale[:, 0]


def hadamard(x):
    h = torch.ones(1, 1)
    for _ in range(3):
        h = torch.kron(h, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    return (x.unflatten(-1, (-1, 8)) @ h / 8**0.5).flatten(-2)


def grouped_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0), is_causal=True)


case("flash_attention", grouped_attention, (4, 6, 8), (2, 6, 8), (2, 6, 8))
case("linear_cross_entropy", lambda x, w, i: F.cross_entropy(x @ w.T, i, reduction="none", ignore_index=3), (6, 5), (11, 5),
     ids("linear_cross_entropy", 6, 11))
case("fake_quantize_weights", fake_quantized_weights, (5, 12))
case("fake_quantize_activations", fake_quantized_activations, (5, 12))
case("hadamard", hadamard, (3, 16))
case("matmul_with", lambda a, b, bias: F.gelu(a @ b + bias), (5, 7), (7, 6), (6,))
case("binarize", lambda x: straight_through(x.clamp(-1, 1), torch.where(x > 0, 1.0, -1.0)), SHAPE)
# The same random words, from that file's own seeds.
learn = runpy.run_path(str(pathlib.Path(__file__).parent / "../learn/make.py"))
dropout, philox = learn["dropout"], learn["philox"]
case("dropout", lambda x: dropout(x, 5 << 32 | 7), (5, 9))
case("relu_dropout", lambda x: dropout(F.relu(x), 5 << 32 | 7), (5, 9))
case("rms_norm_fake_quantize", lambda x, gain: fake_quantized_activations(rms_norm(x, gain)), (4, 19), (19,))
case("rms_norm_heads", rms_norm_heads, (3, 32), (8,), (8,), gradients=False)

case("bitlinear", lambda x, w: fake_quantized_activations(x) @ ternary(w).T, (4, 37), (5, 37))
for bits in (2, 4, 8):
    case(f"quantize_weights_int{bits}", lambda w: integers(w, bits), (3, 37), gradients=False)
    case(f"quantize_weights_int{bits}_symmetric", lambda w: integers(w, bits, 32, symmetric=True), (2, 64), gradients=False)
    case(f"bitlinear_int{bits}", lambda x, w: x @ integers(w, bits).T, (3, 21), (4, 21))
    case(f"bitlinear_int{bits}_quantized", lambda x, w: fake_quantized_activations(x) @ integers(w, bits, 32).T, (4, 64), (3, 64), gradients=False)
case("quantize_weights_binary", signs, (3, 37), gradients=False)
case("quantize_weights_binary_by_row", lambda w: signs(w, 1), (3, 37), gradients=False)
case("bitlinear_int1", lambda x, w: x @ signs(w).T, (3, 21), (4, 21))
case("quantize_activations", lambda x: absmax_codes(x, x.abs().amax(1), 127)[0], (2, 37), gradients=False)
case("quantize_activations_4bit", lambda x: absmax_codes(x, x.abs().amax(1), 7), (2, 37), gradients=False)
case("quantize_activations_by_tensor", lambda x: absmax_codes(x, x.abs().max(), 127), (2, 37), gradients=False)
case("quantize_activations_static", lambda x: codes_of_a_range(x, torch.tensor(-0.7), torch.tensor(1.6)), (2, 37), gradients=False)
case("quantize_activations_with_zero_point", lambda x: codes_of_a_range(x, x.amin(1).clamp(max=0), x.amax(1).clamp(min=0)),
     positive("zero_point", (2, 37)) - np.float32(1), gradients=False)

def errors(w, q):
    return torch.stack([(w - q).square().mean(), (w - q).abs().max(), F.cosine_similarity(w.flatten(), q.flatten(), dim=0), (q == 0).double().mean()])


case("quantize_weights_by_row", ternary_rows, (3, 37), gradients=False)
case("quantize_weights_by_group", ternary_groups, (3, 48), gradients=False)
case("quantize_weights_by_matrix", ternary_matrices, (2, 3, 12), gradients=False)
case("quantize_weights_binary_by_matrix", lambda w: signs(w, (-2, -1)).flatten(0, 1), (2, 3, 12), gradients=False)
case("fake_quantize_weights_by_matrix", lambda w: ternary(w, dim=(-2, -1), keepdim=True), (2, 3, 12), gradients=False)
case("quantization_error", errors, (5, 9), rng("errors").integers(-1, 2, (5, 9)).astype(np.float32), gradients=False)
small = [rng(f"small{i}").integers(-128, 128, shape).astype(np.float32) for i, shape in enumerate([(5, 24), (7, 24)])]
case("matmul_int8", lambda a, b: a @ b.T, *small, gradients=False)
case("embed_ternary", lambda w, i: ternary(w)[i], (6, 37), ids("embed_ternary", 5, 6), gradients=False)
case("top_k", lambda x: tuple(x.topk(4)), (3, 50), gradients=False)
case("rms_norm_quantize", lambda x, gain: fake_quantized_activations(rms_norm(x, gain)), (4, 19), (19,), gradients=False)
case("gate_quantize", lambda x: fake_quantized_activations(F.relu(x[:, :14]) ** 2 * x[:, 14:]), (4, 28), gradients=False)
case("bitlinear_with", lambda x, w, b: F.silu(fake_quantized_activations(x) @ ternary(w).T + b), (4, 37), (5, 37), (5,), gradients=False)
case("bitlinear_float_with", lambda x, w, b: F.gelu(x @ ternary(w).T + b), (4, 37), (5, 37), (5,), gradients=False)
case("bitlinear_int_with", lambda x, w, b: F.relu(x @ integers(w, 4).T + b), (3, 21), (4, 21), (4,), gradients=False)
case("bitlinear_int_quantized_with", lambda x, w, b: F.relu(fake_quantized_activations(x) @ integers(w, 4, 32).T + b), (4, 64), (3, 64), (3,),
     gradients=False)
case("bitlinear_block_float", lambda x, w: block_floats(x) @ ternary(w).T, (4, 100), (5, 100), gradients=False)
case("bitlinear_grouped", lambda x, w: fake_quantized_activations(x) @ ternary_groups(w).T, (4, 48), (5, 48))
case("bitlinear_float_by_row", lambda x, w: x @ ternary_rows(w).T, (4, 37), (5, 37))
case("bitlinear_float_grouped", lambda x, w: x @ ternary_groups(w).T, (4, 48), (5, 48))
case("bitlinear_float_grouped_by_128", lambda x, w: x @ ternary_groups(w, 128).T, (3, 256), (6, 256))
case("bitlinear_block_float_grouped", lambda x, w: block_floats_of_groups(x) @ ternary_groups(w).T, (4, 48), (5, 48), gradients=False)
case("bitlinear_int4_grouped", lambda x, w: x @ integers(w, 4, 32).T, (3, 64), (4, 64))
case("bitlinear_int1_quantized", lambda x, w: fake_quantized_activations(x) @ signs(w, 1).T, (4, 64), (3, 64), gradients=False)
case("quantize_weights_binary_by_group", lambda w: signs(w.unflatten(-1, (-1, 32)), -1).flatten(-2), (3, 64), gradients=False)
case("quantize_gradients", lambda x: stochastic(x, 5 << 32 | 7), (3, 37), gradients=False)
case("embed", lambda w, i: w[i], (6, 12), ids("embed", 5, 6))
case("broadcast_to", lambda x: x.expand(4, 3, 5), (3, 1))
case("cast", lambda x: x.trunc(), SHAPE, gradients=False)
case("finish", lambda x, b: F.gelu(x + b), (4, 6), (6,), gradients=False)
case("sum_to", lambda x: x.sum((0, 2), keepdim=True)[0], BOX, gradients=False)
case("qr_full", lambda a: torch.linalg.qr(a, mode="complete")[1].abs(), (8, 5), gradients=False)

case("silu_f16", F.silu, SHAPE)
case("mul_f16", torch.mul, (3, 1, 5), (4, 1))
case("softmax_f16", lambda x: x.softmax(-1), SHAPE)
case("layer_norm_f16", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-5), (4, 19), (19,), (19,))
case("rms_norm_f16", rms_norm, (4, 19), (19,))
case("matmul_f16", torch.matmul, (2, 5, 7), (2, 7, 6))
case("gelu_tanh_gate_f16", gelu_tanh_gate, (4, 12))
case("flash_attention_f16", grouped_attention, (4, 6, 8), (2, 6, 8), (2, 6, 8))

gradients = [(6, 5)] * 3
for name, optimizer in {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
}.items():
    case(name, lambda w, *g: stepped(optimizer, 3, w, *g), (6, 5), *gradients, gradients=False)
case("lion", lion, (6, 5), *gradients, gradients=False)
case("ema", lambda average, w: torch.optim.swa_utils.get_ema_avg_fn(0.9)(average, w, 0), (6, 5), (6, 5), gradients=False)
case("clip_gradients", lambda *g: clipped(1.5, *g), (6, 5), (7,), gradients=False)



def of_factors(name, factorise, a):
    """Gradients of all factors; inputs are the factors and their gradients."""
    a = torch.from_numpy(a.astype(np.float32).astype(np.float64)).requires_grad_()
    factors, random = factorise(a), rng(name)
    given = [np.asarray(factor.detach().numpy(), np.float32, order="C") for factor in factors]
    given += [random.uniform(-2, 2, factor.shape).astype(np.float32) for factor in factors]
    (da,) = torch.autograd.grad(factors, a, [torch.from_numpy(dy.astype(np.float64)) for dy in given[len(factors):]])
    GOLDEN.update({f"{name}/in{i}": array for i, array in enumerate(given)})
    GOLDEN[f"{name}/out0"] = np.asarray(da.numpy(), np.float32, order="C")


def near_diagonal(name, rows, columns, diagonal):
    return (rng(name).uniform(-1, 1, (rows, columns)) + np.eye(rows, columns) * diagonal).astype(np.float32)


spd = rng("cholesky").uniform(-1, 1, (2, 6, 6))
case("cholesky", torch.linalg.cholesky, (spd @ spd.transpose(0, 2, 1) + 6 * np.eye(6)).astype(np.float32))
case("triangular_solve", lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), near_diagonal("tri", 6, 6, 4), (6, 3))
case("triangular_solve_transposed", lambda a, b: torch.linalg.solve_triangular(a.mT, b, upper=True), near_diagonal("tri", 6, 6, 4), (6, 3))
case("triangular_solve_unit", lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, unitriangular=True), near_diagonal("tri", 6, 6, 4), (6, 3))
case("solve", torch.linalg.solve, near_diagonal("solve", 6, 6, 3), (6, 3))
case("svd", torch.linalg.svdvals, (8, 5), gradients=False)
case("least_squares", lambda a, b: torch.linalg.lstsq(a, b).solution, (9, 4), (9, 2))
case("qr", lambda a: torch.linalg.qr(a)[1].abs(), (8, 5), gradients=False)
for name, rows, columns in ("qr_backward_tall", 8, 5), ("qr_backward_wide", 4, 7):
    of_factors(name, torch.linalg.qr, near_diagonal(name, rows, columns, 3))
for name, rows, columns in ("svd_backward_tall", 7, 4), ("svd_backward_wide", 4, 7), ("svd_backward_square", 4, 4):
    of_factors(name, lambda a: torch.linalg.svd(a, full_matrices=False), near_diagonal(name, rows, columns, 3 * np.arange(1, columns + 1)))

save_file(GOLDEN, pathlib.Path(__file__).parent / "golden.safetensors")
