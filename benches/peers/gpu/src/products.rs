//! Ternary products from `f32` to `f32`, and attention. A float product of the same shape is what a
//! user of burn has in place of a ternary one. Weights take turns with copies of themselves that no
//! cache holds together, as a model's layers do.

use crate::{
    ours,
    oxbitnet_side::OxBitNet,
    turns::{Rival, Times, in_turns},
};
use bitnet_wgpu::{
    Context, Element, Encoder, bitnet, reference,
    transformer::{self, AttentionShape, CachePositions, HostKvCache, KvCache},
    weights::{PackedTernary, Scales},
};
use burn::tensor::{DType, Device, FloatDType, Tensor as Burn, TensorData, module, ops::AttentionModuleOptions};
use serde_json::{Map, Value, json};
use std::{
    cell::RefCell,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

const SHAPES: [(usize, usize); 2] = [(2560, 2560), (6912, 2560)];
const HEADS: AttentionShape = AttentionShape { heads: 20, kv_heads: 5, head_dim: 128 };
/// Powers of two: with them sums of codes below 2^24 are exact in `f32`, in any order.
const WEIGHT_SCALE: f32 = 1.0 / 64.0;
const CODE_SCALE: f32 = 1.0 / 32.0;
/// Half a unit in the last place of an `f16` near 1, and of an `f32`.
const HALF: f32 = 1.0 / 2048.0;
const SINGLE: f32 = f32::EPSILON / 2.0;

pub struct Options {
    pub tokens: Vec<usize>,
    pub attention: Vec<usize>,
    pub rounds: usize,
    pub json: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { tokens: vec![1, 16, 128, 512], attention: vec![128, 512], rounds: 9, json: None }
    }
}

pub fn compare(context: &Context, burn: Option<Device>, options: &Options) {
    let Options { tokens, attention, rounds, json } = options;
    let rounds = *rounds;
    let capabilities = context.capabilities();
    println!("{}, {}; {rounds} rounds\n", capabilities.adapter, capabilities.driver);
    println!("| op | program | µs, median | least | as long as ours | µs by the GPU's clock |\n| --- | --- | --: | --: | --: | --: |");
    let ox = RefCell::new(OxBitNet::open(&capabilities.adapter));
    let mut results = Vec::new();
    for (rows, columns) in SHAPES {
        for &m in tokens.iter().filter(|&&m| m > 0) {
            let times = product(context, burn.as_ref(), &ox, [m, rows, columns], rounds);
            results.push(show(&format!("product, {m} × {columns} → {rows}"), &times));
        }
    }
    for &m in attention.iter().filter(|&&m| m > 0) {
        let times = attend(context, burn.as_ref(), m, rounds);
        results.push(show(&format!("attention, {m} tokens, {} heads of {} on {}", HEADS.heads, HEADS.head_dim, HEADS.kv_heads), &times));
    }
    if let Some(path) = json {
        let found = json!({ "driver": capabilities.driver, "rounds": rounds, "results": results });
        let text = std::fs::read_to_string(path).unwrap_or_else(|_| "{}".into());
        let mut all: Value = serde_json::from_str(&text).expect("a JSON file");
        all["ops"][&capabilities.adapter] = found;
        std::fs::write(path, format!("{all:#}\n")).expect("it can be written");
    }
    if WRONG.load(Relaxed) {
        std::process::exit(1);
    }
}

/// Prints what was found, and gives it as it is kept.
fn show(op: &str, times: &[Times]) -> Value {
    // Four digits.
    let us = |seconds: f64| format!("{:.3e}", 1e6 * seconds).parse::<f64>().expect("a number");
    let mut programs = Map::new();
    for time in times {
        let (median, least, ratio, gpu) = (us(time.median()), us(time.least()), time.ratio(&times[0]), time.gpu.map(us));
        let by_gpu = gpu.map(|gpu| gpu.to_string()).unwrap_or_default();
        println!("| {op} | {} | {median} | {least} | {ratio:.2} | {by_gpu} |", time.name);
        programs
            .insert(time.name.into(), json!({ "median": median, "least": least, "ratio": (100.0 * ratio).round() / 100.0, "gpu": gpu }));
    }
    json!({ "op": op, "us": programs })
}

/// Seeded numbers, xorshift.
fn random(seed: u32) -> impl FnMut(u32) -> u32 {
    let mut state = seed;
    move |below| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) % below
    }
}

/// Whether a result was wrong.
static WRONG: AtomicBool = AtomicBool::new(false);

/// Returns whether every number is within its bound of what is due. A program is not timed where
/// not.
fn check(of: &str, found: &[f32], due: &[f32], bound: impl Fn(f32) -> f32) -> bool {
    assert_eq!(found.len(), due.len(), "{of}");
    let wrong = |(found, due): (&f32, &f32)| found.is_nan() || (found - due).abs() > bound(*due);
    let Some(i) = found.iter().zip(due).position(wrong) else { return true };
    eprintln!("{of}: number {i} is {}, {} is due", found[i], due[i]);
    WRONG.store(true, Relaxed);
    false
}

fn data<const D: usize>(device: &Device, numbers: &[f32], shape: [usize; D], dtype: FloatDType) -> Burn<D> {
    Burn::<D>::from_data(TensorData::new(numbers.to_vec(), shape), device).cast(DType::from(dtype))
}

fn numbers<const D: usize>(tensor: Burn<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().expect("floats")
}

/// burn's side of an op: the so-manieth call.
fn burns<'a, const D: usize>(name: &'static str, device: &'a Device, call: impl Fn(usize) -> Burn<D> + 'a) -> Rival<'a> {
    Rival::new(name, move |calls| {
        // What nobody keeps, fusion does not compute.
        let kept: Vec<_> = (0..calls).map(&call).collect();
        device.sync().expect("it ends");
        drop(kept);
    })
}

/// The types that burn computes with here, with what it then is called, and half a unit in the last
/// place.
fn types(device: &Device) -> impl Iterator<Item = (FloatDType, &'static str, f32)> {
    let all = [(FloatDType::F32, "burn, f32", 0.0), (FloatDType::F16, "burn, f16", HALF)];
    all.into_iter().filter(|&(dtype, ..)| device.supports_dtype(dtype))
}

fn product(context: &Context, burn: Option<&Device>, ox: &RefCell<OxBitNet>, [m, rows, columns]: [usize; 3], rounds: usize) -> Vec<Times> {
    let mut next = random(1 + m as u32);
    let values: Vec<i8> = (0..rows * columns).map(|_| next(3) as i8 - 1).collect();
    // Codes that stay themselves when they are quantized: the first of a row is the largest.
    let codes = (0..m * columns).map(|i| if i % columns == 0 { 127.0 } else { next(255) as f32 - 127.0 });
    let x: Vec<f32> = codes.map(|code| CODE_SCALE * code).collect();
    let packed = PackedTernary::from_values(rows, columns, &values, Scales::Tensor(WEIGHT_SCALE)).expect("ternary");
    let due = reference::bitlinear(&x, m, &packed).expect("it multiplies");
    let cold = if context.capabilities().software { 1 } else { 192 << 20 };
    let copies = |bytes: usize| (cold / bytes).max(1);

    let matrices: Vec<_> = (0..copies(rows * columns / 4)).map(|_| packed.upload(context).expect("it fits")).collect();
    let input = context.upload(&x, [m, columns]).expect("it fits");
    let call = |encoder: &mut Encoder, i: usize| bitnet::bitlinear(encoder, &input, &matrices[i % matrices.len()]);
    let mut encoder = context.encoder("once");
    let y = call(&mut encoder, 0).expect("it fits");
    encoder.submit().expect("it runs");
    assert!(check("bitnet-wgpu", &pollster::block_on(y.read()).expect("it reads"), &due, |_| 0.0));
    let mut rivals = vec![ours::rival("bitnet-wgpu", context, matrices.len(), |encoder, i| call(encoder, i).map(|_| ()))];

    let mut layer = ox.borrow().product(&values, rows, WEIGHT_SCALE, &x, m, matrices.len());
    // One quotient and two products, of a device that may round them loosely.
    if check("oxbitnet", &ox.borrow_mut().result(&mut layer), &due, |due| 8.0 * SINGLE * due.abs()) {
        let gpu = ox.borrow_mut().gpu_time(&mut layer);
        rivals.push(Rival { gpu, ..Rival::new("oxbitnet", move |calls| ox.borrow_mut().compute(&mut layer, calls)) });
    }

    let weights: Vec<f32> = values.iter().map(|&value| WEIGHT_SCALE * f32::from(value)).collect();
    if let Some(device) = burn {
        for (dtype, name, rounding) in types(device) {
            let bytes = rows * columns * if rounding == 0.0 { 4 } else { 2 };
            let x = data(device, &x, [m, columns], dtype);
            let by_rows: Vec<_> = (0..copies(bytes)).map(|_| data(device, &weights, [rows, columns], dtype)).collect();
            // Laid out anew, as an op does that is no view.
            let by_columns: Vec<_> =
                by_rows.iter().map(|w| data(device, &numbers(w.clone().transpose()), [columns, rows], dtype)).collect();
            let (input, count) = (x.clone(), by_rows.len());
            let calls: [Box<dyn Fn(usize) -> Burn<2>>; 2] = [
                Box::new(move |i| input.clone().matmul(by_rows[i % count].clone().transpose())),
                Box::new(move |i| x.clone().matmul(by_columns[i % count].clone())),
            ];
            for call in calls {
                // Exact in `f32`, and then rounded once.
                if check(name, &numbers(call(0)), &due, |due| rounding * due.abs()) {
                    rivals.push(burns(name, device, call));
                }
            }
        }
    }
    in_turns(rivals, rounds)
}

/// Causal attention of a prompt: ours from its cache, as in a model, with keys and values in 32 and
/// in 16 bits; burn's with keys and values repeated for the heads that share them, which is done
/// before.
fn attend(context: &Context, burn: Option<&Device>, m: usize, rounds: usize) -> Vec<Times> {
    let AttentionShape { heads, kv_heads, head_dim } = HEADS;
    let mut next = random(2 + m as u32);
    // From -1 to 1, exact in `f16`.
    let qkv: Vec<f32> = (0..m * HEADS.row()).map(|_| next(257) as f32 / 128.0 - 1.0).collect();
    let part = |from: usize, count: usize| -> Vec<f32> {
        qkv.chunks_exact(HEADS.row()).flat_map(|row| &row[from * head_dim..(from + count) * head_dim]).copied().collect()
    };
    let (q, k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));
    let host = HostKvCache::from_parts(HEADS, k.clone(), v.clone()).expect("whole tokens");
    let due = reference::attention(&qkv, &host).expect("it attends");
    // A score is a sum of `head_dim` products of at most 1 over √head_dim; its error moves a weight
    // by as much of itself, twice with the sum's. Values are at most 1; rounding them and their sum
    // adds a few more units.
    let bound = SINGLE * (4.0 * (head_dim as f32).powf(1.5) + 2.0 * (m + 16) as f32);

    let runs = context.upload(&[0, 0], [1, 2]).expect("it fits");
    let input = context.upload(&qkv, [m, HEADS.row()]).expect("it fits");
    let (input, runs) = (&input, &runs);
    let kinds = [(Element::F32, "bitnet-wgpu"), (Element::F16, "bitnet-wgpu, f16 cache")];
    let mut rivals = Vec::new();
    for (element, name) in kinds.into_iter().filter(|&(element, _)| element == Element::F32 || context.capabilities().f16) {
        let cache = KvCache::new(context, HEADS, 1, m, element).expect("it fits");
        cache.write(std::slice::from_ref(&host)).expect("it fits");
        let call = move |encoder: &mut Encoder| transformer::attention(input, CachePositions::new(runs, m), &cache).max_len(m).forward(encoder);
        let mut encoder = context.encoder("once");
        let y = call(&mut encoder).expect("it fits");
        encoder.submit().expect("it runs");
        assert!(check(name, &pollster::block_on(y.read()).expect("it reads"), &due, |_| bound));
        rivals.push(ours::rival(name, context, 1, move |encoder, _| call(encoder).map(|_| ())));
    }
    if let Some(device) = burn {
        for (dtype, name, rounding) in types(device) {
            let heads_first = |numbers: &[f32], count: usize| data(device, numbers, [1, m, count, head_dim], dtype).swap_dims(1, 2);
            let shared = |numbers: &[f32]| {
                let one = heads_first(numbers, kv_heads).reshape([kv_heads, 1, m, head_dim]);
                one.repeat_dim(1, heads / kv_heads).reshape([1, heads, m, head_dim])
            };
            let (q, k, v) = (heads_first(&q, heads).mul_scalar(1.0), shared(&k), shared(&v));
            let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
            let call = move |_| module::attention(q.clone(), k.clone(), v.clone(), None, None, options);
            // In f16 the bound above says nothing; scores here are small, and what is rounded a
            // few times stays within this.
            let bound = if rounding == 0.0 { bound } else { 64.0 * rounding };
            if check(name, &numbers(call(0).swap_dims(1, 2)), &due, |_| bound) {
                rivals.push(burns(name, device, call));
            }
        }
    }
    in_turns(rivals, rounds)
}
