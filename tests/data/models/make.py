#!/usr/bin/env python3
"""Makes the small random models in this folder, and reference outputs of them by transformers.

    pip install torch transformers accelerate safetensors numpy    # made with torch 2.15, transformers 5.23, on a CPU
    tests/data/models/make.py [name ...]

Each <name>/ has config.json, model.safetensors (or shards) and golden.safetensors:

    prompt{0,1,2}.ids            int32, of 1, 7 and 40 tokens
    .last_logits, _f64           after the last token: transformers in f32; the f64 forward below
    .greedy                      int32 [24], the continuation by transformers
    .greedy_margin               top-1 minus top-2 logit at each step
    .safe_steps                  int32 [1], steps before the first margin under 0.25
    .spread                      f32 [1], largest |difference| of last logits between transformers f32, our f64 and our f32
    .code_margin                 f32 [1], the smallest distance of a scaled activation from a rounding boundary of its code (f64)
    .greedy_code_margin          f32 [1], the same, over prompt and continuation
    prompt1.embed.out, .layer{i}.{attn,mlp}.out (before the residual is added), .layer{i}.out, .final_norm.out, .logits
    text.ids, text.nll, _f64     100 tokens; nll[i] of ids[i + 1] given ids[..= i]
    text.spread, .code_margin    f32 [1], as above; the spread is of a token's nll

The reference is transformers in f32 with eager attention (`BitNetForCausalLM`, `LlamaForCausalLM`, `Qwen3ForCausalLM`, `Gemma3ForCausalLM`, `GraniteForCausalLM`, for MiniCPM too, `Qwen3MoeForCausalLM`,
`Qwen3_5ForCausalLM`); the f64 forward pass shares no code with it and is a cross-check. Maple's is the f64 forward pass. Prompts (with their continuations) and text are chosen so that no activation is close to a rounding boundary
of its code, so that correct implementations agree to float rounding. Elsewhere a single flipped code can move a logit by 1.
"""

import json
import os
import shutil
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # no fusing, which would change roundings

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

HERE = Path(__file__).parent
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
LENGTHS = [1, 7, 40]
CODE_MARGIN, LONG_CODE_MARGIN = [1e-4, 1e-4, 3e-5], 1.5e-5
STEPS, SAFE, TEXT = 24, 0.25, 100

BITNET = {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2", "attention_bias": False}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False}
OFFLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}


MINICPM = {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "hidden_act": "silu", "attention_bias": False}
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 256,
}
QWEN35 = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_act": "silu", "attention_bias": False}
RECURRENT = "linear_attention"
RATES = ["linear_attn.in_proj_a", "linear_attn.in_proj_b"]
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "attention_bias": False}
MAPLE = {"architectures": ["MapleForCausalLM"], "model_type": "maple", "hidden_act": "silu", "use_bias": False}
GRANITE = {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
WINDOW, WHOLE = "sliding_attention", "full_attention"
# Of a head, one each pair.
FACTORS = [1.0, 1.05, 1.2, 1.5, 2.1, 3.3, 5.0]


def experts(count, used, inner, normalized):
    return {"num_experts": count, "num_experts_per_tok": used, "moe_intermediate_size": inner, "norm_topk_prob": normalized}


def shape(hidden, intermediate, layers, heads, kv_heads, head_dim, vocab):
    return {
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": vocab,
    }


CASES = {
    # No size is a multiple of 16; three query heads per key-value head. (attn_sub_norm needs heads * head_dim = hidden; `llama` has none.)
    "odd": {
        "config": BITNET | shape(84, 132, 2, 6, 2, 14, 301) | {
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
            "bos_token_id": 299, "eos_token_id": 300, "max_position_embeddings": 256,
            "quantization_config": {"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline"},
        },
        "side": torch.float32, "reciprocal": True, "seed": 1,
    },
    # Configuration keys as transformers 5 writes them.
    "newer": {
        "config": BITNET | shape(128, 320, 2, 4, 2, 32, 512) | {
            "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "tie_word_embeddings": True,
            "dtype": "bfloat16", "bos_token_id": 510, "eos_token_id": 511, "max_position_embeddings": 256, "quantization_config": OFFLINE,
        },
        "side": torch.bfloat16, "reciprocal": False, "seed": 2,
    },
    # Float weights, quantized while loading. One key-value head.
    "online": {
        "config": BITNET | shape(64, 176, 2, 4, 1, 16, 300) | {
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "bos_token_id": 298, "eos_token_id": 299, "max_position_embeddings": 256,
            "quantization_config": OFFLINE | {"quantization_mode": "online"},
        },
        "side": torch.bfloat16, "masters": True, "seed": 3,
    },
    # heads * head_dim is not hidden.
    "llama": {
        "config": LLAMA | shape(96, 216, 3, 4, 2, 40, 320) | {
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float16",
            "bos_token_id": 317, "eos_token_id": [318, 319], "max_position_embeddings": 256,
            "quantization_config": {"quant_method": "bitnet"},
        },
        "side": torch.float16, "reciprocal": True, "seed": 4,
    },
    # Rotary scaling of Llama 3.1, with numbers for which some frequencies are kept, some divided, some in between.
    "sharded": {
        "config": LLAMA | shape(96, 200, 2, 3, 1, 32, 288) | {
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "bos_token_id": 286, "eos_token_id": 287, "max_position_embeddings": 512,
            "quantization_config": {"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline"},
        },
        "side": torch.bfloat16, "reciprocal": True, "shards": 2, "seed": 5,
    },
    # Activations in floats, weights of -a, 0, a by 128 columns (of which the last are fewer), norms of heads, and YaRN, whose ramp has all of its
    # three parts. A head size that is no multiple of 4.
    "qwen3": {
        "config": QWEN3 | shape(64, 144, 2, 4, 2, 38, 300) | {
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
            "bos_token_id": 297, "eos_token_id": [298, 299], "max_position_embeddings": 2048,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 6,
    },
    # A norm in every linear layer, before its activations are quantized, as in embedding models made of Qwen3.
    "normed": {
        "config": QWEN3 | shape(48, 80, 2, 4, 2, 12, 200) | {
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "bos_token_id": 198, "eos_token_id": 199, "max_position_embeddings": 256,
            "quantization_config": OFFLINE | {"use_rms_norm": True, "rms_norm_eps": 1e-6},
        },
        "side": torch.bfloat16, "reciprocal": False, "seed": 7,
    },
    # Embedding, residual stream and logits have factors, and every rotary frequency one of its own, beyond the original context too.
    "minicpm": {
        "config": MINICPM | shape(56, 96, 2, 4, 2, 14, 200) | {
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "rope_scaling": {
                "rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS, "original_max_position_embeddings": 32,
            },
            "scale_emb": 3, "scale_depth": 2.4, "dim_model_base": 32,
            "bos_token_id": 198, "eos_token_id": 199, "max_position_embeddings": 256,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 8,
    },
    # A plain Llama in f16 whose weights are -a, 0 and a in each of two parts of a matrix, which were on two devices: parts of the rows, or of the columns
    # where these are the other's rows. TriLM's larger models.
    "trilm": {
        "config": LLAMA | shape(40, 256, 2, 8, 2, 32, 240) | {
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float16",
            "bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 256,
        },
        "side": torch.float16, "parts": 2, "seed": 9,
    },
    # Gemma 3 as an embedding model of BitNet's has it, with a norm in every linear layer. A window shorter than the texts, by another rotary base; queries
    # with a scale of their own; and an embedding whose scale, the root of 28, is rounded to bf16.
    "gemma3": {
        "config": GEMMA3 | shape(28, 48, 2, 4, 1, 12, 300) | {
            "query_pre_attn_scalar": 20, "sliding_window": 5, "layer_types": [WINDOW, WHOLE],
            "rope_parameters": {
                WHOLE: {"rope_type": "linear", "factor": 2.0, "rope_theta": 100000.0}, WINDOW: {"rope_type": "default", "rope_theta": 500.0},
            },
            "bos_token_id": 298, "eos_token_id": 299, "quantization_config": OFFLINE | {"use_rms_norm": True, "rms_norm_eps": 1e-6},
        },
        "side": torch.bfloat16, "reciprocal": False, "seed": 10,
    },
    # The same without these norms; keys as older transformers wrote them.
    "gemma3_plain": {
        "config": GEMMA3 | shape(40, 72, 2, 2, 1, 20, 300) | {
            "query_pre_attn_scalar": 20, "sliding_window": 9, "sliding_window_pattern": 2, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
            "bos_token_id": 298, "eos_token_id": 299, "quantization_config": OFFLINE,
        },
        "side": torch.bfloat16, "reciprocal": False, "seed": 11,
    },
    # Activations in floats, a window of more than a share of 64 positions.
    "gemma3_floats": {
        "config": GEMMA3 | shape(48, 72, 2, 4, 2, 16, 300) | {
            "query_pre_attn_scalar": 12, "sliding_window": 67, "layer_types": [WINDOW, WHOLE], "torch_dtype": "float16",
            "rope_parameters": {WHOLE: {"rope_type": "default", "rope_theta": 20000.0}, WINDOW: {"rope_type": "default", "rope_theta": 300.0}},
            "bos_token_id": 298, "eos_token_id": 299,
        },
        "side": torch.float16, "groups": 128, "seed": 12,
    },
    # Embedding, scores, residual stream and logits have factors. The root of the head size is not rational.
    "granite": {
        "config": GRANITE | shape(60, 104, 2, 6, 2, 10, 220) | {
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "embedding_multiplier": 0.4, "attention_multiplier": 0.2, "residual_multiplier": 0.6, "logits_scaling": 1.25,
            "bos_token_id": 218, "eos_token_id": 219, "max_position_embeddings": 256,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 13,
    },
    # Layers of gated DeltaNet, with three value heads for a key head, around one of gated attention, of which a part of each head rotates.
    "qwen35": {
        "config": QWEN35 | shape(48, 80, 4, 4, 2, 20, 260) | {
            "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4},
            "layer_types": [RECURRENT, RECURRENT, WHOLE, RECURRENT], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 12,
            "linear_value_head_dim": 10, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
            "bos_token_id": 257, "eos_token_id": [258, 259], "max_position_embeddings": 256,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 15,
    },
    # A mixture of experts whose weights add up to 1. No size is a multiple of 16.
    "qwen3_moe": {
        "config": QWEN3_MOE | shape(36, 99, 2, 4, 2, 14, 200) | experts(7, 3, 20, True) | {
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "bos_token_id": 198, "eos_token_id": 199, "max_position_embeddings": 256,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 14,
    },
    # Weights that do not, and groups of 128 columns.
    "qwen3_moe_groups": {
        "config": QWEN3_MOE | shape(32, 8, 2, 2, 1, 16, 180) | experts(4, 2, 136, False) | {
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "bos_token_id": 178, "eos_token_id": 179, "max_position_embeddings": 256,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 15,
    },
    # Clamped gates, and layers that rotate a part of each head where they see a window, and nothing elsewhere.
    "maple": {
        "config": MAPLE | shape(40, 99, 3, 4, 2, 20, 200) | experts(6, 2, 18, True) | {
            "rms_norm_eps": 1e-6, "rope_theta": 500.0, "partial_rotary_factor": 0.6, "sliding_window": 8, "layer_types": [WINDOW, WINDOW, WHOLE],
            "nope_on_global_attention": True, "num_shared_experts": 0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "bos_token_id": 198, "eos_token_id": 199, "max_position_embeddings": 256,
        },
        "side": torch.bfloat16, "groups": 128, "seed": 16,
    },
}


# --- weights


def is_recurrent(config, layer):
    return config["model_type"] == "qwen3_5_text" and config["layer_types"][layer] == RECURRENT


def linears(config, layer):
    """The linear layers of a layer."""
    if "num_experts" in config:
        return LINEARS[:4] + [f"mlp.experts.{n}.{part}_proj" for n in range(config["num_experts"]) for part in ("gate", "up", "down")]
    if not is_recurrent(config, layer):
        return LINEARS
    return [f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "out_proj")] + LINEARS[4:]


def delta_sizes(config):
    """Features of queries (and of keys), and of values, of recurrent layers."""
    sizes = [config[f"linear_num_{kind}_heads"] * config[f"linear_{kind}_head_dim"] for kind in ("key", "value")]
    return sizes[0], sizes[1]


def linear_shape(config, name):
    if name.startswith("linear_attn"):
        keys, values = delta_sizes(config)
        hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
        sizes = {"qkv": (2 * keys + values, hidden), "z": (values, hidden), "a": (heads, hidden), "b": (heads, hidden), "proj": (hidden, values)}
        return sizes[name.split("_")[-1]]
    hidden, inner = config["hidden_size"], config.get("moe_intermediate_size", config["intermediate_size"])
    q, kv = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    gated = 2 if config["model_type"] == "qwen3_5_text" else 1
    sizes = {"q": (gated * q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q), "down": (hidden, inner)}
    return sizes.get(name.split(".")[-1].removesuffix("_proj"), (inner, hidden))


def pack(codes):
    """Row r + i·R of 4·R rows goes to bit 2·i of byte row r."""
    quarters = (codes + 1).astype(np.uint8).reshape(4, -1, codes.shape[1])
    return torch.from_numpy(quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6)


def masters(rng, rows, columns, beta):
    """bf16 weights, none near half of their absmean, where another order of summation could change a code."""
    weights = torch.from_numpy(rng.normal(0, beta, (rows, columns))).bfloat16()
    for _ in range(100):
        scaled = weights.double() / weights.double().abs().mean()
        near = (scaled.abs() - 0.5).abs() < 1e-4
        if not near.any():
            return weights
        weights = torch.where(near, weights * 1.03, weights)
    raise RuntimeError("weights stay near the boundary")


def has_norms(config):
    """Is there a norm in every linear layer?"""
    return config.get("quantization_config", {}).get("use_rms_norm", False)


def make_tensors(case):
    config, side, rng = case["config"], case["side"], np.random.default_rng(case["seed"])
    bitnet = config["model_type"] == "bitnet"
    hidden, vocab = config["hidden_size"], config["vocab_size"]

    gemma = config["model_type"] == "gemma3_text"
    hybrid = config["model_type"] == "qwen3_5_text"
    less_one = gemma or hybrid

    def gains(n, mean=1):
        return torch.from_numpy(rng.normal(mean, 0.1, n)).to(side)

    # Gemma's embedding is scaled, and what is added is of length one before its gains: they make up for it.
    tensors = {"model.embed_tokens.weight": torch.from_numpy(rng.normal(0, 0.1 if gemma else 1, (vocab, hidden))).to(side)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if bitnet:
            norms |= {"self_attn.attn_sub_norm": hidden, "mlp.ffn_sub_norm": config["intermediate_size"]}
        if "num_experts" in config:
            router = rng.normal(0, 1.5 / np.sqrt(hidden), (config["num_experts"], hidden))
            tensors[f"{prefix}mlp.gate.weight"] = torch.from_numpy(router).to(side)
        if config["model_type"] in ("qwen3", "qwen3_moe", "maple") or hybrid and not is_recurrent(config, layer):
            norms |= {"self_attn.q_norm": config["head_dim"], "self_attn.k_norm": config["head_dim"]}
        if gemma:
            norms |= {"pre_feedforward_layernorm": hidden, "post_feedforward_layernorm": hidden}
            norms |= {"self_attn.q_norm": config["head_dim"], "self_attn.k_norm": config["head_dim"]}
        for name, n in norms.items():
            added = name in ("post_attention_layernorm", "post_feedforward_layernorm")
            tensors[f"{prefix}{name}.weight"] = gains(n, (2 if added and gemma else 0) if less_one else 1)
        if is_recurrent(config, layer):
            keys, values = delta_sizes(config)
            heads, own = config["linear_num_value_heads"], f"{prefix}linear_attn."
            tensors[f"{own}conv1d.weight"] = torch.from_numpy(rng.normal(0, 0.7, (2 * keys + values, 1, config["linear_conv_kernel_dim"]))).to(side)
            tensors[f"{own}dt_bias"] = torch.from_numpy(rng.normal(0, 1, heads)).to(side)
            tensors[f"{own}A_log"] = torch.from_numpy(np.log(rng.uniform(0.05, 2, heads))).to(side)
            tensors[f"{own}norm.weight"] = gains(config["linear_value_head_dim"])
            for name in RATES:
                tensors[f"{prefix}{name}.weight"] = torch.from_numpy(rng.normal(0, hidden**-0.5, (heads, hidden))).to(side)
        for name in linears(config, layer):
            rows, columns = linear_shape(config, name)
            # Outputs of about 1.5, and residuals larger than the embedding, so that a tied head does not just predict the input token.
            gain = 3.0 if name.endswith(("o_proj", "down_proj", "out_proj")) else 1.5
            beta = gain * rng.uniform(0.8, 1.25) / np.sqrt(0.6 * columns)
            if has_norms(config):
                tensors[f"{prefix}{name}.rms_norm.weight"] = gains(columns)
            if case.get("masters"):
                tensors[f"{prefix}{name}.weight"] = masters(rng, rows, columns, beta)
                continue
            codes = rng.choice([-1, 0, 1], (rows, columns), p=[0.3, 0.4, 0.3])
            if size := case.get("groups"):
                scales = beta * rng.uniform(0.5, 1.5, (rows, -(-columns // size)))
                tensors[f"{prefix}{name}.weight"] = torch.from_numpy(codes * np.repeat(scales, size, 1)[:, :columns]).to(side)
                continue
            if parts := case.get("parts"):
                scales = torch.from_numpy(beta * rng.uniform(0.5, 1.5, parts)).to(side)
                axis = 1 if name.endswith(("o_proj", "down_proj")) else 0
                pieces = np.split(codes, parts, axis)
                pieces = [torch.from_numpy(piece).to(side) * scale for piece, scale in zip(pieces, scales)]
                tensors[f"{prefix}{name}.weight"] = torch.cat(pieces, axis).contiguous()
                continue
            scale = 1 / beta if case["reciprocal"] else beta
            tensors[f"{prefix}{name}.weight"] = pack(codes)
            tensors[f"{prefix}{name}.weight_scale"] = torch.tensor([scale], dtype=side)
    tensors["model.norm.weight"] = gains(hidden, 0 if less_one else 1)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = torch.from_numpy(rng.normal(0, 1, (vocab, hidden))).to(side)
    if config["model_type"] == "maple":
        tensors["model.word_embeddings.weight"] = tensors.pop("model.embed_tokens.weight")
        # So that some gates and ups are clamped, and outputs are as large as elsewhere.
        for name in [name for name in tensors if ".experts." in name]:
            tensors[name] = tensors[name] * (0.25 if "down_proj" in name else 2.5)
    return tensors


def write_model(directory, case):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(case["config"], indent=2) + "\n")
    tensors, shards = make_tensors(case), case.get("shards", 1)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return
    # Split in the middle of a layer, between a linear layer's codes and its scale.
    names = list(tensors)
    cut = next(i for i, name in enumerate(names) if name == "model.layers.1.self_attn.k_proj.weight_scale")
    index = {}
    for i, part in enumerate([names[:cut], names[cut:]]):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file, {"format": "pt"})
        index |= {name: file for name in part}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}, indent=2)
    (directory / "model.safetensors.index.json").write_text(text + "\n")


# --- our own forward pass, from the files


def factors(config):
    """What embedding, residual stream and logits are multiplied by."""
    if config["model_type"] == "gemma3_text":
        return float(torch.tensor(config["hidden_size"] ** 0.5).to(getattr(torch, config["torch_dtype"]))), 1, 1
    if config["model_type"] == "granite":
        return config["embedding_multiplier"], config["residual_multiplier"], 1 / config["logits_scaling"]
    if config["model_type"] != "minicpm":
        return 1, 1, 1
    return config["scale_emb"], config["scale_depth"] / config["num_hidden_layers"] ** 0.5, config["dim_model_base"] / config["hidden_size"]


def is_yarn(scaling):
    return scaling.get("rope_type", scaling.get("type")) == "yarn"


class Forward:
    def __init__(self, directory, dtype):
        self.dtype = dtype
        self.config = json.loads((directory / "config.json").read_text())
        self.config.setdefault("head_dim", self.config["hidden_size"] // self.config["num_attention_heads"])
        # Activations are not quantized.
        kinds = ("qwen3", "qwen3_moe", "maple", "minicpm", "llama", "gemma3_text", "granite", "qwen3_5_text")
        self.floats = self.config["model_type"] in kinds and "quantization_config" not in self.config
        self.tensors = {}
        for file in directory.glob("model*.safetensors"):
            self.tensors |= load_file(file)
        if self.config["model_type"] == "maple":
            self.tensors["model.embed_tokens.weight"] = self.tensors.pop("model.word_embeddings.weight")
        self.linears = {name: self.read_linear(name) for layer in range(self.config["num_hidden_layers"])
                        for name in (f"model.layers.{layer}.{linear}" for linear in linears(self.config, layer))}

    def array(self, name):
        return self.tensors[name].double().numpy().astype(self.dtype)

    def read_linear(self, name):
        weight = self.tensors[f"{name}.weight"]
        if self.floats:
            return self.array(f"{name}.weight"), self.dtype(1)
        if weight.dtype != torch.uint8:
            weight = weight.double().numpy()
            beta = max(np.abs(weight).mean(), 1e-5)
            return np.clip(np.rint(weight / beta), -1, 1), self.dtype(beta)
        packed = weight.numpy()
        codes = np.concatenate([(packed >> shift & 3).astype(np.float64) - 1 for shift in (0, 2, 4, 6)])
        rows, _ = linear_shape(self.config, ".".join(name.split(".")[3:]))
        scale = self.array(f"{name}.weight_scale")[0]
        multiply = self.config["quantization_config"].get("linear_class") == "autobitlinear"
        return codes[:rows], scale if multiply else self.dtype(1) / scale

    def linear(self, name, x):
        codes, beta = self.linears[name]
        if has_norms(self.config):
            x = self.norm(f"{name}.rms_norm", x)
        if self.floats:
            return x @ codes.T
        a = self.dtype(127) / np.maximum(np.abs(x).max(-1, keepdims=True), self.dtype(1e-5))
        scaled = x * a
        self.code_margin = min(self.code_margin, np.abs(scaled - np.floor(scaled) - 0.5).min())
        sums = np.clip(np.rint(scaled), -128, 127).astype(np.float64) @ codes.T  # integers, exact
        return sums.astype(self.dtype) * (beta / a)

    def norm(self, name, x):
        mean = np.mean(x * x, -1, keepdims=True, dtype=self.dtype)
        gains = self.array(f"{name}.weight")
        less_one = self.config["model_type"] in ("gemma3_text", "qwen3_5_text")
        if less_one and not name.endswith(("rms_norm", "linear_attn.norm")):
            gains = gains + self.dtype(1)
        return x / np.sqrt(mean + self.dtype(self.config["rms_norm_eps"])) * gains

    def window(self, layer):
        """How many positions a token of a layer sees, where these are not all."""
        config = self.config
        if config["model_type"] == "maple":
            # Its own code counts the positions before a token.
            return config["sliding_window"] + 1 if config["layer_types"][layer] == WINDOW else None
        if config["model_type"] != "gemma3_text":
            return None
        local = config["layer_types"][layer] == WINDOW if "layer_types" in config else (layer + 1) % config["sliding_window_pattern"] != 0
        return config["sliding_window"] if local else None

    def frequencies(self, local=False):
        config = self.config
        parameters = config.get("rope_parameters", {})
        parameters = parameters.get(WINDOW if local else WHOLE, parameters)
        theta = parameters.get("rope_theta") or config["rope_local_base_freq" if local else "rope_theta"]
        half = int(config["head_dim"] * parameters.get("partial_rotary_factor", 1)) // 2
        frequencies = theta ** (-np.arange(half, dtype=np.float64) / half)
        scaling = config.get("rope_scaling")
        if parameters.get("rope_type") == "linear":
            return frequencies / parameters["factor"]
        if scaling is None:
            return frequencies
        if scaling.get("rope_type") == "longrope":
            return frequencies / np.array(scaling["short_factor"])
        if is_yarn(scaling):
            # Turns in the original context fall with the pair's number; between 32 turns and 1, whole pairs outwards, is the ramp.
            pair = [half * np.log(scaling["original_max_position_embeddings"] / (turns * 2 * np.pi)) / np.log(theta) for turns in (32, 1)]
            low, high = max(np.floor(pair[0]), 0), min(np.ceil(pair[1]), 2 * half - 1)
            divided = np.clip((np.arange(half) - low) / (high - low), 0, 1)
            return frequencies * (1 - divided + divided / scaling["factor"])
        assert scaling["rope_type"] == "llama3"
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return frequencies * (kept + (1 - kept) / scaling["factor"])

    def rotate(self, x, local=False):
        """x [heads, tokens, head_dim]"""
        if self.config["model_type"] == "maple":
            return self.rotate_part(x) if local else x
        angles = np.arange(x.shape[1])[:, None] * self.frequencies(local)
        scaling = self.config.get("rope_scaling") or {}
        factor = 0.1 * np.log(scaling["factor"]) + 1 if is_yarn(scaling) else 1
        if scaling.get("rope_type") == "longrope":
            original = scaling["original_max_position_embeddings"]
            factor = np.sqrt(1 + np.log(self.config["max_position_embeddings"] / original) / np.log(original))
        cos, sin = (factor * np.cos(angles)).astype(self.dtype), (factor * np.sin(angles)).astype(self.dtype)
        first, second, rest = np.split(x, [cos.shape[1], 2 * cos.shape[1]], -1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)

    def rotate_part(self, x):
        """Feature i of the first ones rotates with feature i + dims / 2."""
        dims = int(self.config["head_dim"] * self.config["partial_rotary_factor"])
        frequencies = self.config["rope_theta"] ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
        angles = np.arange(x.shape[1])[:, None] * frequencies
        cos, sin = np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)
        first, second, rest = np.split(x, [dims // 2, dims], -1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)

    def attention(self, prefix, x):
        config, tokens = self.config, len(x)
        head_dim = config["head_dim"]
        hybrid = config["model_type"] == "qwen3_5_text"
        products = [self.linear(f"{prefix}{name}_proj", x).reshape(tokens, -1, head_dim) for name in "qkv"]
        if hybrid:
            gate = products[0][:, 1::2].reshape(tokens, -1)
            products[0] = products[0][:, ::2]
        q, k, v = (product.swapaxes(0, 1) for product in products)
        if config["model_type"] in ("qwen3", "qwen3_moe", "maple", "gemma3_text", "qwen3_5_text"):
            q, k = self.norm(f"{prefix}q_norm", q), self.norm(f"{prefix}k_norm", k)
        window = self.window(int(prefix.split(".")[2]))
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = np.repeat(self.rotate(k, window is not None), group, 0), np.repeat(v, group, 0)
        factor = config.get("attention_multiplier", config.get("query_pre_attn_scalar", head_dim) ** -0.5)
        scores = self.rotate(q, window is not None) @ k.swapaxes(1, 2) * self.dtype(factor)
        seen = np.tri(tokens, dtype=bool) & ~np.tri(tokens, k=-(window or tokens), dtype=bool)
        scores = np.where(seen, scores, self.dtype(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = (weights @ v).swapaxes(0, 1).reshape(tokens, -1)
        if self.config["model_type"] == "bitnet":
            out = self.norm(f"{prefix}attn_sub_norm", out)
        if hybrid:
            out = out / (1 + np.exp(-gate))
        return self.linear(f"{prefix}o_proj", out)

    def delta(self, prefix, x):
        """Gated DeltaNet, token by token."""
        config, tokens = self.config, len(x)
        (keys, values), kernel = delta_sizes(config), config["linear_conv_kernel_dim"]
        heads, size = config["linear_num_value_heads"], config["linear_key_head_dim"]
        mixed, z = self.linear(f"{prefix}in_proj_qkv", x), self.linear(f"{prefix}in_proj_z", x).reshape(tokens, heads, -1)
        a, b = (x @ self.array(f"{prefix}in_proj_{name}.weight").T for name in "ab")
        padded = np.concatenate([np.zeros((kernel - 1, mixed.shape[1]), self.dtype), mixed])
        weights = self.array(f"{prefix}conv1d.weight")[:, 0].T
        mixed = sum(padded[j : j + tokens] * weights[j] for j in range(kernel))
        mixed = mixed / (1 + np.exp(-mixed))
        q, k, v = np.split(mixed, [keys, 2 * keys], -1)
        group = heads // config["linear_num_key_heads"]
        q, k = (np.repeat(part.reshape(tokens, -1, size), group, 1) for part in (q, k))
        q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + self.dtype(1e-6)) for part in (q, k))
        v, beta = v.reshape(tokens, heads, -1), 1 / (1 + np.exp(-b))
        decay = np.exp(-np.exp(self.array(f"{prefix}A_log")) * np.log1p(np.exp(a + self.array(f"{prefix}dt_bias"))))
        state, out = np.zeros((heads, size, v.shape[-1]), self.dtype), np.empty_like(v)
        for t in range(tokens):
            state = state * decay[t, :, None, None]
            change = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t, :, None]
            state = state + k[t, :, :, None] * change[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t]) / self.dtype(size**0.5)
        out = self.norm(f"{prefix}norm", out) * (z / (1 + np.exp(-z)))
        return self.linear(f"{prefix}out_proj", out.reshape(tokens, values))

    def experts(self, prefix, x):
        """The sum of each token's experts, by the weights that the router gives them."""
        config, used = self.config, self.config["num_experts_per_tok"]
        logits = x @ self.array(f"{prefix}gate.weight").T
        order = np.argsort(-logits, -1, kind="stable")
        ranked = np.take_along_axis(logits, order, -1)
        # Where rounding could choose another expert: a logit is off by a hundred times as much as an activation.
        self.code_margin = min(self.code_margin, (ranked[:, used - 1] - ranked[:, used]).min() / 100)
        powers = np.exp(ranked - ranked[:, :1])
        weights = powers[:, :used] / powers[:, :used if config["norm_topk_prob"] else None].sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(config["num_experts"]):
            tokens, ranks = np.nonzero(order[:, :used] == expert)
            if len(tokens):
                out[tokens] += weights[tokens, ranks, None] * self.feed_forward(f"{prefix}experts.{expert}.", x[tokens])
        return out

    def feed_forward(self, prefix, x):
        if f"{prefix}gate.weight" in self.tensors:
            return self.experts(prefix, x)
        gate, up = (self.linear(f"{prefix}{name}_proj", x) for name in ("gate", "up"))
        if self.config["model_type"] == "maple":
            gate, up = np.minimum(gate, self.dtype(7)), np.clip(up, self.dtype(-7), self.dtype(7))
        if "hidden_activation" in self.config:
            out = gate * 0.5 * (1 + np.tanh(np.sqrt(self.dtype(2 / np.pi)) * (gate + self.dtype(0.044715) * gate**3))) * up
        else:
            out = (np.maximum(gate, 0) ** 2 if self.config["hidden_act"] == "relu2" else gate / (1 + np.exp(-gate))) * up
        if self.config["model_type"] == "bitnet":
            out = self.norm(f"{prefix}ffn_sub_norm", out)
        return self.linear(f"{prefix}down_proj", out)

    def logits(self, ids):
        """The logits of all tokens, [tokens, vocab]."""
        self.code_margin = np.inf
        embedding, residual, head_factor = map(self.dtype, factors(self.config))
        x = self.array("model.embed_tokens.weight")[ids] * embedding
        self.outputs = {"embed.out": x}
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            mixer = (self.delta, "linear_attn.") if is_recurrent(self.config, layer) else (self.attention, "self_attn.")
            attended = mixer[0](f"{prefix}{mixer[1]}", self.norm(f"{prefix}input_layernorm", x))
            if self.config["model_type"] == "gemma3_text":
                x = x + self.norm(f"{prefix}post_attention_layernorm", attended)
                fed = self.feed_forward(f"{prefix}mlp.", self.norm(f"{prefix}pre_feedforward_layernorm", x))
                x = x + self.norm(f"{prefix}post_feedforward_layernorm", fed)
                continue
            x = x + residual * attended
            fed = self.feed_forward(f"{prefix}mlp.", self.norm(f"{prefix}post_attention_layernorm", x))
            x = x + residual * fed
            self.outputs |= {f"layer{layer}.attn.out": attended, f"layer{layer}.mlp.out": fed, f"layer{layer}.out": x}
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        self.outputs["final_norm.out"] = self.norm("model.norm", x)
        return self.outputs["final_norm.out"] * head_factor @ self.array(f"{head}.weight").T

    def greedy_is_safe(self, ids):
        """Are all margins well above the threshold, no activation near a rounding boundary, and the tokens varied?"""
        ids = list(ids)
        for _ in range(STEPS):
            last = self.logits(ids)[-1]
            second, first = np.sort(last)[-2:]
            if first - second < 1.1 * SAFE or self.code_margin < LONG_CODE_MARGIN:
                return False
            ids.append(int(last.argmax()))
        return len(set(ids[-STEPS:])) >= STEPS // 2


def choose_prompt(forward, rng, length, code_margin):
    for _ in range(50000):
        ids = rng.choice(forward.config["vocab_size"], length)
        forward.logits(ids)
        if forward.code_margin >= code_margin and forward.greedy_is_safe(ids):
            return ids
    raise RuntimeError(f"no safe prompt of {length} tokens")


def nll(logits, ids):
    logits = logits.astype(np.float64)
    top = logits.max(-1)
    return (np.log(np.exp(logits - top[:, None]).sum(-1)) + top)[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]


# --- transformers


@torch.no_grad()
def recorded(model, ids):
    """The outputs of modules, and the logits."""
    if isinstance(model, Forward):
        logits = model.logits(ids)
        return {name: torch.from_numpy(value).float() for name, value in (model.outputs | {"logits": logits}).items()}
    outputs, hooks = {}, []

    def record(name, module):
        def hook(_module, _inputs, output):
            outputs[name] = (output[0] if isinstance(output, tuple) else output).reshape(len(ids), -1).clone()

        hooks.append(module.register_forward_hook(hook))

    record("embed.out", model.model.embed_tokens)
    record("final_norm.out", model.model.norm)
    for i, layer in enumerate(model.model.layers):
        record(f"layer{i}.out", layer)
        record(f"layer{i}.attn.out", layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn)
        record(f"layer{i}.mlp.out", layer.mlp)
    outputs["logits"] = model(torch.tensor([ids.tolist()]), use_cache=False).logits[0].clone()
    for hook in hooks:
        hook.remove()
    if model.config.model_type == "gemma3_text":
        # As it is before it is scaled.
        outputs["embed.out"] = model.model.embed_tokens.weight[torch.tensor(ids.tolist())].clone()
    return outputs


@torch.no_grad()
def greedy(model, ids):
    """Tokens and margins, with transformers' cache."""
    if isinstance(model, Forward):
        tokens, margins = [], []
        for _ in range(STEPS):
            logits = model.logits([*ids, *tokens])[-1]
            second, first = np.sort(logits)[-2:]
            tokens.append(int(logits.argmax()))
            margins.append(float(first - second))
        return tokens, margins
    inputs, past, tokens, margins = torch.tensor([ids.tolist()]), None, [], []
    for _ in range(STEPS):
        output = model(inputs, past_key_values=past, use_cache=True)
        past = output.past_key_values
        top = output.logits[0, -1].topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        inputs = top.indices[:1][None]
    return tokens, margins


def spread(*values):
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a in values for b in values)


def granite(directory):
    """MiniCPM is not in transformers, and Granite has the same factors."""
    config = json.loads((directory / "config.json").read_text())
    embedding, residual, head = factors(config)
    keys = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "rms_norm_eps",
            "rope_theta", "rope_scaling", "tie_word_embeddings", "max_position_embeddings", "bos_token_id", "eos_token_id"]
    settings = GraniteConfig(
        **{key: config[key] for key in keys}, embedding_multiplier=embedding, residual_multiplier=residual, logits_scaling=1 / head,
        attention_multiplier=config["head_dim"] ** -0.5, attn_implementation="eager",
    )
    model = GraniteForCausalLM(settings).float()
    missing = model.load_state_dict({name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"]), missing
    model.tie_weights()
    return model.eval()


def load(directory):
    if json.loads((directory / "config.json").read_text())["model_type"] == "maple":
        # It is not in transformers. Where it agrees with Qwen3-MoE, the forward pass is compared with that.
        return Forward(directory, np.float64)
    if json.loads((directory / "config.json").read_text())["model_type"] == "minicpm":
        return granite(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    # For a quantized model, transformers ignores `dtype` and keeps the checkpoint's types.
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] == "gemma3_text":
        # In the type of the file, as it is where the model is run in that.
        model.model.embed_tokens.embed_scale.data.fill_(factors(config)[0])
    return model


def make_golden(directory, seed):
    model, f64, f32 = load(directory), Forward(directory, np.float64), Forward(directory, np.float32)
    rng, golden = np.random.default_rng(1000 + seed), {}
    for i, length in enumerate(LENGTHS):
        ids = choose_prompt(f64, rng, length, CODE_MARGIN[i])
        outputs, ours = recorded(model, ids), f64.logits(ids)[-1]
        last, code_margin = outputs["logits"][-1], f64.code_margin
        tokens, margins = greedy(model, ids)
        everything = f64.logits([*ids, *tokens[:-1]])[length - 1:]
        assert everything.argmax(-1).tolist() == tokens
        safe = next((step for step, margin in enumerate(margins) if margin < SAFE), STEPS)
        difference = spread(last.numpy(), ours, f32.logits(ids)[-1])
        print(f"  prompt{i}: {length} ids, logits std {ours.std():.2f}, spread {difference:.1e}, code margin {code_margin:.1e}, "
              f"with its continuation {f64.code_margin:.1e}, safe steps {safe}, least margin {min(margins):.3f}, "
              f"{len(set(tokens))} different")
        golden |= {
            f"prompt{i}.ids": torch.tensor(ids, dtype=torch.int32),
            f"prompt{i}.last_logits": last.clone(),
            f"prompt{i}.last_logits_f64": torch.from_numpy(ours.copy()),
            f"prompt{i}.greedy": torch.tensor(tokens, dtype=torch.int32),
            f"prompt{i}.greedy_margin": torch.tensor(margins),
            f"prompt{i}.safe_steps": torch.tensor([safe], dtype=torch.int32),
            f"prompt{i}.spread": torch.tensor([difference]),
            f"prompt{i}.code_margin": torch.tensor([float(code_margin)]),
            f"prompt{i}.greedy_code_margin": torch.tensor([float(f64.code_margin)]),
        }
        if i == 1:
            golden |= {f"prompt1.{name}": value for name, value in outputs.items()}
    for _ in range(1000):
        ids = rng.choice(f64.config["vocab_size"], TEXT)
        ours = nll(f64.logits(ids), ids)
        if f64.code_margin < LONG_CODE_MARGIN:
            continue
        theirs, ours_f32 = nll(recorded(model, ids)["logits"].numpy(), ids), nll(f32.logits(ids), ids)
        difference = spread(theirs, ours, ours_f32)
        if difference < 1e-3:
            break
    print(f"  text: mean nll {theirs.mean():.6f}, f64 {ours.mean():.6f}, f32 {ours_f32.mean():.6f}; spread of a token {difference:.1e}, "
          f"code margin {f64.code_margin:.1e}")
    golden |= {
        "text.ids": torch.tensor(ids, dtype=torch.int32),
        "text.nll": torch.from_numpy(theirs.astype(np.float32)),
        "text.nll_f64": torch.from_numpy(ours),
        "text.spread": torch.tensor([difference]),
        "text.code_margin": torch.tensor([float(f64.code_margin)]),
    }
    save_file(golden, directory / "golden.safetensors")


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        print(name)
        write_model(HERE / name, CASES[name])
        make_golden(HERE / name, CASES[name]["seed"])
        print("  kB:", {file.name: file.stat().st_size // 1000 for file in sorted((HERE / name).iterdir())})


if __name__ == "__main__":
    main()
