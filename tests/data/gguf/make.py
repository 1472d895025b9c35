#!/usr/bin/env python3
"""Makes the GGUF files in this folder with encoders independent of this crate. Needs: pip install gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0

The gguf package writes the container and encodes F16, BF16, Q8_0, TQ1_0 and TQ2_0. It can only decode Q4_K and Q6_K, so those blocks are random.
It does not know I2_S and Q2_0, which are encoded below from the formats' descriptions. Each weight is a hash of its index; tests/formats/gguf/main.rs
computes the same hash, so only gguf's decoded values are stored as references, in types.safetensors.
"""

import pathlib

import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFWriter, quants
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
I2_S, Q2_0 = 36, 42
PQ2_0, PTQ1_0, Q1_0 = 142, 143, 41


def mix(seed, count):
    h = (np.arange(count, dtype=np.uint64) * 2654435761 + seed * 0x9E3779B9) & 0xFFFFFFFF
    for shift, factor in ((15, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * factor & 0xFFFFFFFF
    return h ^ (h >> 16)


def trits(seed, *shape):
    return (mix(seed, int(np.prod(shape))) % 3).astype(np.int8).reshape(shape) - np.int8(1)


def floats(seed, *shape):
    return ((mix(seed, int(np.prod(shape))) >> 8).astype(np.float32) / 2**24 - np.float32(0.5)).reshape(shape)


def scale(seed):
    return np.float32((1 + seed % 7) / 16)


def i2s(values, factor, layout):
    codes = (values + 1).astype(np.uint8)
    if layout == "rows":
        groups = codes.reshape(-1, 4, codes.shape[1]).transpose(1, 0, 2)
    else:
        run = {"x86": 32, "arm": 16}[layout]
        groups = codes.reshape(-1, 4, run).transpose(1, 0, 2)
    packed = groups[0] << 6 | groups[1] << 4 | groups[2] << 2 | groups[3]
    return np.concatenate([packed.reshape(-1), np.full(8, factor, np.float32).view(np.uint8)])


def q2_0(values, factors):
    """One factor per block of 64 values."""
    codes = (values + 1).astype(np.uint8).reshape(-1, 16, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    halves = np.asarray(factors, np.float16).reshape(-1, 1).view(np.uint8)
    return np.concatenate([halves, packed], axis=1).reshape(-1)


def groups(kind, layout, values, scales):
    """The type's number, and blocks of `values` with a scale for every 128; of Q2_0, `layout` is the number of values in a block."""
    halves = np.asarray(scales, np.float16).reshape(-1, 1)
    if kind == "Q2_0" and layout == 64:
        return Q2_0, q2_0(values, np.repeat(halves, 2))
    factors, number = halves.view(np.uint8), {"Q2_0": Q2_0, "PQ2_0": PQ2_0, "PTQ1_0": PTQ1_0, "Q1_0": Q1_0}[kind]
    if kind == "Q1_0":
        return number, np.concatenate([factors, np.packbits(values.reshape(-1, 128) > 0, 1, "little")], 1).reshape(-1)
    codes = (values + 1).astype(np.uint8).reshape(-1, 128)
    if kind == "PTQ1_0":
        parts = [(0, 16, 5), (80, 8, 5), (120, 2, 4)]
        digits = [np.concatenate([codes[:, first + n * i:][:, :n, None] for i in range(count)], 2) for first, n, count in parts]
        # Of four digits, the fifth is 0; a byte is the fraction v / 3^5 in 256ths, rounded up.
        sums = [(part * (3 ** np.arange(4, 4 - part.shape[2], -1))).sum(2, dtype=np.int64) for part in digits]
        packed = [((256 * v + 242) // 243).astype(np.uint8) for v in sums]
        return number, np.concatenate([*packed, factors], 1).reshape(-1)
    quads = codes.reshape(-1, 32, 4)
    packed = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6
    return number, np.concatenate([factors, packed], 1).reshape(-1)


def random_blocks(kind, rows, columns, *scales):
    """Blocks of Q4_K or Q6_K, with the half-precision scales that they have."""
    size, at = {Type.Q4_K: (144, slice(0, 4)), Type.Q6_K: (210, slice(208, 210))}[kind]
    blocks = np.random.default_rng(6).integers(0, 256, (rows, columns // 256 * size), dtype=np.uint8)
    blocks.reshape(-1, size)[:, at] = np.array(scales, np.float16).view(np.uint8)
    return blocks


def add(writer, name, kind, values, seed=None):
    """Writes a tensor and returns gguf's decoding of it. With `seed`, `values` are trits, to be scaled by scale(seed)."""
    weights = values.astype(np.float32) * (scale(seed) if seed is not None else np.float32(1))
    if kind == "I2_S":
        data = i2s(values, scale(seed), "x86")
        writer.add_tensor(name, data.view(np.int8), raw_shape=values.shape, raw_dtype=I2_S)
    elif kind == "Q2_0":
        data = q2_0(values, np.full(values.size // 64, scale(seed)))
        writer.add_tensor(name, data.view(np.int8), raw_shape=values.shape, raw_dtype=Q2_0)
    elif kind in (Type.Q4_K, Type.Q6_K):
        blocks = random_blocks(kind, *values.shape, *[0.01, 0.02][: 2 if kind == Type.Q4_K else 1])
        writer.add_tensor(name, blocks, raw_dtype=kind)
        return quants.dequantize(blocks, kind)
    else:
        data = quants.quantize(weights, kind)
        if kind in (Type.F32, Type.F16):
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, data.view(np.uint8), raw_dtype=kind)
        return quants.dequantize(data, kind)


# Tensors of a layer; a tensor's index is its seed.
PARTS = ["attn_norm", "ffn_norm", "attn_sub_norm", "ffn_sub_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]


def model(arch, hidden, inner, heads, kv_heads, head_dim, vocab, kinds, tied, embedding):
    writer = GGUFWriter(HERE / f"{arch}.gguf", arch)
    writer.add_block_count(1)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_context_length(77)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"t{i}é" for i in range(vocab)])
    writer.add_token_types([3 if i < 2 else 1 for i in range(vocab)])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")
    add(writer, "token_embd.weight", embedding, floats(100, vocab, hidden))
    if not tied:
        add(writer, "output.weight", Type.Q8_0, floats(101, vocab, hidden))
    writer.add_tensor("output_norm.weight", floats(102, hidden))
    attention = heads * head_dim
    shapes = {
        "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_sub_norm": (attention,), "ffn_sub_norm": (inner,),
        "attn_q": (attention, hidden), "attn_k": (kv_heads * head_dim, hidden), "attn_v": (kv_heads * head_dim, hidden),
        "attn_output": (hidden, attention), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }
    for seed, part in enumerate(PARTS):
        shape = shapes[part]
        if len(shape) == 1:
            if "sub" not in part or arch != "llama":
                writer.add_tensor(f"blk.0.{part}.weight", floats(seed, *shape))
            continue
        values = trits(seed, *shape)
        if arch == "llama" and part in ("attn_q", "attn_k"):
            # Reorders rows from halves to pairs, as llama.cpp's converter does.
            values = values.reshape(-1, 2, head_dim // 2, hidden).swapaxes(1, 2).reshape(shape)
        if arch == "bitnet":
            writer.add_tensor(f"blk.0.{part}.scale", np.array([2.0], np.float32))
        add(writer, f"blk.0.{part}.weight", kinds.get(part, kinds[""]), values, seed)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types():
    """Writes a tensor of every type, and gguf's decoding of each."""
    writer, decoded = GGUFWriter(HERE / "types.gguf", "none"), {}
    for name, kind, shape in [("f32", Type.F32, (3, 5)), ("f16", Type.F16, (3, 5)), ("bf16", Type.BF16, (3, 5)), ("q8_0", Type.Q8_0, (3, 64)),
                              ("q6_k", Type.Q6_K, (2, 512)), ("q4_k", Type.Q4_K, (2, 512))]:
        decoded[name] = add(writer, name, kind, floats(7, *shape))
    blocks = np.repeat(np.array([[0.5, 0.0], [0.5, 0.5], [0.5, 0.5]], np.float32), 256, axis=1)
    for name, kind in [("tq1_0", Type.TQ1_0), ("tq2_0", Type.TQ2_0)]:
        # First one scale for all blocks except a block of zeros; then a different scale per row.
        decoded[name] = add(writer, name, kind, trits(8, 3, 512) * blocks)
        decoded[f"{name}.groups"] = add(writer, f"{name}.groups", kind, trits(9, 3, 512) * blocks * np.float32([[1], [2], [4]]))
    for layout in ("x86", "arm", "rows"):
        for name, shape in [("i2_s", (8, 128)), ("i2_s.small", (16, 24))]:
            writer.add_tensor(f"{name}.{layout}", i2s(trits(10, *shape), np.float32(0.625), layout).view(np.int8), raw_shape=shape, raw_dtype=I2_S)
    writer.add_tensor("q2_0", q2_0(trits(11, 3, 128), np.full(6, 0.25)).view(np.int8), raw_shape=(3, 128), raw_dtype=Q2_0)
    writer.add_tensor("q2_0.groups", q2_0(trits(12, 3, 128), [1, 2, 3, 4, 5, 6]).view(np.int8), raw_shape=(3, 128), raw_dtype=Q2_0)
    finish(writer)
    save_file({name: np.ascontiguousarray(value) for name, value in decoded.items()}, HERE / "types.safetensors")


if __name__ == "__main__":
    types()
    model("bitnet-b1.58", 128, 64, 2, 1, 16, 16, {"": "I2_S"}, True, Type.F16)
    model("bitnet-25", 256, 64, 2, 1, 16, 8, {"": Type.TQ2_0, "attn_v": Type.TQ1_0, "attn_output": "I2_S", "ffn_down": "I2_S"}, True, Type.BF16)
    model("bitnet", 64, 64, 2, 1, 16, 16, {"": Type.F16}, True, Type.F32)
    model("llama", 128, 64, 4, 2, 16, 16, {"": "Q2_0"}, False, Type.F16)
