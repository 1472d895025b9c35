#!/usr/bin/env python3
"""Writes the first sections of docs/internals/model-checks.md; scripts/models-table runs it.

A case is a tiny random model laid out as one that people have: the keys of its config.json or GGUF metadata are those of the published file (as
far as they are known), and only sizes and token ids are smaller. Each is written twice: as published, for this crate; and as transformers reads it.
The two are the same bytes wherever transformers reads the published files.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: its matrices are so small here that threads make them forty times slower

import make
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quants
from safetensors.torch import save_file

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs/internals/model-checks.md"
STEPS, LENGTHS, MARGIN, TOLERANCE, SHOWN, WIDTH = 16, [1, 5, 12], 3e-5, 2e-4, 8, 150


def gguf_make():
    spec = importlib.util.spec_from_file_location("gguf_make", HERE.parent / "gguf/make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GGUF = gguf_make()

# --- config.json, as published but for sizes and token ids

BITNET_2B = {
    "architectures": ["BitNetForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_bitnet.BitNetConfig", "AutoModelForCausalLM": "modeling_bitnet.BitNetForCausalLM"},
    "bos_token_id": 300, "eos_token_id": 301, "hidden_act": "relu2", "hidden_size": 96, "initializer_range": 0.02, "intermediate_size": 256,
    "max_position_embeddings": 4096, "model_type": "bitnet", "rms_norm_eps": 1e-05, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 1, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 304,
    "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 300, "eos_token_id": 301,
    "hidden_act": "silu", "hidden_size": 96, "initializer_range": 0.02, "intermediate_size": 216, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 1, "pretraining_tp": 1, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 304,
}
LLAMA3_8B = LLAMA | {
    "is_bitnet_config": True, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_theta": 500000.0,
    "transformers_version": "4.44.0.dev0", "quantization_config": {"modules_to_not_convert": None, "quant_method": "bitnet"},
}
FALCON3 = LLAMA | {
    "head_dim": 32, "is_bitnet_config": True, "max_position_embeddings": 32768, "num_attention_heads": 3, "rms_norm_eps": 1e-06,
    "rope_theta": 1000042, "transformers_version": "4.46.1",
    "quantization_config": {"modules_to_not_convert": None, "quant_method": "bitnet"},
}
FALCON_E = LLAMA | {
    "head_dim": 16, "is_bitnet_config": True, "max_position_embeddings": 32768, "num_attention_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 1000042, "transformers_version": "4.51.3",
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "bitnet"},
}
ONE_BIT_LLM = LLAMA | {
    "architectures": ["BitnetForCausalLM"], "input_bits": 8, "max_position_embeddings": 2048, "num_key_value_heads": 4, "pad_token_id": 302,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float16", "transformers_version": "4.39.0",
    "weight_bits": 1,
}
LLAMA_3_2 = LLAMA | {
    "head_dim": 24, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "transformers_version": "4.45.0.dev0",
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 300, "eos_token_id": 301,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 128, "initializer_range": 0.02, "intermediate_size": 384,
    "max_position_embeddings": 32768, "max_window_layers": 2, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 8192, "type": "yarn"},
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 304,
}
# Its keys are a guess: only sizes and the type are known.
TRILM = LLAMA | {
    "bos_token_id": 0, "eos_token_id": 0, "hidden_size": 64, "intermediate_size": 512, "max_position_embeddings": 2048, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 32, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "torch_dtype": "float16",
}
MULTIPLY = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE = MULTIPLY | {"quantization_mode": "online"}
# 1bitLLM's model as transformers' BitNet: sub-norms, but SiLU.
ONE_BIT_AS_BITNET = ONE_BIT_LLM | {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "quantization_config": ONLINE}

SAME = "transformers, from the same bytes"
PACKED = "transformers, from the same weights packed with an `autobitlinear` config"
ASKED = "transformers, with `quantization_mode` `online` put into the config"
GROUPS = "transformers, from the same weights as floats"
RENAMED = (
    "transformers' own BitNet with SiLU, tensors renamed, `quantization_mode` `online` "
    "(1bitLLM's code is in its repository, not in transformers)"
)


@dataclass
class Case:
    model: str
    file: str
    config: dict  # of the reference, and as published unless `published` says otherwise
    tensors: dict = field(repr=False)
    reference: str = SAME
    published: tuple | None = None  # config and tensors
    gguf: tuple | None = None  # architecture, type, layout of I2_S
    flags: tuple = ()
    refused: bool = False
    compared: bool = True
    note: str = ""

    @property
    def keys(self):
        """What tells this file's kind from others'."""
        if self.gguf:
            return f"`{self.gguf[0]}`"
        if "quantization" in (self.published or [self.config])[0]:
            return f"`{self.config['model_type']}`, `quantization`"
        config = self.published[0] if self.published else self.config
        quantization = config.get("quantization_config") or {}
        words = [config["model_type"], *(quantization[key] for key in ("linear_class", "quantization_mode") if key in quantization)]
        words += ["use_rms_norm"] if "use_rms_norm" in quantization else []
        words += [f"weight_bits {config['weight_bits']}"] if "weight_bits" in config else []
        absent = [f"no `{key}`" for key, there in (("quantization_config", config), ("linear_class", quantization)) if key not in there]
        return ", ".join([f"`{word}`" for word in words] + absent[:1])


# --- weights


def tensors(config, seed, side=torch.bfloat16, masters=False, parts=None):
    """Random weights; packed, unless they are float weights or ternary in floats by parts, with scales as `linear_class` takes them."""
    config = config | {"head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]}
    reciprocal = (config.get("quantization_config") or {}).get("linear_class") != "autobitlinear"
    return make.make_tensors({"config": config, "side": side, "seed": seed, "reciprocal": reciprocal, "masters": masters, "parts": parts})


def codes(packed):
    return torch.cat([packed >> shift & 3 for shift in (0, 2, 4, 6)]).float() - 1


def linears(packed):
    return [name.removesuffix("_scale") for name in packed if name.endswith("weight_scale")]


def unpacked(packed):
    """The ternary weights of an `autobitlinear` model in floats: only the values -β, 0 and β."""
    weights = {name: (codes(packed[name]) * packed[f"{name}_scale"].float()).to(packed[f"{name}_scale"].dtype) for name in linears(packed)}
    return {name: weights.get(name, tensor) for name, tensor in packed.items() if not name.endswith("weight_scale")}


def renamed(own):
    """With the names that 1bitLLM gave the sub-norms."""
    for name, older in (("attn_sub_norm", "inner_attn_ln"), ("ffn_sub_norm", "ffn_layernorm")):
        own = {key.replace(name, older): tensor for key, tensor in own.items()}
    return own


def perturbed(own):
    """The same tensors, one scale half as large again (where there is none, one matrix)."""
    name = "model.layers.1.mlp.down_proj.weight"
    name = next((other for other in (f"{name}_scale", name.replace("weight", "scales")) if other in own), name)
    if isinstance(own[name], Grouped):
        return own | {name: Grouped(own[name].values, own[name].scales * 1.5)}
    if name.endswith("scales"):
        biases = name.replace("scales", "biases")
        return own | {other: (own[other].float() * 1.5).to(own[other].dtype) for other in (name, biases)}
    return own | {name: (own[name].float() * 1.5).to(own[name].dtype)}


def k_blocks(kind, rows, columns):
    """Random blocks of a type that the gguf package cannot encode; weights of about 1."""
    return GGUF.random_blocks(kind, rows, columns, *{"Q4_K": (0.003, 0.0225), "Q6_K": (0.0007,)}[kind.name])


# What llama-quantize makes of the embedding and the head of a ternary model.
QUANTIZED_ENDS = {"model.embed_tokens.weight": GGMLQuantizationType.Q4_K, "lm_head.weight": GGMLQuantizationType.Q6_K}


def with_k_ends(own):
    """The same tensors, but for an embedding and a head as decoded from blocks."""
    decoded = {name: quants.dequantize(k_blocks(kind, *own[name].shape), kind) for name, kind in QUANTIZED_ENDS.items()}
    return own | {name: torch.from_numpy(values).half() for name, values in decoded.items()}


@dataclass
class Grouped:
    """Weights of -1, 0 and 1 (or only of -1 and 1), and a scale for every 128 columns."""

    values: np.ndarray
    scales: np.ndarray

    def dequantized(self):
        return (self.values.astype(np.float32).reshape(*self.scales.shape, GROUP) * self.scales[..., None].astype(np.float32)).reshape(self.values.shape)


GROUP = 128


def grouped(config, seed, binary=False, side=np.float16):
    """A Qwen3 whose linear layers, embedding and head are ternary, or binary, by groups."""
    rng, hidden, vocab = np.random.default_rng(seed), config["hidden_size"], config["vocab_size"]

    def gains(n):
        return torch.from_numpy(rng.normal(1, 0.1, n)).bfloat16()

    def matrix(rows, columns, size):
        kinds = rng.choice([-1, 1], (rows, columns)) if binary else rng.choice([-1, 0, 1], (rows, columns), p=[0.3, 0.4, 0.3])
        scales = torch.from_numpy(size * rng.uniform(0.5, 1.5, (rows, columns // GROUP)))
        # Numbers that bf16 has, and f16 too.
        return Grouped(kinds.astype(np.int8), scales.bfloat16().float().numpy().astype(side))

    own = {"model.embed_tokens.weight": matrix(vocab, hidden, 1.2)}
    for layer in range(config["num_hidden_layers"]):
        prefix, head = f"model.layers.{layer}.", config["head_dim"]
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden, "self_attn.q_norm": head, "self_attn.k_norm": head}
        own |= {f"{prefix}{name}.weight": gains(n) for name, n in norms.items()}
        for name in make.LINEARS:
            rows, columns = make.linear_shape(config, name)
            gain = 3.0 if name.endswith(("o_proj", "down_proj")) else 1.5
            own[f"{prefix}{name}.weight"] = matrix(rows, columns, gain / np.sqrt(0.6 * columns))
    own["model.norm.weight"] = gains(hidden)
    if not config["tie_word_embeddings"]:
        own["lm_head.weight"] = matrix(vocab, hidden, 1.2)
    return own


def in_floats(own, dtype=torch.float32):
    """Every weight as a float."""
    return {name: torch.from_numpy(w.dequantized()).to(dtype) if isinstance(w, Grouped) else w for name, w in own.items()}


def in_mlx(own, bits, dtype):
    """As MLX stores them: integers in words of 32 bits, scales and biases."""
    tensors = {}
    for name, w in own.items():
        if not isinstance(w, Grouped):
            tensors[name] = w.to(dtype)
            continue
        integers = (w.values + 1 if bits == 2 else w.values > 0).astype(np.uint32).reshape(len(w.values), -1, 32 // bits)
        words = np.bitwise_or.reduce(integers << (bits * np.arange(32 // bits, dtype=np.uint32)), -1)
        scales = torch.from_numpy(w.scales.astype(np.float32))
        tensors[name] = torch.from_numpy(words)
        tensors[name.replace("weight", "scales")] = (scales if bits == 2 else 2 * scales).to(dtype)
        tensors[name.replace("weight", "biases")] = (-scales).to(dtype)
    return tensors


# --- files


def write_directory(directory, config, own):
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in own.items()}, directory / "model.safetensors", {"format": "pt"})


PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.attn_sub_norm": "attn_sub_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.ffn_sub_norm": "ffn_sub_norm", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
ENDS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in ENDS:
        return ENDS[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{PARTS[part]}.weight"


def write_gguf(path, config, own, architecture, kind, layout, quantized_ends=False, title=None):
    """Metadata as bitnet.cpp's and llama.cpp's converters write it; norms in F32, embedding and head in F16, or as llama-quantize makes them."""
    writer = GGUFWriter(path, architecture)
    heads, vocab = config["num_attention_heads"], config["vocab_size"]
    head_dim = config.get("head_dim") if architecture == "qwen3" else config["hidden_size"] // heads
    if title:
        writer.add_name(title)
    writer.add_vocab_size(vocab)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    if architecture == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config["rope_scaling"]["factor"])
        writer.add_rope_scaling_orig_ctx_len(config["rope_scaling"]["original_max_position_embeddings"])
    else:
        writer.add_rope_dimension_count(head_dim)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type({"I2_S": 40, "TQ1_0": 36, "TQ2_0": 37, "Q2_0": 42, "PQ2_0": 141, "PTQ1_0": 143, "Q1_0": 40}[kind])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(vocab)])
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if architecture == "bitnet":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(1.0)
    for name, tensor in own.items():
        if name.endswith("weight_scale"):
            continue
        stored, beta = gguf_name(name), own.get(f"{name}_scale")
        if isinstance(tensor, Grouped):
            number, data = GGUF.groups(kind, layout, tensor.values, tensor.scales)
            writer.add_tensor(stored, data.view(np.int8), raw_shape=tensor.values.shape, raw_dtype=number)
            continue
        if quantized_ends and name in QUANTIZED_ENDS:
            writer.add_tensor(stored, k_blocks(QUANTIZED_ENDS[name], *tensor.shape), raw_dtype=QUANTIZED_ENDS[name])
            continue
        if beta is None and not (stored.startswith("blk.") and tensor.ndim == 2):
            writer.add_tensor(stored, tensor.float().numpy().astype(np.float32 if tensor.ndim == 1 else np.float16))
            continue
        if beta is None:
            values, beta = tensor.float().numpy(), np.float32(1)
        else:
            values, beta = codes(tensor).numpy().astype(np.int8), np.float32(beta.float().item())
        if architecture == "llama" and stored.split(".")[2] in ("attn_q", "attn_k"):
            # llama.cpp's converter reorders rows from halves to pairs.
            values = values.reshape(-1, 2, head_dim // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if kind in ("I2_S", "Q2_0"):
            data = GGUF.i2s(values, beta, layout) if kind == "I2_S" else GGUF.q2_0(values, np.full(values.size // 64, beta))
            writer.add_tensor(stored, data.view(np.int8), raw_shape=values.shape, raw_dtype=getattr(GGUF, kind))
        else:
            kind_id = GGMLQuantizationType[kind]
            writer.add_tensor(stored, quants.quantize(values * beta, kind_id).view(np.uint8), raw_dtype=kind_id)
    GGUF.finish(writer)


# --- cases


def safetensors_cases():
    packed, masters = "packed `uint8`", "float weights"
    online = BITNET_2B | {"quantization_config": ONLINE}
    own = tensors(online, 2, masters=True)
    bare = {key: value for key, value in online.items() if key != "quantization_config"}
    yield Case("microsoft/bitnet-b1.58-2B-4T", packed, BITNET_2B, tensors(BITNET_2B, 1))
    yield Case("microsoft/bitnet-b1.58-2B-4T-bf16", f"{masters}, bf16", online, own)
    yield Case("… saved without its quantization_config", f"{masters}, bf16", online, own, ASKED, published=(bare, own))
    yield Case("HF1BitLLM/Llama3-8B-1.58-100B-tokens", packed, LLAMA3_8B, tensors(LLAMA3_8B, 3))
    yield Case("tiiuae/Falcon3-7B-Instruct-1.58bit", packed, FALCON3, tensors(FALCON3, 4))
    yield Case("tiiuae/Falcon-E-3B-Instruct", packed, FALCON_E, tensors(FALCON_E, 5))

    plain = {key: value for key, value in FALCON_E.items() if key not in ("quantization_config", "is_bitnet_config")}
    online = plain | {"quantization_config": ONLINE}
    own = tensors(online, 6, masters=True)
    yield Case("… revision prequantized", f"{masters}, bf16", online, own, published=(plain, own), refused=True)
    yield Case("… the same, `ReadOptions::quantize`", f"{masters}, bf16", online, own, ASKED, published=(plain, own), flags=("--quantize",))
    offline = plain | {"quantization_config": MULTIPLY}
    own = tensors(offline, 7)
    yield Case("… revision bfloat16", "-β, 0, β in bf16", offline, own, PACKED, published=(plain, unpacked(own)), note="float activations")
    yield Case("ternary Llama, unpacked, config kept", "-β, 0, β in bf16", offline, own, PACKED, published=(offline, unpacked(own)))

    normed = offline | {"quantization_config": ONLINE | {"use_rms_norm": True, "rms_norm_eps": 1e-05}}
    own = tensors(normed, 13, masters=True)
    yield Case("ternary Llama, a norm in each linear layer", f"{masters}, bf16", normed, own)

    own = tensors(ONE_BIT_AS_BITNET, 8, torch.float16, masters=True)
    older = renamed({name: tensor.half() for name, tensor in own.items()})
    yield Case("1bitLLM/bitnet_b1_58-3B", f"{masters}, f16", ONE_BIT_AS_BITNET, own, RENAMED, published=(ONE_BIT_LLM, older))
    bitnet = ONE_BIT_LLM | {"model_type": "bitnet"}
    yield Case("… with model_type bitnet", f"{masters}, f16", ONE_BIT_AS_BITNET, own, RENAMED, published=(bitnet, older))

    own = tensors(LLAMA_3_2, 9, masters=True)
    yield Case("meta-llama/Llama-3.2-1B (dense)", "floats, bf16", LLAMA_3_2, own, refused=True)
    yield Case("… the same, `ReadOptions::quantize`", "floats, bf16", LLAMA_3_2, own, flags=("--quantize",), compared=False)
    yield Case("SpectraSuite/TriLM_3.9B_Unpacked", "-β, 0, β in f16, β by parts of a matrix", TRILM, tensors(TRILM, 14, torch.float16, parts=2))
    yield Case("SpectraSuite/TriLM_830M_Unpacked", "-β, 0, β in f16", TRILM, tensors(TRILM, 15, torch.float16, parts=1))
    own = grouped(QWEN3, 10)
    file = "-β, 0, β in bf16 by 128 columns"
    yield Case("prism-ml/Ternary-Bonsai-1.7B-unpacked", file, QWEN3, in_floats(own, torch.bfloat16))
    file = "words of 2-bit integers, f16 scales by 128 columns"
    yield mlx_case("prism-ml/Ternary-Bonsai-1.7B-mlx-2bit", file, QWEN3, own, 2, torch.float16)
    untied = QWEN3 | {"tie_word_embeddings": False, "rope_scaling": QWEN3["rope_scaling"] | {"original_max_position_embeddings": 16384}}
    own = grouped(untied, 11)
    yield mlx_case("prism-ml/Ternary-Bonsai-8B-mlx-2bit", file.replace("f16", "bf16"), untied, own, 2, torch.bfloat16)
    own = grouped(QWEN3, 12, binary=True)
    yield mlx_case("prism-ml/Bonsai-1.7B-mlx-1bit", "words of bits, f16 scales by 128 columns", QWEN3, own, 1, torch.float16)
    floats = {name: tensor + 0.01 * torch.randn(tensor.shape).bfloat16() for name, tensor in in_floats(own, torch.bfloat16).items()}
    yield Case("Qwen/Qwen3-1.7B (dense)", "floats, bf16", QWEN3, floats, refused=True)


def mlx_case(model, file, config, own, bits, dtype):
    """Both keys, as mlx-lm writes them."""
    settings = {"group_size": GROUP, "bits": bits}
    published = config | {"quantization": settings, "quantization_config": settings}
    return Case(model, file, config, in_floats(own), GROUPS, published=(published, in_mlx(own, bits, dtype)))


def gguf_cases():
    small = {"hidden_size": 128, "intermediate_size": 256}
    bitnet = BITNET_2B | small
    own = tensors(bitnet, 20, torch.float16)
    name = "microsoft/bitnet-b1.58-2B-4T-gguf"
    yield Case(name, "I2_S, `I2sLayout::X86`", bitnet, own, PACKED, gguf=("bitnet-b1.58", "I2_S", "x86"))
    for layout, words, by in (("arm", "`I2sLayout::Arm`", "older bitnet.cpp on ARM"), ("rows", "`I2sLayout::Rows`", "newer bitnet.cpp")):
        gguf = ("bitnet-b1.58", "I2_S", layout)
        yield Case(f"… by {by}", f"I2_S, {words}", bitnet, own, PACKED, gguf=gguf, flags=("--i2s", layout))
    falcon = FALCON3 | {"quantization_config": MULTIPLY, "num_attention_heads": 4} | small
    own = tensors(falcon, 25, torch.float16)
    yield Case("tiiuae/Falcon3-7B-Instruct-1.58bit-GGUF", "I2_S", falcon, own, PACKED, gguf=("llama", "I2_S", "x86"))
    llama = LLAMA3_8B | {"quantization_config": MULTIPLY} | small
    own = tensors(llama, 21, torch.float16)
    yield Case("ternary Llama, llama.cpp", "Q2_0", llama, own, PACKED, gguf=("llama", "Q2_0", None))
    wide = {"hidden_size": 256, "intermediate_size": 256}
    llama = llama | wide
    own = tensors(llama, 22, torch.float16)
    yield Case("Llama3-8B-1.58, convert_hf_to_gguf.py", "TQ1_0", llama, own, PACKED, gguf=("llama", "TQ1_0", None))
    yield Case("Llama3-8B-1.58, convert_hf_to_gguf.py", "TQ2_0", llama, own, PACKED, gguf=("llama", "TQ2_0", None))
    gguf = ("llama", "TQ2_0", None, True)
    yield Case("… by llama-quantize", "TQ2_0; embedding Q4_K, head Q6_K", llama, with_k_ends(own), PACKED, gguf=gguf)
    # A part of the columns is a whole number of blocks.
    for kind, seed, parts, size, width in (("TQ2_0", 26, 2, "3.9B", 512), ("TQ1_0", 27, 1, "830M", 256)):
        trilm, name = TRILM | {"hidden_size": width, "head_dim": width // 8}, f"TriLM_{size}_Unpacked"
        own = tensors(trilm, seed, torch.float16, parts=parts)
        gguf = ("llama", kind, None, False, name.replace("_", " "))
        yield Case(f"SpectraSuite/{name}, convert_hf_to_gguf.py", kind, trilm, own, GROUPS, gguf=gguf)
    # As in the published model, a row of the down projection ends in the middle of a block of 128.
    one_bit = ONE_BIT_AS_BITNET | {"quantization_config": MULTIPLY, "hidden_size": 128, "intermediate_size": 192}
    own = tensors(one_bit, 23, torch.float16)
    yield Case("1bitLLM/bitnet_b1_58-3B, bitnet.cpp", "I2_S", one_bit, own, PACKED, gguf=("bitnet", "I2_S", "x86"))
    name = "prism-ml/Ternary-Bonsai-1.7B-gguf"
    rows = [(name, "Q2_0 by 64", "Q2_0", 64), (name, "Q2_0 by 128, as it was", "Q2_0", 128), (name, "PQ2_0", "PQ2_0", None), (name, "PTQ1_0", "PTQ1_0", None),
            ("prism-ml/Bonsai-1.7B-gguf", "Q1_0", "Q1_0", None)]
    for seed, (model, file, kind, layout) in enumerate(rows, 30):
        own = grouped(QWEN3, seed, binary=kind == "Q1_0")
        gguf = ("qwen3", kind, layout)
        yield Case(model, f"{file}; embedding too", QWEN3, in_floats(own), GROUPS, published=(QWEN3, own), gguf=gguf)


# --- running


@torch.no_grad()
def last_logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().numpy()


@dataclass
class Reference:
    prompts: list
    logits: list
    greedy: list


def reference(directory, seed):
    model, forward, rng = make.load(directory), make.Forward(directory, np.float64), np.random.default_rng(seed)
    prompts = [make.choose_prompt(forward, rng, length, MARGIN).tolist() for length in LENGTHS]
    return model, Reference(prompts, [last_logits(model, ids) for ids in prompts], [make.greedy(model, np.array(ids))[0] for ids in prompts])


def ours(program, path, flags, prompts, device):
    ids = [",".join(map(str, prompt)) for prompt in prompts]
    result = subprocess.run([program, path, device, *flags, "--steps", str(STEPS), *ids], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)


@dataclass
class Row:
    case: Case
    results: list  # of this crate, on the CPU and on the GPU
    reference: Reference | None = None
    note: str = ""

    @property
    def largest(self):
        return max(np.abs(logits).max() for logits in self.reference.logits)

    def difference(self, result):
        return max(float(np.abs(a - b).max()) for a, b in zip(self.reference.logits, result["last_logits"]))

    def tolerance(self):
        """Activations in floats are rounded by at most 2^-14.98 of the largest of 128."""
        floats = self.case.config["model_type"] == "qwen3" or self.case.model.startswith("SpectraSuite/")
        return 1e-2 if floats else TOLERANCE

    def agreeing(self, result):
        return sum(a == b for pair in zip(self.reference.greedy, result["greedy"]) for a, b in zip(*pair))

    def status(self):
        """In words, and whether it is as it should be."""
        ran = [result for result in self.results if result.get("kind") != "NoDevice"]
        if any("error" in result for result in ran):
            # A file that is not supported, and none that is damaged: the message must be of use.
            return "refused", self.case.refused and [result.get("kind") for result in ran] == ["Unsupported"] * len(ran)
        if self.case.refused:
            return "**not refused**", False
        if not self.case.compared:
            return "loads", all(np.isfinite(result["last_logits"]).all() for result in ran)
        good = all(self.difference(result) < self.tolerance() and self.agreeing(result) == STEPS * len(LENGTHS) for result in ran)
        return "runs" if good else "**differs**", good

    def cells(self, result):
        if "error" in result or not self.case.compared:
            return ["–", "–"]
        return [f"{self.difference(result):.0e}", f"{self.agreeing(result)} of {STEPS * len(LENGTHS)}"]

    def line(self):
        cells = [self.case.model, self.case.file, self.case.keys, self.status()[0], *self.cells(self.results[0]), *self.cells(self.results[1])]
        return f"| {' | '.join(cells)} |"


def run(case, folder, program, perturb):
    """Writes both forms of a model and runs them."""
    found, note, prompts = None, "", [[1, 2, 3]]
    seed = int(folder.name)
    folder.mkdir()
    if not case.refused and case.compared:
        write_directory(folder / "reference", case.config, case.tensors)
        model, found = reference(folder / "reference", seed)
        prompts = found.prompts
    config, own = case.published or (case.config, case.tensors)
    own = perturbed(own) if perturb else own
    path = folder / ("model.gguf" if case.gguf else "model")
    if case.gguf:
        write_gguf(path, config, own, *case.gguf)
    else:
        write_directory(path, config, own)
    if case.note:
        # What transformers makes of the published files: their config does not say that activations are to be quantized.
        floats = make.load(path)
        off = max(float(np.abs(last_logits(floats, ids) - logits).max()) for ids, logits in zip(found.prompts, found.logits))
        note = f"; transformers itself runs these files with {case.note}, and its logits are up to {off:.1f} from these"
    results = [ours(program, path, case.flags, prompts, device) for device in ("--cpu", "--gpu")]
    for result in results:
        if "error" in result:
            result["error"] = result["error"].replace(f"{folder}/", "").replace("model/", "")
    row = Row(case, results, found, note)
    print(row.line(), flush=True)
    return row


# --- the document


def wrapped(text, first="", rest=""):
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def details(rows):
    model = ""
    for number, row in enumerate(rows, 1):
        case = row.case
        model = case.model if not case.model.startswith("…") else f"{model.split(' …')[0]} {case.model}"
        words = f"{number}. {model}, {case.file}"
        if "error" in row.results[0]:
            error = row.results[0]
            yield wrapped(f"{words}. Refused, `ErrorKind::{error['kind']}`: “{error['error']}”", rest="    ")
        elif not case.compared:
            yield wrapped(f"{words}. Loads, and its logits are finite; compared with nothing.", rest="    ")
        else:
            first = [("reference", row.reference.greedy), ("CPU", row.results[0]["greedy"])]
            first += [("GPU", row.results[1]["greedy"])] if "greedy" in row.results[1] else []
            ids = "; ".join(f"{who} {' '.join(map(str, greedy[1][:SHOWN]))}" for who, greedy in first)
            yield wrapped(f"{words}. Reference: {case.reference}{row.note}. First tokens: {ids}.", rest="    ")


def document(rows):
    devices = [result.get("device", "no GPU") for result in next(row for row in rows if row.reference).results]
    largest = sorted(row.largest for row in rows if row.reference)
    paragraphs = [
        "Small random models, in files laid out as published ones, computed by this crate and by other programs.",
        "Each row below is a tiny model. Its keys in config.json or in the GGUF metadata are those of a published model, and so are the names, types and packing "
        "of its tensors. Only sizes, vocabulary and token ids are smaller. A row shows that such files are read, and computed as the reference computes them. "
        "The released weights themselves have not been loaded here.",
        "`scripts/models-table` writes these tables, and fails if a row is wrong. `scripts/models-table --perturb` makes one scale of every model half as "
        "large again after the reference has run. Every compared row must then say *differs*.",
        f"The reference is transformers in f32 on the CPU, with eager attention (torch {torch.__version__.split('+')[0]}, transformers "
        f"{transformers.__version__}). [Each row](#each-row) says from which files. This crate ran on the CPU and on {devices[1]}. *|Δ|* is the "
        f"largest difference of a logit after the last token of prompts of {LENGTHS[0]}, {LENGTHS[1]} and {LENGTHS[2]} tokens. The largest logits "
        f"are {largest[0]:.0f} to {largest[-1]:.0f}. *Tokens* counts the greedy tokens, {STEPS} after each prompt, that equal those of the reference.",
        "The models in tests/data/models are compared in every run of the tests (`small_models_compute_what_transformers_does`): logits, each layer's "
        "output and greedy tokens. Among them are Gemma 3, Granite, and MiniCPM by the code of Granite, which have no published files here.",
        "Prompts were drawn until every token led the next by 0.25 or more, and no activation lay near a boundary of its 8-bit code. Only there must correct "
        "implementations agree. Elsewhere a flipped code can move a logit by a few tenths, and after a near tie another token may follow. `qwen3` and TriLM "
        "have no such codes. Their activations are floats in the reference, and are rounded here by at most 2^-14.98 of the largest of 128.",
    ]
    head = ["| model | {} | {} | status | CPU: \\|Δ\\| | tokens | GPU: \\|Δ\\| | tokens |", "| --- | --- | --- | --- | --: | --: | --: | --: |"]

    def table(title, chosen, *words):
        return [f"## {title}", "", head[0].format(*words), head[1], *(row.line() for row in chosen), ""]

    lines = ["# Model checks", ""]
    for paragraph in paragraphs:
        lines += [wrapped(paragraph), ""]
    lines += table("Safetensors", [row for row in rows if not row.case.gguf], "linear layers", "config.json")
    lines += table("GGUF", [row for row in rows if row.case.gguf], "linear layers", "architecture")
    lines += ["## Each row", "", *details(rows)]
    return "\n".join(lines) + "\n"


def of_other_scripts():
    """The last sections, which the against_*.py write."""
    text = DOCUMENT.read_text()
    places = [text.find(f"\n## {title}\n") for title in ("Beside MLX", "Written here, read by llama.cpp", "Of a hundred million weights")]
    first = min([place for place in places if place >= 0], default=len(text))
    return text[first:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the example model_row of this package")
    parser.add_argument("--perturb", action="store_true", help="change a scale, and print the table instead of writing it")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    make.STEPS = STEPS
    with tempfile.TemporaryDirectory() as folder:
        cases = [*safetensors_cases(), *gguf_cases()]
        rows = [run(case, Path(folder) / str(number), Path(arguments.program).resolve(), arguments.perturb) for number, case in enumerate(cases)]
    if arguments.perturb:
        bad = [row for row in rows if row.reference and row.status()[1]]
        print(f"{len(bad)} rows do not show the changed scale")
    else:
        bad = [row for row in rows if not row.status()[1]]
        DOCUMENT.write_text(document(rows) + of_other_scripts())
        print(f"{DOCUMENT}: {len(rows)} rows, {len(bad)} not as they should be")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
