//! GGUF files made here, from the formats' descriptions.

use bitnet_wgpu::{
    Result,
    formats::{I2sLayout, ModelConfig},
    internals::GgufModel,
};
use half::f16;
use support::files::Directory;

/// The tensors of a layer of Qwen3, vectors first, and their names in GGUF.
pub const QWEN3: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

#[derive(Clone, Default)]
pub struct Maker {
    pub metadata: Vec<Vec<u8>>,
    /// Name, dimensions innermost first, type, bytes.
    pub tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

impl Maker {
    pub fn set(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let key = string(key);
        self.metadata.retain(|entry| !entry.starts_with(&key));
        self.metadata.push([&key[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        let key = string(key);
        self.metadata.retain(|entry| !entry.starts_with(&key));
        self.tensors.retain(|tensor| string(&tensor.0) != key);
        self
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.set(key, STRING, &string(value))
    }

    pub fn number(self, key: &str, value: u32) -> Self {
        self.set(key, U32, &value.to_le_bytes())
    }

    pub fn float(self, key: &str, value: f32) -> Self {
        self.set(key, F32, &value.to_le_bytes())
    }

    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: &[u8]) -> Self {
        self.tensors.retain(|tensor| tensor.0 != name);
        self.tensors.push((
            name.into(),
            shape.iter().rev().copied().collect(),
            kind,
            bytes.to_vec(),
        ));
        self
    }

    /// A model of one layer, with as much of it as opening needs.
    pub fn model() -> Self {
        Self::of("bitnet-25")
    }

    /// A model of another architecture.
    pub fn of(architecture: &str) -> Self {
        let keys = [
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "context_length",
        ];
        let sizes = keys.iter().zip([1, 8, 8, 2, 16]);
        let maker = sizes.fold(Self::default(), |maker, (key, value)| {
            maker.number(&format!("{architecture}.{key}"), value)
        });
        let maker = maker.float(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5);
        maker.text("general.architecture", architecture).tensor(
            "token_embd.weight",
            &[4, 8],
            0,
            &[0; 4 * 8 * 4],
        )
    }

    /// The keys of a model, its rotary frequencies not scaled.
    pub fn configured(architecture: &str, c: &ModelConfig) -> Self {
        let sizes = [
            ("block_count", c.layers),
            ("embedding_length", c.hidden),
            ("feed_forward_length", c.intermediate),
            ("attention.head_count", c.heads),
            ("attention.head_count_kv", c.kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("context_length", c.context),
        ];
        let key = |name: &str| format!("{architecture}.{name}");
        let maker = sizes
            .iter()
            .fold(Self::default(), |maker, (name, size)| maker.number(&key(name), *size as u32));
        let maker = maker
            .float(&key("attention.layer_norm_rms_epsilon"), c.eps)
            .float(&key("rope.freq_base"), c.rope_theta);
        maker.text("general.architecture", architecture)
    }

    pub fn infos(&self) -> Vec<u8> {
        let (mut offset, mut infos) = (0u64, Vec::new());
        for (name, shape, kind, bytes) in &self.tensors {
            infos.extend([string(name), (shape.len() as u32).to_le_bytes().to_vec()].concat());
            shape.iter().for_each(|size| infos.extend(size.to_le_bytes()));
            infos.extend([&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat());
            offset += bytes.len().next_multiple_of(32) as u64;
        }
        infos
    }

    pub fn bytes(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.metadata.len() as u64].map(u64::to_le_bytes);
        let mut file = [
            &b"GGUF"[..],
            &3u32.to_le_bytes(),
            &counts[0],
            &counts[1],
            &self.metadata.concat(),
            &self.infos(),
        ]
        .concat();
        for (.., bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(bytes);
        }
        file
    }
}

pub fn open_bytes(bytes: &[u8]) -> Result<GgufModel> {
    let directory = Directory::temporary();
    // The mapping outlives the name.
    GgufModel::open(directory.write("model.gguf", bytes))
}

// Encoders.

fn code(values: &[i8], at: usize) -> u8 {
    (values[at] + 1) as u8
}

pub fn i2s(layout: I2sLayout, columns: usize, values: &[i8], scale: f32) -> Vec<u8> {
    let byte = |at: usize| {
        let element = |q: usize| match layout {
            I2sLayout::X86 => at / 32 * 128 + 32 * q + at % 32,
            I2sLayout::Arm => at / 16 * 64 + 16 * q + at % 16,
            I2sLayout::Rows => (at / columns * 4 + q) * columns + at % columns,
            other => panic!("no encoder of {other:?}"),
        };
        (0..4).fold(0, |byte, q| byte << 2 | code(values, element(q)))
    };
    let mut bytes: Vec<u8> = (0..values.len() / 4).map(byte).collect();
    bytes.extend([scale.to_le_bytes(); 8].concat());
    bytes
}

pub fn tq2(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| {
            (0..4)
                .fold(0, |byte, l| byte | code(values, at / 32 * 128 + 32 * l + at % 32) << (2 * l))
        };
        (0..64).map(byte).chain(f16::from_f32(*scale).to_le_bytes()).collect::<Vec<u8>>()
    };
    values.chunks(256).zip(scales).flat_map(block).collect()
}

pub fn tq1(values: &[i8], scales: &[f32]) -> Vec<u8> {
    // The number whose digits the trits are, as a fraction of 3^5, in 256ths, rounded up.
    let digits = |trits: [u8; 5]| {
        (trits.iter().fold(0u32, |number, &trit| number * 3 + u32::from(trit)) * 256).div_ceil(243)
            as u8
    };
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| match at {
            0..32 => digits(std::array::from_fn(|i| code(values, 32 * i + at))),
            32..48 => digits(std::array::from_fn(|i| code(values, 160 + 16 * i + at - 32))),
            _ => digits(std::array::from_fn(|i| {
                if i < 4 { code(values, 240 + 4 * i + at - 48) } else { 0 }
            })),
        };
        (0..52).map(byte).chain(f16::from_f32(*scale).to_le_bytes()).collect::<Vec<u8>>()
    };
    values.chunks(256).zip(scales).flat_map(block).collect()
}

pub fn q2(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| (0..4).fold(0, |byte, l| byte | code(values, 4 * at + l) << (2 * l));
        f16::from_f32(*scale)
            .to_le_bytes()
            .into_iter()
            .chain((0..16).map(byte))
            .collect::<Vec<u8>>()
    };
    values.chunks(64).zip(scales).flat_map(block).collect()
}

pub fn pq2(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| (0..4).fold(0, |byte, l| byte | code(values, 4 * at + l) << (2 * l));
        f16::from_f32(*scale)
            .to_le_bytes()
            .into_iter()
            .chain((0..32).map(byte))
            .collect::<Vec<u8>>()
    };
    values.chunks(128).zip(scales).flat_map(block).collect()
}

pub fn ptq1(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let digits = |trits: [u8; 5]| {
        (trits.iter().fold(0u32, |number, &trit| number * 3 + u32::from(trit)) * 256).div_ceil(243)
            as u8
    };
    let block = |(values, scale): (&[i8], &f32)| {
        let byte = |at: usize| match at {
            0..16 => digits(std::array::from_fn(|i| code(values, 16 * i + at))),
            16..24 => digits(std::array::from_fn(|i| code(values, 80 + 8 * i + at - 16))),
            _ => digits(std::array::from_fn(|i| {
                if i < 4 { code(values, 120 + 2 * i + at - 24) } else { 0 }
            })),
        };
        (0..26).map(byte).chain(f16::from_f32(*scale).to_le_bytes()).collect::<Vec<u8>>()
    };
    values.chunks(128).zip(scales).flat_map(block).collect()
}

/// Weights of -1 and 1.
pub fn q1(values: &[i8], scales: &[f32]) -> Vec<u8> {
    let block = |(values, scale): (&[i8], &f32)| {
        let byte =
            |at: usize| (0..8).fold(0, |byte, l| byte | u8::from(values[8 * at + l] > 0) << l);
        f16::from_f32(*scale)
            .to_le_bytes()
            .into_iter()
            .chain((0..16).map(byte))
            .collect::<Vec<u8>>()
    };
    values.chunks(128).zip(scales).flat_map(block).collect()
}
